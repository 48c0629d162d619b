"""Completion of locations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gdb

from gdb_optprobe.commands.base import last_word, symbol_words
from gdb_optprobe.commands.parse import TIERS


def location_candidates(text: str, options: Mapping[str, str]) -> int | Sequence[str]:
    """Return GDB's own completer for a single location; options, tiers and symbols elsewhere."""
    *before, typed = text.split(" ")
    if typed.startswith("-"):
        return list(options)
    if before and before[-1] == "-tier":
        return TIERS
    if before and options.get(before[-1]):
        return ()
    *others, last = typed.split(",")
    if others or (before and before[-1].endswith(",")):
        # GDB's completer knows one location.
        return [",".join((*others, name)) for name in symbol_words(last)]
    if not any(before):
        return gdb.COMPLETE_LOCATION
    if all(word in options or word in TIERS or not word for word in before):
        return symbol_words(last_word(text))
    return ("if", "do", *options)
