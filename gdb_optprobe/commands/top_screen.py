"""The terminal as a screen that one program draws: the whole of it, without GDB's pager, and keys as they are typed.

The user's screen is left as it was: the terminal has another one for this. GDB's output goes elsewhere meanwhile.
"""

from __future__ import annotations

import os
import select
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

TERMINAL = "/dev/tty"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Another screen, no cursor, lines that end at the edge; and back."""
_HOME, _REST, _END = "\x1b[H", "\x1b[J", "\x1b[K"
_REVERSE, _PLAIN = "\x1b[7m", "\x1b[m"
_ESCAPE = b"\x1b"
_COLUMNS, _LINES = 80, 24
"""Of a terminal that does not tell its size."""


class Screen:
    """A terminal that is drawn to. keys: the file descriptor that has what is typed."""

    def __init__(self, terminal: int) -> None:
        self.keys = terminal

    @property
    def size(self) -> tuple[int, int]:
        """Return the columns and lines it has now."""
        found = os.get_terminal_size(self.keys)
        return found.columns or _COLUMNS, found.lines or _LINES

    def draw(self, lines: Sequence[str], reversed_line: int) -> None:
        """Show these lines in the place of what was there."""
        width, _ = self.size
        shown = [
            f"{_REVERSE}{line.ljust(width)}{_PLAIN}" if number == reversed_line else f"{line}{_END}"
            for number, line in enumerate(lines)
        ]
        self._write(_HOME + "\r\n".join(shown) + _REST)

    def typed(self) -> bytes:
        """Return what was typed since the last call, up to the first special key, which is several characters."""
        data = b""
        while _has_more(self.keys) and (more := os.read(self.keys, 256)):
            data += more
        return data.partition(_ESCAPE)[0]

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self.keys, data) :]


def _has_more(descriptor: int) -> bool:
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(0))


def has_screen() -> bool:
    """Return whether this process has a terminal for its output that can be drawn to."""
    return os.environ.get("TERM", "dumb") != "dumb" and os.isatty(0) and os.isatty(1)


@contextmanager
def screen() -> Iterator[Screen]:
    """Draw to the terminal within the block. Ctrl-C is a signal as before. Raises OSError, termios.error."""
    terminal = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        before = termios.tcgetattr(terminal)
        shown = Screen(terminal)
        try:
            termios.tcsetattr(terminal, termios.TCSADRAIN, _by_key(before))
            shown._write(_ENTER)
            yield shown
        finally:
            shown._write(_LEAVE)
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
    finally:
        os.close(terminal)


def _by_key(attributes: list[Any]) -> list[Any]:
    """Return the terminal's attributes with keys one by one, not shown; nothing holds the output or suspends GDB."""
    iflag, oflag, cflag, lflag, ispeed, ospeed, characters = attributes
    characters = [*characters]
    characters[termios.VMIN], characters[termios.VTIME] = 0, 0
    characters[termios.VSUSP] = b"\0"
    return [
        iflag & ~termios.IXON,
        oflag | termios.OPOST,
        cflag,
        lflag & ~(termios.ICANON | termios.ECHO),
        ispeed,
        ospeed,
        characters,
    ]
