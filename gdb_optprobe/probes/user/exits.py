"""Where a function of a program returns, by following its code from its entry: the places of its return instruction.

    entry ─► … ─► bl, which returns ─► b.cond ─┬─► ret        a place
                                               └─► b …        inside: on there; outside: another function returns for it
All ways must be known. So a function is refused that continues elsewhere, or where nothing is decoded, jumps through a
register, or returns by other instructions. A call with which a part of it ends is one that never returns.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.user import UserTrapping
from gdb_optprobe.isa.user_returns import Leaving

LARGEST = 1 << 16
"""Bytes of a function, at most."""
COLD = ".cold"
"""Behind the name of a function: that of a part of it, which is apart (GCC)."""
HINT = "probe what calls it, or an instruction"


def exits(program: Program, entry: int, traps: UserTrapping, leaving: Leaving) -> tuple[int, ...]:
    """Return the addresses of the instructions by which calls of the function at `entry` return, ascending.
    Raises OptprobeError where they are not all known.
    """
    bounds = program.function(entry)
    if bounds is None:
        raise OptprobeError(
            f"where {program.spell(entry)} returns is not known: it has no symbol", "-file PROGRAM WITH SYMBOLS"
        )
    parts = [(entry, bounds[1])]
    code = _code(program, parts[0], traps)
    left, seen, found = [entry], set[int](), list[int]()
    while left:
        at = left.pop()
        if at in seen:
            continue
        seen.add(at)
        if not any(start <= at < end for start, end in parts):
            parts.append(_cold(program, entry, at))
            code = _code(program, parts[-1], traps) | code
        if at not in code:
            where = program.spell(at)
            raise OptprobeError(f"{program.spell(entry)} continues at {where}, which cannot be decoded", HINT)
        insn = code[at]
        if insn.flow is Flow.RETURN:
            if insn.data != leaving.insn:
                raise _unknown(program, entry, insn)
            found.append(at)
        elif insn.flow is Flow.INDIRECT_JUMP:
            raise _unknown(program, entry, insn)
        elif insn.flow is not Flow.TRAP:
            left += _next(program, entry, insn, parts)
    if entry in found:
        raise OptprobeError(f"{program.spell(entry)} returns at once", "probe it without -return")
    if not found:
        raise OptprobeError(f"{program.spell(entry)} never returns", "probe it without -return")
    return tuple(sorted(found))


def _next(program: Program, entry: int, insn: Insn, parts: Sequence[tuple[int, int]]) -> list[int]:
    """Return where execution continues in the function, which has these parts. Raises OptprobeError."""
    to: list[int] = []
    if insn.flow in (Flow.JUMP, Flow.BRANCH):
        assert insn.target is not None, "it is direct"
        if insn.target == entry:
            raise OptprobeError(f"{program.spell(entry)} jumps back to where it is entered", HINT)
        to.append(insn.target)
    is_call = insn.flow in (Flow.CALL, Flow.INDIRECT_CALL)
    is_last = insn.end == next(end for start, end in parts if start <= insn.address < end)
    if insn.flow is not Flow.JUMP and not (is_call and is_last):
        to.append(insn.end)
    return to


def _cold(program: Program, entry: int, at: int) -> tuple[int, int]:
    """Return start and end of a part of the function that is apart. Raises OptprobeError for another function."""
    bounds = program.function(at)
    if bounds is None or program.spell(bounds[0]) != program.spell(entry) + COLD:
        where = program.spell(at)
        raise OptprobeError(f"{program.spell(entry)} continues at {where}, which returns in its place", HINT)
    return bounds


def _code(program: Program, span: tuple[int, int], traps: UserTrapping) -> dict[int, Insn]:
    """Decode. Raises OptprobeError."""
    start, end = span
    if end - start > LARGEST:
        raise OptprobeError(f"{program.spell(start)} is too large: where it returns is not looked for", HINT)
    return {insn.address: insn for insn in traps.decode(program.text(start, end - start), start, program.bits)}


def _unknown(program: Program, entry: int, insn: Insn) -> OptprobeError:
    where = program.spell(insn.address)
    return OptprobeError(f"{program.spell(entry)} may return by {insn.text} at {where}, where no trap is put", HINT)
