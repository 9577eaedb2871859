"""``kubectl aaa``: the commands of ``aaa`` over a cluster.

It reads through the API server's proxy from the operator's read-only endpoint, and prints with the
code of the ``aaa`` command. It writes objects and nothing else: ToolDecisions in its user's own name,
an AgentRun's ``desiredState``, and a pool's restart annotation. It opens no store and runs nothing in
a pod. What it may do is what its user may do in the cluster.
"""

from __future__ import annotations


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its code (:mod:`aaa.cli.exits`)."""
    import sys

    from aaa_kubectl.program import run

    sys.exit(run(sys.argv[1:]))
