"""A payment provider as a service of its own: it moves money, and an agent cannot take that back.

    python provider.py LEDGER.db [--port 8099] [--latency-s 0.2] [--hang-after-effect 30]

``POST /refunds`` with ``{"order_id": "A-100", "amount": 1999}`` and an ``Idempotency-Key`` header
makes a refund, or returns the one that this key has made before; the same key with another body is
refused. ``GET /refunds?order_id=A-100`` looks refunds up. ``GET /ledger`` shows every request that
arrived and every refund that was made, which is what a demonstration or a test is judged by.

The ledger is a SQLite file and survives a restart of the provider.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
  number INTEGER PRIMARY KEY, at TEXT NOT NULL, key TEXT, order_id TEXT, amount INTEGER,
  answer TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS refunds (
  id INTEGER PRIMARY KEY, at TEXT NOT NULL, key TEXT NOT NULL UNIQUE, order_id TEXT NOT NULL,
  amount INTEGER NOT NULL
);
"""


class Refused(Exception):
    """The provider says no: an HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Ledger:
    """Requests and refunds in one SQLite file. Each call is one durable transaction."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(file, isolation_level=None, timeout=5)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(SCHEMA)

    def refund(self, *, key: str, order_id: str, amount: int) -> tuple[dict[str, Any], bool]:
        """The refund of this key, and whether it was made just now."""
        with self._transaction():
            found = self._db.execute("SELECT * FROM refunds WHERE key = ?", (key,)).fetchone()
            if found is None:
                self._db.execute(
                    "INSERT INTO refunds (at, key, order_id, amount) VALUES (?, ?, ?, ?)",
                    (_now(), key, order_id, amount),
                )
                found = self._db.execute("SELECT * FROM refunds WHERE key = ?", (key,)).fetchone()
                answer = "made"
            elif (found["order_id"], found["amount"]) == (order_id, amount):
                answer = "same"
            else:
                answer = "refused"
            self._note(key=key, order_id=order_id, amount=amount, answer=answer)
        if answer == "refused":
            raise Refused(422, f"the key {key!r} was used for another refund")
        return dict(found), answer == "made"

    def note_refusal(self, *, key: str | None, reason: str) -> None:
        """Keep a request that never got as far as a refund."""
        self._note(key=key, order_id=None, amount=None, answer=reason)

    def refunds(self, *, order_id: str | None = None) -> list[dict[str, Any]]:
        """All refunds, or those of one order, oldest first."""
        rows = self._db.execute(
            "SELECT * FROM refunds WHERE ?1 IS NULL OR order_id = ?1 ORDER BY id", (order_id,)
        )
        return [dict(row) for row in rows]

    def requests(self) -> list[dict[str, Any]]:
        """Every refund request that arrived, oldest first."""
        return [dict(row) for row in self._db.execute("SELECT * FROM requests ORDER BY number")]

    def close(self) -> None:
        self._db.close()

    def _note(self, **row: Any) -> None:
        self._db.execute(
            "INSERT INTO requests (at, key, order_id, amount, answer) "
            "VALUES (:at, :key, :order_id, :amount, :answer)",
            {"at": _now(), **row},
        )

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """How slow the provider is: before it acts, and between its acting and its answer."""

    latency_s: float = 0.0
    hang_after_effect_s: float = 0.0


def make_app(ledger: Ledger, *, delays: Delays) -> Starlette:
    """The provider's three addresses over one ledger."""

    async def post_refund(request: Request) -> JSONResponse:
        await asyncio.sleep(delays.latency_s)
        key = request.headers.get("idempotency-key")
        try:
            order_id, amount = _read_body(await request.body())
            if not key:
                raise Refused(400, "an Idempotency-Key header is required")
        except Refused as refusal:
            ledger.note_refusal(key=key, reason=refusal.reason)
            raise
        refund, made = ledger.refund(key=key, order_id=order_id, amount=amount)
        if made:
            await _hang(request, delays.hang_after_effect_s)
        return JSONResponse(refund, status_code=201 if made else 200)

    async def get_refunds(request: Request) -> JSONResponse:
        order_id = request.query_params.get("order_id")
        return JSONResponse({"refunds": ledger.refunds(order_id=order_id)})

    async def get_ledger(_: Request) -> JSONResponse:
        return JSONResponse({"requests": ledger.requests(), "refunds": ledger.refunds()})

    async def refused(_: Request, error: Exception) -> JSONResponse:
        status = error.status if isinstance(error, Refused) else 500
        return JSONResponse({"error": str(error)}, status_code=status)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        ledger.close()

    return Starlette(
        routes=[
            Route("/refunds", post_refund, methods=["POST"]),
            Route("/refunds", get_refunds, methods=["GET"]),
            Route("/ledger", get_ledger, methods=["GET"]),
        ],
        exception_handlers={Refused: refused},
        lifespan=lifespan,
    )


def main() -> None:
    """Serve until stopped. The first line printed is the address."""
    options = _parse()
    listener = socket.create_server((options.host, options.port))
    app = make_app(
        Ledger(options.ledger),
        delays=Delays(latency_s=options.latency_s, hang_after_effect_s=options.hang_after_effect),
    )
    # A reply that hangs on purpose must not hold up the end.
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    )
    print(f"http://{options.host}:{listener.getsockname()[1]}", flush=True)
    if options.until_stdin_closes:
        threading.Thread(target=_stop_at_end_of_input, args=(server,), daemon=True).start()
    server.run(sockets=[listener])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A payment provider with idempotency keys.")
    parser.add_argument("ledger", type=Path, help="SQLite file; made if it does not exist")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8099, help="0: any free port (default: 8099)")
    parser.add_argument("--latency-s", type=float, default=0.0, help="wait before each refund")
    parser.add_argument(
        "--hang-after-effect",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait between making a refund and answering",
    )
    parser.add_argument(
        "--until-stdin-closes", action="store_true", help="end with the program that started it"
    )
    return parser.parse_args()


def _read_body(body: bytes) -> tuple[str, int]:
    try:
        data = json.loads(body)
    except ValueError:
        raise Refused(400, "the body must be JSON") from None
    order_id, amount = (data.get(name) if isinstance(data, dict) else None for name in _FIELDS)
    if not isinstance(order_id, str) or not order_id:
        raise Refused(400, "order_id must be a string")
    if not isinstance(amount, int) or isinstance(amount, bool) or amount <= 0:
        raise Refused(400, "amount must be a whole number of cents above 0")
    return order_id, amount


_FIELDS = ("order_id", "amount")


async def _hang(request: Request, for_s: float) -> None:
    """Delay the answer, for as long as somebody waits for it."""
    ends_at = asyncio.get_running_loop().time() + for_s
    # A connection can only be asked whether it has ended; it sets no event.
    while asyncio.get_running_loop().time() < ends_at:
        if await request.is_disconnected():
            return
        await asyncio.sleep(0.05)


def _stop_at_end_of_input(server: uvicorn.Server) -> None:
    sys.stdin.buffer.read()
    server.should_exit = True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    main()
