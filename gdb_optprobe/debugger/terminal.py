"""Colours on the terminal, for assembler text."""

from __future__ import annotations

import os
from collections.abc import Callable

import gdb


def wants_colour() -> bool:
    """Return whether to print colours: on a terminal, without `set style enabled off` (batch mode) and NO_COLOR."""
    if os.environ.get("NO_COLOR") or not gdb.parameter("style enabled"):
        return False
    return os.isatty(1)


def colour() -> Callable[[str], str]:
    """Return a function that colours an instruction; one that does nothing without colours or Pygments."""
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
