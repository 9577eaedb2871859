"""Two questions over HTTP, for whoever keeps the process: does it live, and may it be counted on?

``/healthz`` asks only whether the event loop comes round, ``/readyz`` whether the worker serves. Both
are answered from a thread of their own, so that a loop that hangs is said to hang and is not just
silent, and without a word to the store: an outage there is no reason to end a worker.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

from aaa.errors import ConfigError

#: A loop that has not come round for so long is said to hang.
HUNG_S: Final = 5.0
#: A client gets so long to ask its question.
_PATIENCE_S: Final = 5.0

#: Why the answer is no, or ``None`` for yes. Called from any thread.
Question = Callable[[], str | None]


class Health:
    """The server; :meth:`start` makes it answer, :meth:`close` ends it."""

    def __init__(self, port: int, *, healthy: Question, ready: Question) -> None:
        """``port`` 0 is any free one. Raises :class:`ConfigError` if it is taken."""
        questions = {"/healthz": healthy, "/readyz": ready}
        self._server = _listen(port, questions)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="aaa-health", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    questions: dict[str, Question]

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # not the HTTP server's, which looks its own name up


class _Server6(_Server):
    """Both families on one socket."""

    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        with suppress(OSError):
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: _Server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        question = self.server.questions.get(self.path.partition("?")[0])
        if question is None:
            code, text = 404, "there are /healthz and /readyz"
        else:
            why = question()
            code, text = (200, "ok") if why is None else (503, why)
        body = f"{text}\n".encode()
        self.send_response_only(code)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """A probe every few seconds is no news."""


def _listen(port: int, questions: dict[str, Question]) -> _Server:
    failure: OSError | None = None
    for kind in (_Server6, _Server) if socket.has_ipv6 else (_Server,):
        try:
            server = kind(("", port), _Handler)
        except OSError as error:  # a machine may know IPv6 and not have it
            failure = error
            continue
        server.questions = questions
        return server
    raise ConfigError(f"cannot listen on port {port} of AAA_HEALTH_PORT: {failure}") from failure
