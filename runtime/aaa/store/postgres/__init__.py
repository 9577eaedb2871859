"""The Postgres store: one transaction a commit, leases bound to database sessions.

- ``store``: the port over the parts below;
- ``address``: the URL, taken apart; ``connect``: connections, their settings, their bounds;
- ``faults``: what the driver raises, in AAA's words;
- ``schema``: tables and functions, created and migrated; ``server``: what the server promises;
- ``wire``: operations and verdicts as they travel;
- ``leases``: the session that a worker's leases belong to, and its heartbeat;
- ``listener``: being woken;
- ``sql/``: the tables, and the operations as functions in the database.
"""

from aaa.store.postgres.store import PostgresEventStore

__all__ = ["PostgresEventStore"]
