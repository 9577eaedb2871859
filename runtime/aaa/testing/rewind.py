"""Sends a memory store's partition back in time, as a restored backup or a bad failover does (G23).

What the workers hold (folded runs, running tools, the mark that they have seen) stays as it is:
that is the situation to be noticed.
"""

from __future__ import annotations

import copy

from aaa.ids import partition_of
from aaa.store.memory import MemoryEventStore, _Partition


class Snapshot:
    """One partition as it is now; :meth:`restore` puts it back."""

    def __init__(self, store: MemoryEventStore, run_id: str) -> None:
        self._store = store
        self._number = partition_of(run_id, store.partitions)
        with store._lock:
            self._rows = self._copy(store._partitions[self._number])

    def restore(self) -> None:
        """Forget everything that was written since."""
        with self._store._lock:
            self._store._partitions[self._number] = self._copy(self._rows)

    def _copy(self, rows: _Partition) -> _Partition:
        # Clocks are shared, not copied: time does not go back with the data.
        return copy.deepcopy(rows, {id(self._store._clock): self._store._clock})
