"""Find the code between a load that reserves memory and the store that is done only while the reservation holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gdb_optprobe.isa.base import Flow, Insn

_CONTINUES = frozenset((Flow.NEXT, Flow.JUMP, Flow.BRANCH))


def inside(
    code: Mapping[int, Insn], begins: Callable[[Insn], bool], ends: Callable[[Insn], bool]
) -> Mapping[int, Insn]:
    """Return the addresses in `code` (a function's) inside such a pair, with its store, each with the load.

    begins, ends: whether an instruction is such a load, or such a store.
    """
    found: dict[int, Insn] = {}
    for load in code.values():
        if begins(load):
            found |= dict.fromkeys(_behind(load, code, begins, ends), load)
    return found


def _behind(
    load: Insn, code: Mapping[int, Insn], begins: Callable[[Insn], bool], ends: Callable[[Insn], bool]
) -> set[int]:
    """Return the addresses that can run after `load` and before a store that belongs to it."""
    sources: dict[int, set[int]] = {}
    stores: list[int] = []
    pending = [(load.address, at) for at in _next(load)]
    while pending:
        source, at = pending.pop()
        seen = at in sources
        sources.setdefault(at, set()).add(source)
        insn = code.get(at)
        if seen or insn is None or begins(insn):
            continue
        if ends(insn):
            stores.append(at)
        else:
            pending += [(at, then) for then in _next(insn)]
    found: set[int] = set()
    while stores:
        at = stores.pop()
        if at not in found and at != load.address:
            found.add(at)
            stores += sources.get(at, ())
    return found


def _next(insn: Insn) -> Iterator[int]:
    if insn.flow in _CONTINUES:
        if insn.falls_through:
            yield insn.end
        if insn.target is not None:
            yield insn.target
