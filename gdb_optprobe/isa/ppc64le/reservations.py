"""Find the places where nothing may stop: while a reservation is held, and what a kernel knows by its address.

Between a load-and-reserve and its store-conditional (Power ISA 3.1B, Book II, 1.7.2):

1: ldarx  r9,0,r3        the reservation begins
   add    r9,r4,r9       inside: a probe's program would replace the reservation with its own, and the return
   stdcx. r9,0,r3        from a trap ends it (interrupt_64.S): either way the store fails, for ever
   bne-   1b             outside again
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gdb_optprobe.isa.base import Flow, Hazard, Insn
from gdb_optprobe.isa.ppc64le.fields import TRAP, X31, opcode, to_bytes, word_of, xo
from gdb_optprobe.isa.ppc64le.relocator import hazard

_LOADS = frozenset((52, 116, 20, 84, 276))  # lbarx lharx lwarx ldarx lqarx
_STORES = frozenset((694, 726, 150, 214, 182))
_CONTINUES = frozenset((Flow.NEXT, Flow.JUMP, Flow.BRANCH))


_NEVER = (Hazard.TRAP, Hazard.SYSTEM)


def forbidden(code: Mapping[int, Insn]) -> Mapping[int, Hazard]:
    """Return the addresses in `code` (a function's) where no tier is possible, with the reasons.

    Beside reservations: traps, which kernels know by their addresses, and what enters or leaves a kernel or changes the
    machine's state. A trap word that may be a breakpoint is left out.
    """
    breakpoint = to_bytes(TRAP)
    found = {insn.address: why for insn in code.values() if (why := hazard(insn)) in _NEVER and insn.data != breakpoint}
    return found | dict.fromkeys(reserved(code), Hazard.RESERVED)


def reserved(code: Mapping[int, Insn]) -> Mapping[int, Insn]:
    """Return the addresses in `code` (a function's) inside such a pair, with its store, each with the load.

    Nothing may run or stop there.
    """
    found: dict[int, Insn] = {}
    for load in code.values():
        if _is(load, _LOADS):
            found |= dict.fromkeys(_inside(load, code), load)
    return found


def _is(insn: Insn, extended: frozenset[int]) -> bool:
    word = word_of(insn.data)
    return opcode(word) == X31 and xo(word) in extended


def _inside(load: Insn, code: Mapping[int, Insn]) -> set[int]:
    """Return the addresses that can run after `load` and before a store that belongs to it."""
    sources: dict[int, set[int]] = {}
    stores: list[int] = []
    pending = [(load.address, at) for at in _next(load)]
    while pending:
        source, at = pending.pop()
        seen = at in sources
        sources.setdefault(at, set()).add(source)
        insn = code.get(at)
        if seen or insn is None or _is(insn, _LOADS):
            continue
        if _is(insn, _STORES):
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
