"""``aaa run`` on a terminal: a live table, Ctrl-C, and nothing that a tool says acts on it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pexpect
import pyte
import pytest

from cli.desk import Desk

LIMIT_S = 60.0


class Terminal:
    """80 × 24, with a process in it."""

    def __init__(self, desk: Desk, *arguments: str) -> None:
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._screen)
        command = desk.command(*arguments)
        env = desk.env | {"TERM": "xterm-256color", "NO_COLOR": ""}
        self.process = pexpect.spawn(
            sys.executable,
            command[1:],
            cwd=str(desk.folder),
            env={key: value for key, value in env.items() if key != "NO_COLOR"},
            dimensions=(24, 80),
        )

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def title(self) -> str:
        return str(self._screen.title)

    @property
    def cursor_hidden(self) -> bool:
        return bool(self._screen.cursor.hidden)

    def until(self, text: str) -> str:
        """The screen once ``text`` stands on it."""
        end = time.monotonic() + LIMIT_S
        while text not in self.text:
            assert time.monotonic() < end, f"no {text!r} on the screen:\n{self.text}"
            if not self._read():
                assert text in self.text, f"ended without {text!r}:\n{self.text}"
        return self.text

    def ended(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        self.process.close()
        return int(self.process.exitstatus if self.process.exitstatus is not None else -1)

    def _read(self) -> bool:
        try:
            self._stream.feed(self.process.read_nonblocking(65_536, LIMIT_S))
        except pexpect.EOF:
            return False
        return True


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.process.close(force=True)


def test_ctrl_c_drains_and_says_how_to_go_on(desk: Desk, terminals: list[Terminal]) -> None:
    desk.manifest("look hang", more="  drainTimeoutSeconds: 1\n")
    terminal = Terminal(desk, "run", "dig.yaml")
    terminals.append(terminal)
    shown = terminal.until("50% hanging red")
    assert "look c3-0  completed" in shown
    assert "hang c8-0" in shown
    terminal.process.sendintr()
    assert terminal.ended() == 130
    assert "Ctrl-C: letting calls in flight finish; once more ends at once" in terminal.text
    assert "interrupted; dig is kept, and goes on with: aaa run dig.yaml" in terminal.text
    assert "Traceback" not in terminal.text
    assert (terminal.title, terminal.cursor_hidden) == ("", False)
    (desk.folder / "go").touch()
    assert desk.aaa("run", "dig.yaml").code == 0


def test_a_second_ctrl_c_ends_at_once(desk: Desk, terminals: list[Terminal]) -> None:
    desk.manifest("hang", more="  drainTimeoutSeconds: 3600\n")
    terminal = Terminal(desk, "run", "dig.yaml")
    terminals.append(terminal)
    terminal.until("hanging red")
    terminal.process.sendintr()
    terminal.until("once more ends at once")
    terminal.process.sendintr()
    assert terminal.ended() == 130
    assert "interrupted; dig is kept, and goes on with: aaa run dig.yaml" in terminal.text
    assert not terminal.cursor_hidden


def test_a_terminal_goes_on_waiting_and_shows_what_to_type(
    desk: Desk, terminals: list[Terminal]
) -> None:
    desk.manifest("blast")
    terminal = Terminal(desk, "run", "dig.yaml")
    terminals.append(terminal)
    shown = terminal.until("aaa reject dig c3-0")
    digest = desk.aaa("pending", "--json").lines()[0]["args_digest"]
    assert f"aaa approve dig c3-0 --digest {digest}" in shown
    assert desk.aaa("approve", "dig", "c3-0").code == 0
    terminal.until("done: blasted 1")
    assert terminal.ended() == 0
