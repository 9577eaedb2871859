"""The certificates of one cluster: an authority of its own, made at each start and thrown away.

Nothing here is meant to keep anybody out; Kubernetes takes a person's and a node's identity from
certificates, so there must be some. Made by the `openssl` program.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.shell import run

_CONFIG = "[req]\ndistinguished_name = dn\n[dn]\n"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30")


@dataclass(frozen=True)
class Authority:
    """The cluster's certificate authority and what it has signed, as files in one folder."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def accounts_key(self) -> Path:
        """Signs service accounts' tokens."""
        return self.folder / "accounts.key"

    @property
    def accounts_public_key(self) -> Path:
        """Checks them."""
        return self.folder / "accounts.pub"

    def create(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        (self.folder / "openssl.cnf").write_text(_CONFIG)
        self._request("ca", "/CN=aaa-e2e", ["basicConstraints=critical,CA:TRUE"])
        curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        run(["openssl", "genpkey", *curve, "-out", self.accounts_key])
        public = self.accounts_public_key
        run(["openssl", "pkey", "-in", self.accounts_key, "-pubout", "-out", public])

    def sign(
        self, name: str, *, person: str, group: str = "", addresses: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """A certificate and its key: a client's, and a server's too where it has addresses."""
        organisation = f"/O={group}" if group else ""
        usage = "clientAuth,serverAuth" if addresses else "clientAuth"
        extensions = [f"extendedKeyUsage={usage}"]
        if addresses:
            kinds = ("IP" if each.replace(".", "").isdigit() else "DNS" for each in addresses)
            names = ",".join(f"{kind}:{each}" for kind, each in zip(kinds, addresses, strict=True))
            extensions.append(f"subjectAltName={names}")
        signer = ["-CA", str(self.certificate), "-CAkey", str(self.key)]
        self._request(name, f"{organisation}/CN={person}", extensions, signer)
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def kubeconfig(self, path: Path, *, server: str, client: tuple[Path, Path]) -> Path:
        """Write a kubeconfig with everything inside, so that it can be copied elsewhere."""

        def inline(file: Path) -> str:
            return base64.b64encode(file.read_bytes()).decode()

        certificate, key = client
        cluster = {"server": server, "certificate-authority-data": inline(self.certificate)}
        user = {
            "client-certificate-data": inline(certificate),
            "client-key-data": inline(key),
        }
        context = {"cluster": "aaa-e2e", "user": "aaa-e2e"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "aaa-e2e",
            "clusters": [{"name": "aaa-e2e", "cluster": cluster}],
            "users": [{"name": "aaa-e2e", "user": user}],
            "contexts": [{"name": "aaa-e2e", "context": context}],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=1))
        return path

    def _request(
        self, name: str, subject: str, extensions: Sequence[str], signer: Sequence[str] = ()
    ) -> None:
        argv: list[str | Path] = ["openssl", "req", "-x509", *_KEY, "-subj", subject]
        argv += ["-config", self.folder / "openssl.cnf"]
        for extension in extensions:
            argv += ["-addext", extension]
        argv += [*signer, "-out", self.folder / f"{name}.crt"]
        run([*argv, "-keyout", self.folder / f"{name}.key"])
