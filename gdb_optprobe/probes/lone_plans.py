"""Plans that follow from one instruction and the code of its function: of calls through pointers, which graphs watch.

    a function's code, the same as when it was planned ──► which instruction, what a register points to
    the guest's tables, now                            ──► nothing else writes there, nor knows the address
A branch that displaces this instruction alone needs no quiescence, and no jump leads inside it. What it kills is all
that is dead: what follows in the function is not asked. So neither the rest of the text nor its decoding is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.record import Isa


@dataclass(frozen=True, slots=True)
class Lone:
    """An instruction that a branch may displace alone. size: in bytes. base: see Plan."""

    size: int
    base: int | None = None


def lone_plans(wanted: Mapping[int, Lone], guest: Guest) -> Iterator[Plan]:
    """Yield the plans of the instructions at these addresses, as far as they are such now."""
    places = [(at, at + wanted[at].size) for at in sorted(wanted)]
    for (at, end), data in zip(places, guest.steady(places), strict=True):
        if data is None or end - at < guest.isa.branch_size:
            continue
        insns = guest.isa.decode(data, at)
        if len(insns) == 1 and insns[0].end == end:
            yield _plan(insns[0], guest.isa, wanted[at].base)


def lone(plans: Iterable[Plan], isa: Isa) -> dict[int, Lone]:
    """Return those of `plans` that follow from their instruction alone."""
    return {
        one.address: Lone(one.insn.size, one.base)
        for one in plans
        if one.insn.size >= isa.branch_size and one == _plan(one.insn, isa, one.base)
    }


def _plan(insn: Insn, isa: Isa, base: int | None) -> Plan:
    dead = isa.dead_at(insn.address, {insn.address: insn})
    return Plan(insn.address, Tier.OPTIMIZED, (insn,), original=insn.data[: isa.branch_size], dead=dead, base=base)
