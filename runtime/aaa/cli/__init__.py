"""The ``aaa`` command: what people type at a laptop, and the process in a pod.

One module a command or a small family of them. They use what anybody can use: the client, the
engine, apps and manifests. Importing this package loads nothing else; a command loads what it
needs when it runs, so that ``aaa --help`` answers at once.
"""

from __future__ import annotations


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its code (:mod:`aaa.cli.exits`)."""
    import sys

    from aaa.cli.program import run

    sys.exit(run(sys.argv[1:]))
