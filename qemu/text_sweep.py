"""Find the instructions of a function that could be optimized, each as if it were probed alone.

The results are those of `regions.region`, for one straight-line run at a time, so that all the text of a kernel is
swept in a minute: in a run that is long enough, can be moved as a whole and has no interrupt shadows, a branch fits for
each of its instructions. In any other run each instruction is planned by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdb_optprobe.detours import obstacles
from gdb_optprobe.detours.cfg import Cfg, CfgCache
from gdb_optprobe.detours.plan_request import PlanContext, PlanRequest, TierLimits
from gdb_optprobe.detours.planner import plan
from gdb_optprobe.detours.refusal import Reason, Refused
from gdb_optprobe.detours.regions import region
from gdb_optprobe.guest.text import Area
from gdb_optprobe.isa.base import Insn

_SPECIAL = (Area.ENTRY, Area.EARLY, Area.COPIED)
"""Text that a running guest may come to and that is refused as a whole."""
_NEVER = (Area.NOT_TEXT, Area.MODULE, Area.INIT)


def sweep(function: int, cfgs: CfgCache) -> Iterator[tuple[Insn, str]]:
    """Survey the function that starts there; special text is refused as a whole, freed text is skipped."""
    area, cfg = cfgs.text.area(function), cfgs.at(function)
    if cfg is None or area in _NEVER:
        return
    if area in _SPECIAL:
        code = refused_at(function, cfgs)
        yield from ((insn, code) for run in straight_line_runs(cfg) for insn in run)
        return
    forbidden = cfgs.isa.forbidden(cfg.function.own)
    for insn, code in survey(cfg):
        yield insn, refused_at(insn.address, cfgs) if insn.address in forbidden else code


def refused_at(address: int, cfgs: CfgCache) -> str:
    """Return the code of why no tier is possible there; "" if one is."""
    try:
        plan(PlanRequest(address), cfgs)
    except Refused as refused:
        return refused.reason.code
    return ""


def survey(cfg: Cfg) -> Iterator[tuple[Insn, str]]:
    """Yield every instruction that is not padding, with the code of why it is refused; "" if it is not."""
    for run in straight_line_runs(cfg):
        if _is_plain(cfg, run):
            yield from ((insn, "") for insn in run)
        else:
            yield from ((insn, code_at(cfg, insn)) for insn in run)


def straight_line_runs(cfg: Cfg) -> Iterator[tuple[Insn, ...]]:
    """Yield the runs of a function, ascending, without its padding."""
    found: list[Insn] = []
    for insn in cfg.function.hot:
        if insn.data == cfg.isa.breakpoint or cfg.is_padding(insn.address):
            continue
        if found and not _follows(cfg, found[-1], insn):
            yield tuple(found)
            found.clear()
        found.append(insn)
    if found:
        yield tuple(found)


def _follows(cfg: Cfg, before: Insn, insn: Insn) -> bool:
    """Return whether `insn` belongs to the run that `before` is the last of, so far."""
    if before.end != insn.address:
        return False
    return cfg.has_no_boundary(before, insn) or cfg.boundary(before, insn) is None


def code_at(cfg: Cfg, insn: Insn) -> str:
    """Return the planner's code of why `insn` is refused; "" if it is not."""
    found = region(PlanContext(PlanRequest(insn.address), insn, cfg, TierLimits()))
    return found.code if isinstance(found, Reason) else ""


def _is_plain(cfg: Cfg, run: Sequence[Insn]) -> bool:
    """Return whether a branch can serve each of these instructions, whichever is probed."""
    isa, needed, first = cfg.isa, cfg.isa.branch_size, run[0]
    size = sum([len(insn.data) for insn in run])
    if size < needed and size + len(cfg.padding(run[-1], needed)) < needed:
        return False
    if cfg.is_shadowed(first):
        return False
    if cfg.plain.issuperset([insn.address for insn in run]):
        return True
    if cfg.obstacle(first) is not None or any(isa.shadows(insn) for insn in run):
        return False
    return len(run) == 1 or obstacles.stuck(run, isa, cfg.text) is None
