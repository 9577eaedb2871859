"""One at a time: two runs of the harness on a machine would tear down each other's cluster.

The lock is the kernel's (`flock`): it goes with the process that holds it, however that ends.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from cluster.paths import cache_dir
from cluster.shell import ClusterError


@contextlib.contextmanager
def locked(name: str, *, timeout_s: float) -> Iterator[None]:
    """Hold the machine's lock of this name; who waits in vain is told which process has it."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    path = cache_dir() / f"{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = path.read_text().strip() or "unknown"
                    raise ClusterError(
                        f"another run holds the test cluster ({name}: process {holder}); "
                        "wait for its end, or end it"
                    ) from None
                time.sleep(0.1)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
