"""The test cluster from a terminal: up, down, status, load, stop, thaw, kill, cut-off, reconnect."""

import argparse
import contextlib
import sys
from pathlib import Path

from cluster.images import PYTHON, REDIS
from cluster.lock import locked
from cluster.select import here
from cluster.shell import ClusterError, Progress

_FAULTS = ("stop", "thaw", "kill", "cut-off", "reconnect")


def main() -> int:
    """Run one command; a failure is one sentence and exit status 1."""
    asked = _parser().parse_args()
    try:
        # Faults and looks are for somebody who watches a running test, so they do not wait for it.
        alone = asked.command in {"up", "down"}
        with locked("cluster", timeout_s=asked.wait_s) if alone else contextlib.nullcontext():
            _carry_out(asked)
    except ClusterError as failed:
        print(f"cluster: {failed}", file=sys.stderr)
        return 1
    return 0


def _carry_out(asked: argparse.Namespace) -> None:
    cluster, progress = here(), Progress()
    if asked.command == "up":
        cluster.up(progress)
    elif asked.command == "down":
        cluster.down(progress)
    elif asked.command == "status":
        print(cluster.kubectl("get", "nodes,pods", "-A", "-o", "wide"), end="")
    elif asked.command == "load":
        bases = {"python": PYTHON, "redis": REDIS}
        for image in asked.image:
            if image in bases:
                print(cluster.base_image(bases[image]))
            else:
                cluster.load_image(Path(image) if image.endswith(".tar") else image)
    else:
        verb = getattr(cluster.pods, asked.command.replace("-", "_"))
        verb(asked.pod, namespace=asked.namespace)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    parser.add_argument(
        "--wait-s", type=float, default=600.0, help="how long to wait for another run's end"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start the cluster, unless it runs")
    commands.add_parser("down", help="take the cluster down and check that nothing is left")
    commands.add_parser("status", help="show nodes and pods")
    load = commands.add_parser("load", help="put images into the nodes")
    load.add_argument("image", nargs="+", help="an archive (.tar), a built image, python or redis")
    for name in _FAULTS:
        fault = commands.add_parser(name, help=f"{name} a pod's processes or network")
        fault.add_argument("pod")
        fault.add_argument("-n", "--namespace", default="default")
    return parser


if __name__ == "__main__":
    sys.exit(main())
