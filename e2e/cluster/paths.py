"""Where the test cluster keeps things: what is worth keeping, and what goes when it goes.

The cache (built programs, base images) lives as long as the person wants it. The state belongs to
one running cluster and is deleted with it.
"""

import os
from pathlib import Path

E2E = Path(__file__).resolve().parents[1]

# Every process of the cluster carries this variable with the state folder as its value, so that it
# is found even where the harness died before it wrote down whom it had started.
MARKER = "AAA_E2E_CLUSTER"


def cache_dir() -> Path:
    """`AAA_E2E_CACHE`, or a folder of its own in the person's cache."""
    named = os.environ.get("AAA_E2E_CACHE")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "aaa-e2e"


def state_dir() -> Path:
    """`AAA_E2E_STATE`, or a folder beside other services' state; on a real file system, since
    containers' layers are stacked upon it."""
    return Path(os.environ.get("AAA_E2E_STATE") or "/var/lib/aaa-e2e").absolute()
