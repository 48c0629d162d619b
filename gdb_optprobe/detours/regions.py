"""Which branch serves which probes: each stretch is divided into regions, one branch and one detour for each.

    stretch   ┌───────┬───────┬─────────────┬───────┬───────┬───────┬───────┐
              │ 3 B   │ 2 B ● │ 7 B         │ 3 B ● │ 3 B ● │ 4 B   │ 1 B ● │◄─ a jump lands behind
              └───────┴───────┴─────────────┴───────┴───────┴───────┴───────┘
    regions           └── A ────────────────┘── B ──┴───────┘── C ──────────┘
                       jmp                   jmp             jmp

    ●  probed: its program runs in the region's detour, just before the instruction's copy

A region begins at a probed instruction (A), takes as many as the branch needs and goes on while the next one is probed
too (B). Where the stretch ends too early it begins further back, at an instruction that is not probed (C); where that
belongs to the region before, that one grows. A region of one instruction needs no wait: nobody can be parked inside, no
jump can land there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.detours import obstacles
from gdb_optprobe.detours.place import Place
from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.isa.base import Insn


@dataclass(frozen=True, slots=True)
class Region:
    """displaced: the instructions one branch displaces, the first where it stands.

    original: the bytes it overwrites: of these instructions, and of padding behind them.
    ftrace:   the tracer's site there.
    """

    displaced: tuple[Insn, ...]
    original: bytes
    ftrace: FtraceSite | None = None

    @property
    def waits(self) -> bool:
        """Whether somebody may be inside, so that the branch must not be written before nobody is."""
        return len(self.displaced) > 1


def region(place: Place) -> Region | Reason:
    """The region that serves `place`, given the probes around it; why there is none."""
    ground, insn = place.ground, place.insn
    if ground.is_shadowed(insn):
        before = ground.before(insn)
        assert before is not None
        return Refusal.INTERRUPT_SHADOW.because(insn=before.text, address=ground.text.spell(before.address))
    fixed = _fixed(place)
    while insn.address not in fixed:
        run = _run(place, fixed)
        division = _divide(place, run)
        found = next((found for found in division if insn in found), None)
        # Every region is tried: all who look at this stretch must come to the same division.
        trouble = next((one for piece in division if (one := _trouble(place, piece)) is not None), None)
        if trouble is not None:
            fixed[trouble[0].address] = trouble[1]
        elif found is None:
            return _too_short(place, run, fixed)
        elif len(found) > 1 and place.limits.stacks_missing:
            return Refusal.STACKS_UNKNOWN.because(missing=place.limits.stacks_missing, needed=ground.isa.branch_size)
        else:
            return _region(place, found)
    return fixed[insn.address]


def _region(place: Place, displaced: tuple[Insn, ...]) -> Region:
    ground, needed = place.ground, place.ground.isa.branch_size
    covered = b"".join(insn.data for insn in displaced)
    padding = ground.padding(displaced[-1], needed, place.site.breakpoints) if len(covered) < needed else b""
    return Region(displaced, (covered + padding)[:needed], ground.site(displaced[0]))


def _fixed(place: Place) -> dict[int, Reason]:
    """The instructions of the stretch that nothing may displace now, with the reasons."""
    ground, spell = place.ground, place.ground.text.spell
    stops = place.site.breakpoints
    found: dict[int, Reason] = {}
    for insn in ground.stretch(place.insn):
        own = insn.address == place.address
        neighbour = None if own else place.site.neighbours(insn.address)
        if (obstacle := ground.obstacle(insn)) is not None:
            found[insn.address] = obstacle
        elif stop := next((at for at in range(insn.address, insn.end) if at in stops), None):
            found[insn.address] = Refusal.USER_BREAKPOINT.because(breakpoint=spell(stop))
        elif neighbour is not None and (not neighbour.joins or ground.is_shadowed(insn)):
            found[insn.address] = Refusal.OVERLAPS_PROBE.because(number=neighbour.number, other=spell(insn.address))
    return found


def _run(place: Place, fixed: Mapping[int, Reason]) -> tuple[Insn, ...]:
    """The part of the stretch around the probed instruction that is free of fixed ones."""
    run: list[Insn] = []
    for insn in place.ground.stretch(place.insn):
        if insn.address not in fixed:
            run.append(insn)
        elif insn.address < place.address:
            run.clear()
        else:
            break
    return tuple(run)


def _divide(place: Place, run: Sequence[Insn]) -> list[tuple[Insn, ...]]:
    ground = place.ground
    probed = [
        index
        for index, insn in enumerate(run)
        if insn is place.insn or place.site.neighbours(insn.address) is not None
    ]
    needed = ground.isa.branch_size
    pieces = divide(
        sizes=[insn.size for insn in run],
        probed=probed,
        glued=[ground.is_shadowed(insn) for insn in run],
        padding=lambda: len(ground.padding(run[-1], needed, place.site.breakpoints)),
        needed=needed,
        # Where nobody can wait, or need wait for a branch fits each, only a region of one instruction is of use.
        joined=not place.limits.stacks_missing and needed > ground.isa.alignment,
    )
    return [tuple(run[index] for index in piece) for piece in pieces if not ground.isa.shadows(run[piece[-1]])]


def _trouble(place: Place, piece: Sequence[Insn]) -> tuple[Insn, Reason] | None:
    """The instruction that cannot be moved together with the others (each alone can), and why."""
    isa = place.ground.isa
    if len(piece) == 1 or all(obstacles.is_free(insn, isa) for insn in piece):
        return None
    return obstacles.stuck(piece, isa, place.ground.text)


def divide(
    sizes: Sequence[int],
    probed: Sequence[int],
    glued: Sequence[bool],
    padding: Callable[[], int],
    needed: int,
    joined: bool = True,
) -> list[range]:
    """Ranges of instructions, disjoint and ascending, that hold all of `probed` where that is possible.

    glued:   the instruction may not be separated from the one before: no range begins there, none ends before it.
    padding: bytes behind the last instruction that a branch may cover as well; asked only where they decide, for to
             know them takes all that leads into the function.
    joined:  a range goes on while the next one is probed.
    """
    found: list[range] = []
    count = len(sizes)

    def closed(end: int) -> int:
        while end < count and glued[end]:
            end += 1
        return end

    def reach(head: int, until: int) -> int | None:
        """Where a range that begins at `head` and holds `until` ends; None where it is too short."""
        end, size = head, 0
        while end < count and (size < needed or end <= until):
            size += sizes[end]
            end += 1
        return closed(end) if size >= needed or (end == count and size + padding() >= needed) else None

    for index in probed:
        free = found[-1].stop if found else 0
        if index < free:
            continue
        if joined and found and index == free:
            found[-1] = range(found[-1].start, closed(index + 1))
            continue
        heads = (head for head in range(index, free - 1, -1) if not glued[head])
        begun = next(((head, end) for head in heads if (end := reach(head, index)) is not None), None)
        if begun is not None:
            found.append(range(*begun))
        elif found:
            found[-1] = range(found[-1].start, closed(index + 1))
    return found


def _too_short(place: Place, run: Sequence[Insn], fixed: Mapping[int, Reason]) -> Reason:
    """Why a branch does not fit: what stands behind the run, for it is there that the bytes are missing."""
    ground, last = place.ground, run[-1]
    after = ground.function.own.get(last.end)
    if after is not None and after.address in fixed:
        return fixed[after.address]
    if ground.isa.shadows(last):
        return Refusal.INTERRUPT_SHADOW.because(insn=last.text, address=ground.text.spell(last.address))
    size = sum(insn.size for insn in run)
    return ground.seam(last, after) or Refusal.TOO_SHORT.because(
        size=size, needed=ground.isa.branch_size, near=ground.text.spell(last.end)
    )
