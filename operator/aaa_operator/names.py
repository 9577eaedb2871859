"""Names, labels and annotations that the operator's objects carry: the one place that spells them."""

from __future__ import annotations

from typing import Final

GROUP: Final = "aaa.dev"
API_VERSION: Final = "aaa.dev/v1alpha1"
#: The field manager of everything that the operator applies.
MANAGER: Final = "aaa-operator"
FINALIZER: Final = "aaa.dev/run"

#: On everything that belongs to a pool: the pool's name.
POOL: Final = "aaa.dev/pool"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
#: On a Secret: it holds a store's URL.
STORE: Final = "aaa.dev/store"
#: On a Secret that the operator made: since when its password holds.
PASSWORD_SINCE: Final = "aaa.dev/password-since"  # noqa: S105 - a name
#: On a service account: workers may use it.
WORKER_ACCOUNT: Final = "aaa.dev/worker"

#: On a pool's Deployment: the full name of the app that its workers serve.
APP: Final = "aaa.dev/app"
#: On a pool's Deployment: since when it has had nothing to do, milliseconds.
IDLE_SINCE: Final = "aaa.dev/idle-since"
#: On a pool's Deployment: the digests of the images that its first pod ran.
IMAGE_IDS: Final = "aaa.dev/image-ids"
#: On a pool's ControllerRevision: the digest of the template as the API server keeps it.
LIVE_TEMPLATE: Final = "aaa.dev/live-template"
#: On a pool's Deployment: its pods are to be replaced, one by one (:mod:`aaa_operator.restart`).
RESTART: Final = "aaa.dev/restart"
#: The ConfigMap in each namespace that keeps what became of frozen pods.
EVICTIONS: Final = "aaa-evictions"
#: The ConfigMap whose changes must come back through the watch.
HEARTBEAT: Final = "aaa-operator-heartbeat"
#: On a pod: the policy hashes that its mounted folder should show; changing it refreshes the mount.
POLICY_HASHES: Final = "aaa.dev/policy-hashes"
#: On a pod: what a ReplicaSet goes by when it has to choose which one to delete.
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
#: On a source's copy: the ConfigMap that it was copied from.
COPIED_FROM: Final = "aaa.dev/copied-from"

WORKER_CONTAINER: Final = "worker"
POLICY_FOLDER: Final = "/etc/aaa/policy"
SOURCE_FOLDER: Final = "/etc/aaa/source"
STORE_FOLDER: Final = "/etc/aaa/store"
#: The key beside a store's URL whose certificates are trusted, and where pods find it.
CA_KEY: Final = "ca.crt"
CA_FILE: Final = f"{STORE_FOLDER}/{CA_KEY}"
