"""One at a time: two runs of the harness on a machine would tear down each other's cluster.

The lock is the kernel's (`flock`): it goes with the process that holds it, however that ends.
"""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator

from cluster.paths import cache_dir
from cluster.shell import ClusterError, wait_until


@contextlib.contextmanager
def locked(name: str, *, timeout_s: float) -> Iterator[None]:
    """Hold the machine's lock of this name; who waits in vain is told which process has it."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    path = cache_dir() / f"{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _taken(descriptor):
            holder = path.read_text().strip() or "unknown"
            print(f"cluster: waiting for the end of process {holder}", file=sys.stderr)
            try:
                wait_until(lambda: _taken(descriptor), what="the lock", timeout_s=timeout_s)
            except ClusterError:
                raise ClusterError(
                    f"another run holds the test cluster ({name}: process {holder}); "
                    "wait for its end, or end it"
                ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
