r"""The allowed text of each field of a probe, from any source: the journal in the guest, a saved file.

    journal ──read──► checked here ──► Spec ──checked again──► optprobe add LOCATION OPTIONS if EXPR do ACTION, …

A journal is the guest's, and may have been written by an attacker. Of all that a user may type, locations that GDB
evaluates are the worst: `*$_shell("…")` runs a command. So a journal holds names, offsets and numbers alone (`place`).
"""

from __future__ import annotations

import re

from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.handlers.source import outside
from gdb_optprobe.handlers.stack_walk import CODE, FRAMES
from gdb_optprobe.probes.spec import Spec

LONGEST = 1 << 16
"""Characters of any field."""
_NAME = r"[A-Za-z_.][A-Za-z0-9_.$]*"
_MODULE = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_NUMBER = r"(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})"
_FUNCTION = re.compile(rf"(?:{_MODULE}:)?{_NAME}(?: *\+ *{_NUMBER})?")
_HOME = re.compile(rf"{_MODULE}:(?:{_NAME}|\[{_MODULE}\])(?:\+{_NUMBER})?")
_GLOB = re.compile(rf"(?:{_MODULE}:\*?)?[A-Za-z0-9_.?\[][A-Za-z0-9_.$*?!\[\]-]*|{_MODULE}:\*")
_ADDRESS = re.compile(rf"\* *(?:{_NUMBER}|{_NAME} *(?:[-+] *{_NUMBER})?|\( *{_NAME} *(?:[-+] *{_NUMBER})? *\))")
# Behind the last colon there may be a slash: a Go symbol has its package's path.
_PROGRAM = re.compile(r"/.*:[^:]*[^:\s]")
_MAP_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_CALLED = re.compile(r"[A-Za-z_][\w.-]*")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_WORD = re.compile(r"(?<![\w$])(?:if|do)(?!\w)")
_NO_PLACE = "no place in a program is"
_OPTION = re.compile(r"(?<!\S)(?:--?[A-Za-z]|--(?!\S)|(?:if|do|entry)(?=[\s(]|$))")


class NotAField(ValueError):
    """Text that a field cannot have."""

    def __init__(self, what: str, text: str) -> None:
        shown = one_line(text)
        super().__init__(f"{what} '{shown if len(shown) <= 80 else shown[:80] + '…'}'")


def function(text: str) -> str:
    """Return FUNCTION, MODULE:FUNCTION, with +OFFSET or without. Raises NotAField."""
    return _matched(_FUNCTION, text, "no function is called")


def is_function(text: str) -> bool:
    return _FUNCTION.fullmatch(text) is not None


def home(text: str) -> str:
    """Return where in a module a probe is, "" for one that is in none. Raises NotAField."""
    return _matched(_HOME, text, "no place in a module is") if text else ""


def map_name(text: str) -> str:
    """Return the name of a map of the session, without its @; "" is one, and those of stacks are. Raises NotAField."""
    return text if text in ("", FRAMES.name, CODE.name) else _matched(_MAP_NAME, text, "no map of a session is")


def place(text: str, program: bool = False, glob: bool = False) -> str:
    """Return a location that names a place and evaluates nothing. Raises NotAField.

    program: BINARY:PLACE of a program. glob: MODULE:PATTERN is allowed too.
    """
    if program:
        bare = _bare(text, _NO_PLACE)
        # Options and clauses would end it, and so would a comma behind a colon.
        if _OPTION.search(bare) or ":" in text[: max(bare.rfind(","), 0)]:
            raise NotAField(_NO_PLACE, text)
        return _matched(_PROGRAM, text, _NO_PLACE)
    if len(text) > LONGEST:
        raise NotAField("no location is", text)
    if _ADDRESS.fullmatch(text) or event_name.parse(text) is not None or (glob and _GLOB.fullmatch(text)):
        return text
    return _matched(_FUNCTION, text, "no location is")


def name(text: str) -> str:
    """Return what `-name` gave, "" for nothing. Raises NotAField."""
    return _matched(_CALLED, text, "no probe is named") if text else ""


def tier(text: str) -> str:
    """Return what `-tier` gave, "" for nothing. Raises NotAField."""
    if text and text not in {tier.value for tier in Tier}:
        raise NotAField("no tier is", text)
    return text


def file(text: str) -> str:
    """Return what `-file` gave, "" for nothing. Raises NotAField."""
    return _plain(text, "no file is") if text else ""


def condition(text: str) -> str:
    """Return an expression that ends nowhere but at its end, "" for none. Raises NotAField."""
    if text and (_WORD.search(_bare(text, "no condition is")) or not text.strip()):
        raise NotAField("no condition is", text)
    return text


def action(text: str) -> str:
    """Return one action. Raises NotAField."""
    bare = _bare(text, "no action is")
    if not text.strip() or "," in bare or _WORD.search(bare):
        raise NotAField("no action is", text)
    return text


def number(value: object, below: int, least: int = 0) -> int:
    """Return a whole number, `least` at least. Raises NotAField."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < below:
        raise NotAField("no number there is", str(value)[:40] if isinstance(value, int | str) else type(value).__name__)
    return value


def kept(location: str, address: int, program: bool = False, glob: bool = False) -> str:
    """Return a typed location as the journal has it: as it is, or the address that it led to. `place` takes it.

    An address in a program is in none that can be found again: its path is "/".
    """
    text = tidy(location)
    try:
        return place(text, program, glob)
    except NotAField:
        return f"/:{address:#x}" if program else f"*{address:#x}"


def checked(spec: Spec, location: str) -> None:
    """Raise OptprobeError where a command for a probe at `location` cannot have a field of `spec`."""
    try:
        _plain(location, "no location is")
        name(spec.name), tier(spec.tier), file(spec.file), condition(tidy(spec.condition))
        if spec.entry_condition is not None:
            condition(tidy(spec.entry_condition.text))
        for part in (*spec.actions, *(each.text for each in spec.entry_actions)):
            action(tidy(part))
    except NotAField as wrong:
        raise OptprobeError(str(wrong)) from None


def tidy(text: str) -> str:
    """Return typed text as one line of printable characters that means the same.

    In quotes, characters that are not printable become escapes as in C; elsewhere white space becomes a space.
    """
    text = text.strip()
    if text.isprintable():
        return text
    bare = _unquoted(text)
    return "".join(" " if at in bare and each.isspace() else one_line(each) for at, each in enumerate(text))


def _matched(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(_plain(text, what)):
        raise NotAField(what, text)
    return text


def _plain(text: str, what: str) -> str:
    """One line."""
    if not isinstance(text, str) or not text.isprintable() or len(text) > LONGEST:
        raise NotAField(what, text if isinstance(text, str) else type(text).__name__)
    return text


def _bare(text: str, what: str) -> str:
    """Return the text outside quotes and brackets, with spaces for the rest."""
    try:
        bare = frozenset(outside(_plain(text, what)))
    except OptprobeError:
        raise NotAField(what, text) from None
    return "".join(each if at in bare else " " for at, each in enumerate(text))


def _unquoted(text: str) -> frozenset[int]:
    """Return the places of `text` that no quotes are around."""
    quoted = (range(*found.span()) for found in _QUOTED.finditer(text))
    return frozenset(range(len(text))).difference(*quoted)
