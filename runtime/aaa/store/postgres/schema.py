"""Tables and functions in the database: created, migrated, and refused where they do not fit.

Tables are versioned by numbered migrations, run under an advisory lock, each store in a schema of
its own. Functions carry a hash of their text in their names, so that old and new workers use their
own side by side while a deployment is rolled out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Final

import psycopg
from psycopg import sql

from aaa.clock import Clock
from aaa.errors import ConfigError, StoreMismatch, StoreTooNew
from aaa.ids import json_text
from aaa.store import claims, guard
from aaa.store.port import DEFAULT_PARTITIONS
from aaa.store.postgres.address import Address
from aaa.store.postgres.connect import Async
from aaa.store.postgres.faults import faults

#: The newest migration that this code knows; the oldest code that its tables still serve.
VERSION: Final = 1
MIN_READER: Final = 1
#: How runs are spread over partitions: aaa.ids.partition_of.
HASH: Final = "blake2b-64"
#: SQLSTATE of "your lease session has ended", from fn_commit.
GONE_CODE: Final = "AA001"

_MIGRATIONS = {1: "001_tables.sql"}
_FUNCTIONS = (
    "10_sessions.sql",
    "20_guard.sql",
    "30_events.sql",
    "40_claims.sql",
    "50_append.sql",
    "60_settle.sql",
    "70_owners.sql",
    "80_commit.sql",
    "90_pulse.sql",
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the store was laid out."""

    identity: str
    partitions: int
    version: int


class Functions:
    """The functions' text for one schema, and the names that they carry there."""

    def __init__(self, address: Address) -> None:
        text = "\n".join(_file(name) for name in _FUNCTIONS)
        for name, value in _constants(address).items():
            text = text.replace(f"@@{name}@@", value)
        self._mark = blake2b(text.encode(), digest_size=4, person=b"aaa-pg-fn-v1").hexdigest()
        self.text = self.named(text)

    def named(self, text: str) -> str:
        """``fn_commit`` as it is called in the database."""
        return re.sub(r"\bfn_(\w+)", rf"fn_\1_{self._mark}", text)


def _constants(address: Address) -> dict[str, str]:
    """What the functions share with :mod:`aaa.store.claims` and :mod:`aaa.store.guard`."""
    return {
        "lock_class": str(address.lock_class),
        "sleep_class": str(address.sleep_class),
        "channel": sql.Literal(address.channel).as_string(),
        "gone_code": GONE_CODE,
        "scan_limit": str(claims.SCAN_LIMIT),
        "max_verifies": str(guard.MAX_VERIFIES),
        "verify_grace_ttls": str(guard.VERIFY_GRACE_TTLS),
        "unknown_text": sql.Literal(json_text(claims.UNKNOWN_TEXT)).as_string(),
        "abandoned_text": sql.Literal(json_text(claims.ABANDONED_TEXT)).as_string(),
    }


@cache
def _file(name: str) -> str:
    return files("aaa.store.postgres").joinpath("sql", name).read_text(encoding="utf-8")


async def prepare(
    connection: Async, address: Address, functions: Functions, *, clock: Clock
) -> Layout:
    """Make the schema ready for this code. A store that is ready already is only read."""
    with faults():
        layout = await _ready(connection, address, functions)
        if layout is None:
            async with connection.transaction():
                await connection.execute(
                    "SELECT pg_advisory_xact_lock(%s, 0)", (address.lock_class,)
                )
                await _make_schema(connection, address)
                await _migrate(connection, address, clock)
                await connection.execute(functions.text.encode())
            layout = await _ready(connection, address, functions)
    if layout is None:
        raise StoreMismatch(f"schema {address.schema!r} does not hold what was just written there")
    return layout


async def _ready(connection: Async, address: Address, functions: Functions) -> Layout | None:
    """The layout, if tables and functions are as this code needs them."""
    cursor = await connection.execute(
        "SELECT to_regclass(%s) IS NOT NULL, to_regproc(%s) IS NOT NULL",
        (f"{address.schema}.store", f"{address.schema}.{functions.named('fn_commit')}"),
    )
    tables, installed = await cursor.fetchone() or (False, False)
    if not tables:
        return None
    cursor = await connection.execute(
        "SELECT identity, partitions, version, min_reader, hash FROM store"
    )
    row = await cursor.fetchone()
    if row is None:
        raise StoreMismatch(f"schema {address.schema!r} has a table `store` without its row")
    identity, partitions, version, min_reader, hash_name = row
    if version > VERSION and min_reader > VERSION:
        raise StoreTooNew(
            f"the store in schema {address.schema!r} has version {version} and needs code that "
            f"knows version {min_reader}; this one knows {VERSION}: upgrade it"
        )
    if hash_name != HASH:
        raise StoreMismatch(f"the store spreads runs by {hash_name!r}, this code by {HASH!r}")
    if address.partitions not in (None, partitions):
        raise StoreMismatch(
            f"the store was laid out with {partitions} partitions, the URL asks for "
            f"{address.partitions}: partitions are chosen once"
        )
    return Layout(identity, partitions, version) if installed and version >= VERSION else None


async def _make_schema(connection: Async, address: Address) -> None:
    # Not IF NOT EXISTS: that needs the right to create one even where it exists.
    cursor = await connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (address.schema,))
    if (await cursor.fetchone() or (False,))[0]:
        return
    try:
        await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(address.schema)))
    except psycopg.errors.InsufficientPrivilege:
        raise ConfigError(
            f"there is no schema {address.schema!r} and the Postgres user may not create it: have "
            f"an administrator run CREATE SCHEMA {address.schema} AUTHORIZATION <that user>"
        ) from None


async def _migrate(connection: Async, address: Address, clock: Clock) -> None:
    cursor = await connection.execute("SELECT to_regclass(%s)", (f"{address.schema}.store",))
    version = 0
    if (await cursor.fetchone() or (None,))[0] is not None:
        cursor = await connection.execute("SELECT version FROM store")
        version = (await cursor.fetchone() or (0,))[0]
    for number in range(version + 1, VERSION + 1):
        await connection.execute(_file(_MIGRATIONS[number]).encode())
    if version == 0:
        partitions = address.partitions or DEFAULT_PARTITIONS
        await connection.execute(
            "INSERT INTO store (identity, partitions, hash, version, min_reader, created_ms) "
            "VALUES (%s, %s, %s, %s, %s, "
            "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)",
            (clock.token(), partitions, HASH, VERSION, MIN_READER),
        )
        await connection.execute(
            "INSERT INTO partitions (partition) SELECT generate_series(0, %s::int - 1)",
            (partitions,),
        )
    elif version < VERSION:
        await connection.execute(
            "UPDATE store SET version = %s, min_reader = greatest(min_reader, %s)",
            (VERSION, MIN_READER),
        )
