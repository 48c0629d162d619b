"""How much of a function could be optimized: every instruction asked about, each as if it were probed alone.

The same answer as `regions.region` gives, a stretch at a time, so that all the text of a kernel is swept in a minute:
on a stretch that is long enough, can be moved as a whole and glues nothing together, there is room for a branch that
serves any one of its instructions. What is not so plain is asked one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdb_optprobe.detours import obstacles
from gdb_optprobe.detours.ground import Ground
from gdb_optprobe.detours.place import Limits, Place, Site
from gdb_optprobe.detours.refusal import Reason
from gdb_optprobe.detours.regions import region
from gdb_optprobe.isa.base import Insn


def survey(ground: Ground) -> Iterator[tuple[Insn, str]]:
    """Every instruction of the function that is no padding, with the code of why it is refused; "" where it is not."""
    for stretch in stretches(ground):
        if ground.obstacle(stretch[0]) is None and _is_plain(ground, stretch):
            yield from ((insn, "") for insn in stretch)
        else:
            yield from ((insn, code_at(ground, insn)) for insn in stretch)


def stretches(ground: Ground) -> Iterator[tuple[Insn, ...]]:
    """All of them, ascending, but those of padding."""
    seen = ground.function.start
    for insn in ground.function.hot:
        if insn.address >= seen and insn.data != ground.isa.breakpoint and not ground.is_padding(insn):
            stretch = ground.stretch(insn)
            seen = stretch[-1].end
            yield stretch


def code_at(ground: Ground, insn: Insn) -> str:
    """Why `insn` is refused, as the planner says it; "" where it is not."""
    found = region(Place(Site(insn.address), insn, ground, Limits()))
    return found.code if isinstance(found, Reason) else ""


def _is_plain(ground: Ground, stretch: Sequence[Insn]) -> bool:
    isa, needed = ground.isa, ground.isa.branch_size
    size = sum(insn.size for insn in stretch)
    if size < needed and size + len(ground.padding(stretch[-1], needed)) < needed:
        return False
    if any(isa.shadows(insn) for insn in stretch) or ground.is_shadowed(stretch[0]):
        return False
    if len(stretch) == 1 or all(obstacles.is_free(insn, isa) for insn in stretch):
        return True
    return obstacles.stuck(stretch, isa, ground.text) is None
