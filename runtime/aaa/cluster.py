"""Who owns what: the partitions of each app, shared out over the workers that live.

Ownership is a lease with a term at the store; what is kept here is only what this worker believes
it owns, and every decision carries the term so that a wrong belief is refused (L8). Which worker
*should* own a partition follows from rendezvous hashing over the live workers, so that all of
them agree without talking, and a worker that joins or leaves moves only its own share.
"""

from __future__ import annotations

from hashlib import blake2b


class Cluster:
    """One worker's view of ownership."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self._terms: dict[tuple[str, int], int] = {}
        self._members: dict[str, tuple[str, ...]] = {}

    def term(self, app: str, partition: int) -> int | None:
        """The term under which the partition is owned, or ``None``."""
        return self._terms.get((app, partition))

    def won(self, app: str, partition: int, term: int) -> None:
        """The store granted the ownership."""
        self._terms[app, partition] = term

    def lost(self, app: str, partition: int) -> None:
        """The ownership is gone, or was given back."""
        self._terms.pop((app, partition), None)

    def owned(self) -> list[tuple[str, int]]:
        """All (app, partition) that are owned."""
        return list(self._terms)

    def heard(self, members: dict[str, tuple[str, ...]]) -> None:
        """The live workers of each app, from the last beat."""
        self._members = members

    def prefers(self, app: str, partition: int) -> bool:
        """Whether this worker should own the partition, among the workers known to live."""
        members = self._members.get(app, ())
        if not members:
            return True
        return preferred(partition, (*members, self.worker)) == self.worker

    def place(self, partition: int) -> float:
        """This worker's own moment between 0.1 and 0.9 of a wait, another for each partition."""
        return 0.1 + 0.8 * _weight(partition, self.worker)[0] / 255

    def strays(self) -> list[tuple[str, int]]:
        """What is owned but should be another's."""
        return [held for held in self._terms if not self.prefers(*held)]


def preferred(partition: int, workers: tuple[str, ...]) -> str:
    """The worker with the highest hash for this partition."""
    return max(set(workers), key=lambda worker: (_weight(partition, worker), worker))


def _weight(partition: int, worker: str) -> bytes:
    return blake2b(f"{partition}|{worker}".encode(), digest_size=8).digest()
