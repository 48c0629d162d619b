"""How much of a function could be optimized: every instruction asked about, each as if it were probed alone.

The same answer as `regions.region` gives, a stretch at a time, so that all the text of a kernel is swept in a minute:
on a stretch that is long enough, can be moved as a whole and glues nothing together, there is room for a branch that
serves any one of its instructions. What is not so plain is asked one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdb_optprobe.detours import obstacles
from gdb_optprobe.detours.ground import Ground, Grounds
from gdb_optprobe.detours.place import Limits, Place, Site
from gdb_optprobe.detours.planner import plan
from gdb_optprobe.detours.refusal import Reason, Refused
from gdb_optprobe.detours.regions import region
from gdb_optprobe.guest.text import Area
from gdb_optprobe.isa.base import Insn

_SPECIAL = (Area.ENTRY, Area.EARLY, Area.COPIED)
"""Text that a running guest may come to and that is refused as a whole."""
_NEVER = (Area.NOT_TEXT, Area.MODULE, Area.INIT)


def sweep(function: int, grounds: Grounds) -> Iterator[tuple[Insn, str]]:
    """`survey` of the function that starts there; special text is refused as a whole, freed text is passed over."""
    area, ground = grounds.text.area(function), grounds.at(function)
    if ground is None or area in _NEVER:
        return
    if area in _SPECIAL:
        code = refused_at(function, grounds)
        yield from ((insn, code) for stretch in stretches(ground) for insn in stretch)
        return
    forbidden = grounds.isa.forbidden(ground.function.own)
    for insn, code in survey(ground):
        yield insn, refused_at(insn.address, grounds) if insn.address in forbidden else code


def refused_at(address: int, grounds: Grounds) -> str:
    """Why no tier is possible there; "" where one is."""
    try:
        plan(Site(address), grounds)
    except Refused as refused:
        return refused.reason.code
    return ""


def survey(ground: Ground) -> Iterator[tuple[Insn, str]]:
    """Every instruction of the function that is no padding, with the code of why it is refused; "" where it is not."""
    for stretch in stretches(ground):
        if _is_plain(ground, stretch):
            yield from ((insn, "") for insn in stretch)
        else:
            yield from ((insn, code_at(ground, insn)) for insn in stretch)


def stretches(ground: Ground) -> Iterator[tuple[Insn, ...]]:
    """All of them, ascending, but those of padding."""
    found: list[Insn] = []
    for insn in ground.function.hot:
        if insn.data == ground.isa.breakpoint or ground.is_padding(insn):
            continue
        if found and not _follows(ground, found[-1], insn):
            yield tuple(found)
            found.clear()
        found.append(insn)
    if found:
        yield tuple(found)


def _follows(ground: Ground, before: Insn, insn: Insn) -> bool:
    """Whether `insn` belongs to the stretch that `before` is the last of, so far."""
    if before.end != insn.address:
        return False
    return ground.is_seamless(before, insn) or ground.seam(before, insn) is None


def code_at(ground: Ground, insn: Insn) -> str:
    """Why `insn` is refused, as the planner says it; "" where it is not."""
    found = region(Place(Site(insn.address), insn, ground, Limits()))
    return found.code if isinstance(found, Reason) else ""


def _is_plain(ground: Ground, stretch: Sequence[Insn]) -> bool:
    """Whether a branch serves any of them, whichever it is."""
    isa, needed, first = ground.isa, ground.isa.branch_size, stretch[0]
    size = sum([len(insn.data) for insn in stretch])
    if size < needed and size + len(ground.padding(stretch[-1], needed)) < needed:
        return False
    if ground.is_shadowed(first):
        return False
    if ground.plain.issuperset([insn.address for insn in stretch]):
        return True
    if ground.obstacle(first) is not None or any(isa.shadows(insn) for insn in stretch):
        return False
    return len(stretch) == 1 or obstacles.stuck(stretch, isa, ground.text) is None
