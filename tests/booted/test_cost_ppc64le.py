"""What a count costs at most, over functions from all of a stock kernel's text: 16 instructions at an entry, else 30.

Counted is the code that a probe would have in the arena: the branch, the program, the branch back, and the copy
of the displaced instruction as far as it is longer. A hit runs all of it, or less where the copy branches away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.detour import build_count
from gdb_optprobe.detours.planner import Plan, PlanRequest, plan
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.linux.arch.ppc64le import image_padding
from gdb_optprobe.isa.ppc64le import PPC64LE
from qemu.guest import Guest
from qemu.memory_snapshot import take_snapshot
from qemu.survey import Subject, functions, subject_of
from tests.booted.conftest import FULL

ENTRIES, INSTRUCTIONS = (1, 101) if FULL else (31, 303)  # the functions of every so many text symbols
AT_ENTRY, ANYWHERE = 16, 30


@dataclass(frozen=True)
class Costs:
    """What hits cost in a kernel whose detours begin at `code` and whose counters begin at `data`."""

    subject: Subject
    cfgs: CfgCache
    code: int
    data: int

    def at(self, addresses: Iterable[int]) -> Iterator[tuple[int, int]]:
        """(address, instructions of a hit) of those that would be optimized."""
        for address in addresses:
            try:
                found = plan(PlanRequest(address), self.cfgs)
            except Refused:
                continue
            if found.tier is Tier.OPTIMIZED:
                yield address, self.of(found)

    def of(self, found: Plan) -> int:
        detour = build_count(found, PPC64LE, self.code, self.data)
        return 1 + len(PPC64LE.decode(detour.data, detour.address)) - len(found.displaced)

    def entries(self, every: int, traced: bool) -> Iterator[int]:
        """The local entries of functions with, or without, a tracer's site."""
        for start in functions(self.subject, every):
            function = self.subject.text.function(start)
            if function is not None and traced == bool(self.subject.text.ftrace_sites(start, function.end)):
                yield PPC64LE.entry(start, function.own)

    def instructions(self, every: int) -> Iterator[int]:
        for start in functions(self.subject, every):
            function = self.subject.text.function(start)
            yield from (insn.address for insn in function.hot) if function is not None else ()


@pytest.fixture
def costs(ppc_guest: Guest) -> Costs:
    subject = subject_of(ppc_guest)
    found = image_padding.find(take_snapshot(ppc_guest), subject.kernel)
    return Costs(subject, CfgCache(PPC64LE, subject.text), found.code[0][0], found.data[0])


def told(costs: Costs, what: str, found: dict[int, int]) -> int:
    """Print how many cost how much; the highest."""
    print(f"\n{what}, {len(found):,}:", *(f"{n} × {cost}" for cost, n in sorted(Counter(found.values()).items())))
    worst = max(found, key=lambda address: found[address])
    print(f"the highest: {found[worst]} at {costs.subject.text.spell(worst)}")
    return found[worst]


def test_cost_of_a_count_over_the_kernel_s_text(costs: Costs) -> None:
    traced, untraced = (dict(costs.at(costs.entries(ENTRIES, has))) for has in (True, False))
    anywhere = dict(costs.at(costs.instructions(INSTRUCTIONS)))
    assert len(traced) > 800 and len(untraced) > 100 and len(anywhere) > 8_000
    assert told(costs, "entries with a tracer's site", traced) <= AT_ENTRY
    assert told(costs, "entries without one", untraced) <= AT_ENTRY
    assert told(costs, "anywhere", anywhere) <= ANYWHERE
