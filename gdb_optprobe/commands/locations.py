"""Completion of locations, and of expressions and actions after them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

import gdb

from gdb_optprobe.commands.base import last_word, member_words, symbol_words
from gdb_optprobe.commands.parse import TIERS, parse_add
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.scope import OURS
from gdb_optprobe.handlers.clauses import ACTIONS
from gdb_optprobe.probes.spec import Spec

SELECTED = Spec("*$pc")
"""The instruction of the selected frame."""
_CLAUSE = re.compile(r"(?<=\s)(if|do)(?=[\s(])")
_SAVED = re.compile(r"\bsave\s+([A-Za-z_]\w*)\s*=(?!=)")
_MEMBER = re.compile(r"([$A-Za-z_][\w$]*(?:(?:->|\.)\w+|\[\w*\])*)(?:->|\.)(\w*)$")
_OF_LANGUAGE = ("str(", "sizeof(", "$percpu(")
_OF_RETURNS = ("$retval", "$elapsed", "$saved.")
_ACTION_STARTS = re.compile(r"(?:\bdo|,)\s*\w*$")


def location_candidates(text: str, options: Mapping[str, str]) -> int | Sequence[str]:
    """Return GDB's own completer for a single location; options, tiers and symbols elsewhere."""
    if (clauses := [*_CLAUSE.finditer(text)]) and text[: clauses[0].start()].strip():
        return _clause_candidates(text, clauses[0].start(), clauses[-1][0])
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


def _clause_candidates(text: str, start: int, clause: str) -> Sequence[str]:
    """Return what may come next in the clause at the end of `text`. start: where its first clause starts."""
    typed = last_word(text)
    spec = parse_add(text[:start]).specs()[0]
    member = _MEMBER.search(text)
    if member and member[1] == "$saved":
        return [f"{typed[: len(typed) - len(member[2])]}{name}" for name in dict.fromkeys(_SAVED.findall(text))]
    kept = _before_name(typed)
    if clause == "do" and not member and not text.endswith(("(", "=")) and _ACTION_STARTS.search(text):
        return [kept + name for name in ACTIONS if spec.is_return or name != "latency"]
    after = ("do",) if clause == "if" else ("by", "if")
    return [*expression_words(text, spec), *(after if not kept and not member else ())]


def expression_words(text: str, spec: Spec = SELECTED) -> Sequence[str]:
    """Return what may come next in the expression at the end of `text`, in a clause of `spec`."""
    typed = last_word(text)
    if member := _MEMBER.search(text):
        kept = typed[: len(typed) - len(member[2])]
        return [kept + name for name in member_words(spec, member[1])]
    parameters: Sequence[str] = ()
    with suppress(OptprobeError):  # a location that is not there has no parameters; the language has its words
        parameters = member_words(spec, "")
    ours = [f"${name}" for name in OURS if name != "retval"]
    of_returns = _OF_RETURNS if spec.is_return else ("$retval",) if spec is SELECTED else ()
    names = [*parameters, *ours, *_OF_LANGUAGE, *of_returns]
    return [_before_name(typed) + name for name in names]


def _before_name(typed: str) -> str:
    """Return a word without the name that is typed at its end."""
    found = re.search(r"[\w$]*$", typed)
    return typed[: found.start()] if found else typed
