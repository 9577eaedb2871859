"""The conformance suite: what every backend must answer, case by case.

One entry point: for each ``case`` in :data:`CASES`, ``await case.run(harness)`` with a harness that
holds an empty, opened store of the backend. A case fails by assertion.
"""

from __future__ import annotations

from aaa.testing.conformance import (  # noqa: F401 - importing registers the cases
    approvals,
    claiming,
    log,
    losing,
    loss,
    ownership,
    policies,
    reads,
    renewing,
    settling,
    stopping,
)
from aaa.testing.conformance.cases import CASES, Case

__all__ = ["CASES", "Case"]
