"""The world outside: it hears of attempts and effects, and decides when an attempt may go on.

It runs in the tests' own process, on an address that pods reach. Nothing in the cluster can take
back what it has counted.
"""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cluster.shell import wait_until


@dataclass(frozen=True, slots=True)
class Heard:
    """One attempt of one call, as its tool reported it."""

    tool: str
    order: str
    attempt: int
    pod: str


@dataclass
class Ledger:
    """What has been started and what has been done, in the order in which it arrived."""

    url: str = ""
    starts: list[Heard] = field(default_factory=list)
    effects: list[Heard] = field(default_factory=list)
    _held: dict[tuple[str, int], threading.Event] = field(default_factory=dict)

    def hold(self, order: str, *, attempt: int = 1) -> None:
        """Keep this attempt from going on to its effect until :meth:`release`."""
        self._held[order, attempt] = threading.Event()

    def release(self, order: str, *, attempt: int = 1) -> None:
        self._held[order, attempt].set()

    def started(self, order: str, *, attempt: int = 1, timeout_s: float = 90.0) -> Heard:
        """Wait for the start of an attempt."""
        found: list[Heard] = []

        def there() -> bool:
            found[:] = [one for one in self.starts if (one.order, one.attempt) == (order, attempt)]
            return bool(found)

        wait_until(there, what=f"attempt {attempt} of {order}", timeout_s=timeout_s)
        return found[0]

    def effects_of(self, order: str) -> list[Heard]:
        return [one for one in self.effects if one.order == order]

    def starts_of(self, order: str) -> list[Heard]:
        return [one for one in self.starts if one.order == order]

    def hear(self, path: str, body: dict[str, Any]) -> int:
        """The HTTP status of one report. A start is answered when the attempt may go on."""
        heard = Heard(**body)
        if path == "/start":
            self.starts.append(heard)
            held = self._held.get((heard.order, heard.attempt))
            return 200 if held is None or held.wait(timeout=600) else 503
        self.effects.append(heard)
        return 200


class Server:
    """Serves a ledger as long as the block lasts."""

    def __init__(self, address: str) -> None:
        self.ledger = ledger = Ledger()

        class Reports(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = ledger.hear(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Silence: what was heard is in the ledger."""

        self._server = ThreadingHTTPServer((address, 0), Reports)
        self._server.daemon_threads = True
        ledger.url = f"http://{address}:{self._server.server_port}"

    def __enter__(self) -> Ledger:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self.ledger

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
