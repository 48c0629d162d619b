"""Which branch serves which probes: each straight-line run is divided into regions, one branch and one detour for each.

    run       ┌───────┬───────┬─────────────┬───────┬───────┬───────┬───────┐
              │ 3 B   │ 2 B ● │ 7 B         │ 3 B ● │ 3 B ● │ 4 B   │ 1 B ● │◄─ a jump lands behind
              └───────┴───────┴─────────────┴───────┴───────┴───────┴───────┘
    regions           └── A ────────────────┘── B ──┴───────┘── C ──────────┘
                       jmp                   jmp             jmp

    ●  probed: its program runs in the region's detour, just before the instruction's copy
An instruction that must stay where it is, and that execution comes to from one other alone, is served with that: its
program runs in the region's detour, behind the copy, on the way to it.

    run       ┌───────┬───────┐┌──────────────┐          ┌───────┬───────┐ · · · ┌────────┐
              │ 3 B   │ 4 B   ││ jump label ● │          │ test  │ je ───┼──────►│ ud2  ● │
              └───────┴───────┘└──────────────┘          └───────┴───────┘       └────────┘
    region    └── D ──────────┘ stays                    └── E ──────────┘        stays

A region begins at a probed instruction (A), takes as many as the branch needs and grows while the next one is probed
too (B). If the run ends too early the region begins further back, at an instruction that is not probed (C); if that
belongs to the region before, that one grows. A region of one instruction needs no quiescence: no saved PC can be inside
it, and no jump can lead there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.detours import obstacles
from gdb_optprobe.detours.cfg import Cfg
from gdb_optprobe.detours.plan_request import PlanContext
from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.isa.base import Insn


@dataclass(frozen=True, slots=True)
class Region:
    """displaced: the instructions that one branch displaces; the branch is at the first.

    original: the bytes it overwrites: of these instructions, and of padding behind them.
    ftrace:   the ftrace site there.
    stays:    why the probed instruction is none of them, but what one of them leads to; None if it is one.
    """

    displaced: tuple[Insn, ...]
    original: bytes
    ftrace: FtraceSite | None = None
    stays: Reason | None = None


def region(context: PlanContext) -> Region | Reason:
    """Return the region for the probed instruction, given the probes around it; or why there is none."""
    cfg, insn, needed = context.cfg, context.insn, context.cfg.isa.branch_size
    if cfg.is_shadowed(insn):
        before = cfg.before(insn)
        assert before is not None
        return Refusal.INTERRUPT_SHADOW.because(insn=before.text, address=cfg.text.spell(before.address))
    # What must stay is served where execution comes from.
    way = cfg.way_to(insn) or insn
    stays = cfg.obstacle(insn) if way is not insn else None
    fixed = _fixed(context, way)
    while way.address not in fixed:
        run = _run(cfg, way, fixed)
        division = _divide(context, run)
        found = next((found for found in division if way in found), None)
        # Every region is tried: each probe of this run must come to the same division.
        trouble = next((one for piece in division if (one := _unmovable_together(context, piece)) is not None), None)
        if trouble is not None:
            fixed[trouble[0].address] = trouble[1]
        elif found is None:
            return stays or _too_short(context, run, fixed)
        elif len(found) > 1 and context.limits.stacks_missing:
            return Refusal.STACKS_UNKNOWN.because(missing=context.limits.stacks_missing, needed=needed)
        else:
            covered = b"".join(one.data for one in found)
            padding = cfg.padding(found[-1], needed, context.request.breakpoints) if len(covered) < needed else b""
            return Region(found, (covered + padding)[:needed], cfg.ftrace_sites.get(found[0].address), stays)
    return stays or fixed[way.address]


def _fixed(context: PlanContext, around: Insn) -> dict[int, Reason]:
    """Return the instructions of the run of `around` that nothing may displace now, with the reasons."""
    cfg, spell = context.cfg, context.cfg.text.spell
    stops = context.request.breakpoints
    found: dict[int, Reason] = {}
    for insn in cfg.straight_line_run(around):
        own = insn.address == context.insn.address
        neighbour = None if own else context.request.neighbours(insn.address)
        if (obstacle := cfg.obstacle(insn)) is not None:
            found[insn.address] = obstacle
        elif stop := next((at for at in range(insn.address, insn.end) if at in stops), None):
            found[insn.address] = Refusal.USER_BREAKPOINT.because(breakpoint=spell(stop))
        elif neighbour is not None and (not neighbour.may_share or cfg.is_shadowed(insn)):
            found[insn.address] = Refusal.OVERLAPS_PROBE.because(number=neighbour.number, other=spell(insn.address))
    return found


def _run(cfg: Cfg, around: Insn, fixed: Mapping[int, Reason]) -> tuple[Insn, ...]:
    """Return the part of the run of `around` that has no fixed ones."""
    run: list[Insn] = []
    for insn in cfg.straight_line_run(around):
        if insn.address not in fixed:
            run.append(insn)
        elif insn.address < around.address:
            run.clear()
        else:
            break
    return tuple(run)


def _divide(context: PlanContext, run: Sequence[Insn]) -> list[tuple[Insn, ...]]:
    """Return the instructions of each region of the run."""
    cfg = context.cfg
    probed = [
        index
        for index, insn in enumerate(run)
        if insn is context.insn
        or context.request.neighbours(insn.address) is not None
        or any(_is_served(context, insn, at) for at in cfg.stays_at(insn))
    ]
    needed = cfg.isa.branch_size
    pieces = divide(
        sizes=[insn.size for insn in run],
        probed=probed,
        glued=[cfg.is_shadowed(insn) for insn in run],
        padding=lambda: len(cfg.padding(run[-1], needed, context.request.breakpoints)),
        needed=needed,
        # If saved PCs cannot be enumerated, or a branch fits each instruction, only regions of one are of use.
        joined=not context.limits.stacks_missing and needed > cfg.isa.alignment,
    )
    return [tuple(run[index] for index in piece) for piece in pieces if not cfg.isa.shadows(run[piece[-1]])]


def _is_served(context: PlanContext, way: Insn, at: int) -> bool:
    """Return whether there is a probe on what stays at `at`, and is served where `way` is displaced."""
    if at != context.insn.address:
        neighbour = context.request.neighbours(at)
        if neighbour is None or not neighbour.may_share:
            return False
    insn = context.cfg.function.own.get(at)
    return insn is not None and context.cfg.way_to(insn) is way


def _unmovable_together(context: PlanContext, piece: Sequence[Insn]) -> tuple[Insn, Reason] | None:
    """Return the instruction that cannot be moved together with the others (each alone can), and why."""
    isa = context.cfg.isa
    if len(piece) == 1 or all(obstacles.is_free(insn, isa) for insn in piece):
        return None
    return obstacles.stuck(piece, isa, context.cfg.text)


def divide(
    sizes: Sequence[int],
    probed: Sequence[int],
    glued: Sequence[bool],
    padding: Callable[[], int],
    needed: int,
    joined: bool = True,
) -> list[range]:
    """Return ranges of instructions, disjoint and ascending, that hold all of `probed` if that is possible.

    glued:   the instruction may not be separated from the one before: no range begins there, none ends before it.
    padding: bytes behind the last instruction that a branch may cover as well; called only where they decide, because
             to know them takes all jumps into the function.
    joined:  a range grows while the next instruction is probed.
    """
    found: list[range] = []
    count = len(sizes)

    def closed(end: int) -> int:
        while end < count and glued[end]:
            end += 1
        return end

    def reach(head: int, until: int) -> int | None:
        """Return the end of a range that begins at `head` and holds `until`; None if it is too short."""
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


def _too_short(context: PlanContext, run: Sequence[Insn], fixed: Mapping[int, Reason]) -> Reason:
    """Return why a branch does not fit: what is behind the run, because the bytes are missing there."""
    cfg, last = context.cfg, run[-1]
    after = cfg.function.own.get(last.end)
    if after is not None and after.address in fixed:
        return fixed[after.address]
    if cfg.isa.shadows(last):
        return Refusal.INTERRUPT_SHADOW.because(insn=last.text, address=cfg.text.spell(last.address))
    size = sum(insn.size for insn in run)
    return cfg.boundary(last, after) or Refusal.TOO_SHORT.because(
        size=size, needed=cfg.isa.branch_size, near=cfg.text.spell(last.end)
    )
