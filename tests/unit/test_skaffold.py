"""skaffold.yaml says only what its schema has, and names what is there.

Skaffold itself cannot be had here. The fields below are those of its published JSON schema,
docs-v2/content/en/schemas/v4beta13.json in its repository, for the parts that the file uses.
"""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = yaml.safe_load((ROOT / "skaffold.yaml").read_text())
SCHEMA = "skaffold/v4beta13"
#: By path, ``[]`` being a list's element; ``*`` is a map whose keys are free.
FIELDS: dict[str, set[str]] = {
    "": {"apiVersion", "kind", "metadata", "build", "deploy", "manifests", "portForward", "profiles"},
    "metadata": {"name", "labels", "annotations"},
    "build": {"artifacts", "tagPolicy", "local", "insecureRegistries", "platforms"},
    "build.tagPolicy": {"inputDigest", "gitCommit", "sha256", "envTemplate", "dateTime"},
    "build.tagPolicy.inputDigest": set(),
    "build.local": {"concurrency", "push", "tryImportMissing", "useBuildkit", "useDockerCLI"},
    "build.artifacts[]": {
        "image", "context", "sync", "requires", "hooks", "platforms", "runtimeType", "docker",
    },
    "build.artifacts[].docker": {
        "dockerfile", "target", "buildArgs", "network", "addHost", "cacheFrom", "cacheTo",
        "cliFlags", "pullParent", "noCache", "squash", "secrets", "ssh",
    },
    "deploy": {
        "docker", "helm", "kpt", "kubectl", "cloudrun", "statusCheck", "statusCheckDeadlineSeconds",
        "tolerateFailuresUntilDeadline", "kubeContext", "logs",
    },
    "deploy.helm": {"concurrency", "releases", "flags", "hooks"},
    "deploy.helm.releases[]": {
        "name", "chartPath", "remoteChart", "valuesFiles", "namespace", "version", "setValues",
        "setValueTemplates", "setFiles", "createNamespace", "wait", "recreatePods",
        "skipBuildDependencies", "skipTests", "useHelmSecrets", "repo", "upgradeOnChange",
        "overrides", "packaged", "dependsOn",
    },
    "deploy.helm.releases[].setValueTemplates": {"*"},
}  # fmt: skip


def _unknown(value: Any, path: str) -> list[str]:
    if isinstance(value, list):
        return [found for each in value for found in _unknown(each, f"{path}[]")]
    if not isinstance(value, dict):
        return []
    known = FIELDS.get(path)
    assert known is not None, f"{path}: look its fields up in the schema"
    found = [] if known == {"*"} else [f"{path}.{key}" for key in value if key not in known]
    for key, each in value.items():
        found += _unknown(each, f"{path}.{key}" if path else key)
    return found


def _declared(schema: dict[str, Any], path: str) -> bool:
    for key in path.split("."):
        if key not in schema.get("properties", {}):
            return False
        schema = schema["properties"][key]
    return True


def test_every_field_is_one_of_the_schema() -> None:
    assert CONFIG["apiVersion"] == SCHEMA
    assert _unknown(CONFIG, "") == []


def test_it_builds_targets_of_the_dockerfile_and_installs_what_it_built() -> None:
    stages = (ROOT / "Dockerfile").read_text()
    (release,) = CONFIG["deploy"]["helm"]["releases"]
    assert (ROOT / release["chartPath"] / "Chart.yaml").exists()
    built = {}
    for artifact in CONFIG["build"]["artifacts"]:
        target = artifact["docker"]["target"]
        assert f"FROM image AS {target}\n" in stages
        built[target] = artifact["image"].replace("-", "_")
    assert release["setValueTemplates"] == {
        f"images.{target}.{what.lower()}": f"{{{{.IMAGE_{name}_{built[target]}}}}}"
        for target in built
        for what, name in (("repository", "REPO"), ("tag", "TAG"))
    }


def test_the_values_that_it_sets_are_values_of_the_chart() -> None:
    schema = yaml.safe_load((ROOT / "charts" / "aaa" / "values.schema.json").read_text())
    (release,) = CONFIG["deploy"]["helm"]["releases"]
    assert all(_declared(schema, path) for path in release["setValueTemplates"])
