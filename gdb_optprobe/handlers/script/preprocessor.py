"""The preprocessor of a script: conditions, `#define NAME value`, `#include`.

Lines that a false condition leaves out become empty, so that the others keep their numbers. Types come from the guest
and need no header; a header is known where its constants are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gdb_optprobe.handlers.script.lexer import Line
from gdb_optprobe.handlers.script.place import Place, wrong
from gdb_optprobe.handlers.source import legible

_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(.*?)\s*(?://.*|/\*.*\*/\s*)?$")
_DEFINE = re.compile(r"([A-Za-z_]\w*)(\()?\s*(.*)$", re.ASCII)
_HEADER = re.compile(r'[<"]([^>"]+)[>"]$')
_COMMENT = re.compile(r'//|/\*|"(?:\\.|[^"\\])*"')
_NAME = re.compile(r"[A-Za-z_]\w*$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """lines: what is left. macros: by name, the text of each."""

    lines: tuple[Line, ...]
    macros: Mapping[str, str]


def preprocess(text: str, defined: frozenset[str], knows_header: Callable[[str], bool]) -> Preprocessed:
    """Carry out the directives of a script. defined: names that conditions find. Raises OptprobeError, pointing."""
    lines = text.split("\n")
    several = len(text.strip("\n").split("\n")) > 1
    kept: list[Line] = []
    macros: dict[str, str] = {}
    # One of (whether this branch is kept, whether any was, the place) for each open condition.
    open_: list[tuple[bool, bool, Place]] = []
    in_comment = False
    for number, line in enumerate(lines, 1):
        where = Place(legible(line), 0, len(line.rstrip()), number if several else 0)
        found = None if in_comment else _DIRECTIVE.match(line)
        in_comment = _ends_in_comment(line, in_comment)
        if number == 1 and line.startswith("#!"):
            found, line = None, ""
        if found is None:
            kept.append(Line(line if all(each for each, _, _ in open_) else "", where.number))
            continue
        kept.append(Line("", where.number))
        name, rest = found[1], found[2]
        if name in ("ifdef", "ifndef"):
            if not _NAME.match(rest):
                raise wrong(f"'#{name}' takes a name", where)
            holds = (rest in defined or rest in macros) == (name == "ifdef")
            open_.append((holds, holds, where))
        elif name in ("else", "endif"):
            if not open_:
                raise wrong(f"'#{name}' has no condition before it", where)
            _, any_, begun = open_.pop()
            if name == "else":
                open_.append((not any_, True, begun))
        elif not all(each for each, _, _ in open_):
            continue
        elif name == "include":
            header = _HEADER.match(rest)
            if header is None or not knows_header(header[1]):
                hint = "types come from the kernel itself; #define the constants that the script needs"
                raise wrong(f"the header {rest} is not known", where, hint)
        elif name == "define":
            _define(rest, macros, where)
        else:
            raise wrong(f"'#{name}' is not supported", where, "#define NAME value, #ifdef, #ifndef, #else, #endif")
    if open_:
        raise wrong("the condition has no '#endif'", open_[-1][2])
    return Preprocessed(tuple(kept), macros)


def _define(rest: str, macros: dict[str, str], where: Place) -> None:
    found = _DEFINE.match(rest)
    if found is None:
        raise wrong("'#define' takes a name", where)
    if found[2]:
        raise wrong("macros with arguments are not supported", where)
    macros[found[1]] = found[3].strip()


def _ends_in_comment(line: str, in_comment: bool) -> bool:
    """Return whether a comment is open at the end of a line."""
    at = 0
    while True:
        if in_comment:
            end = line.find("*/", at)
            if end < 0:
                return True
            in_comment, at = False, end + 2
        found = _COMMENT.search(line, at)
        if found is None or found[0] == "//":
            return False
        in_comment, at = found[0] == "/*", found.end()
