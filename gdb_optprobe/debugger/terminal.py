"""Whether the user sees colours, and assembler text in them."""

from __future__ import annotations

import os
from collections.abc import Callable

import gdb


def wants_colour() -> bool:
    """On a terminal, unless GDB's `set style enabled off` (as in batch mode) or NO_COLOR says otherwise."""
    if os.environ.get("NO_COLOR") or not gdb.parameter("style enabled"):
        return False
    return os.isatty(1)


def colour() -> Callable[[str], str]:
    """What colours one instruction; leaves it as it is where colours are not wanted or Pygments is missing."""
    if not wants_colour():
        return str
    try:
        from pygments import highlight
        from pygments.formatters import Terminal256Formatter
        from pygments.lexers import GasLexer
    except ImportError:
        return str
    lexer, formatter = GasLexer(), Terminal256Formatter()

    def coloured(text: str) -> str:
        return str(highlight(text, lexer, formatter)).rstrip("\n")

    return coloured
