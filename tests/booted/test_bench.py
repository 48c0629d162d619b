"""What a hit of an optimized probe costs, counted by the guest's own clock; and a row of the bench that stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from qemu.bench_target import BENCH_TARGETS, BREAK, FUNCTION, PROGRAMS, RECORDS, BenchTarget, hits
from qemu.cache import say
from qemu.calls import Calls
from qemu.costs.estimate import Cost, cost
from qemu.costs.measure import Reading
from qemu.debugger import Debugger
from qemu.first_add import FirstAdd
from qemu.guest import Guest, Options
from qemu.reads import Reads
from qemu.rsp_proxy import RspProxy

MANY, FEW, CALLS = 50_000, 20, 2000
STDU_R1 = f"{FUNCTION}+32"
"""On ppc64le: the instruction that makes the frame, which Linux's optimized probe gets wrong."""


@dataclass(frozen=True)
class Measured:
    """A guest whose clock counts instructions, and what its reads take without a probe."""

    target: BenchTarget
    guest: Guest
    proxy: RspProxy
    debugger: Debugger
    reads: Reads
    unprobed: list[Reading]

    def optimized(self, location: str, clause: str = "") -> Cost:
        """A hit of a probe there, which must not stop the guest."""
        self.debugger(f"optprobe add {location} -tier optimized {clause}")
        self.debugger("optprobe commit")
        found = cost("optimized", self.reads.repeat(hits(clause, MANY), 2, "optprobe report -clear"), self.unprobed)
        probe, *_ = map(json.loads, self.debugger("optprobe report -json").splitlines())
        self.debugger("optprobe delete")
        assert not probe["dropped"]
        assert found.stops == pytest.approx(0, abs=0.001)
        return found


# Those of aarch64 are counted in the code: tests/handlers/test_costs_aarch64.py.
@pytest.fixture(scope="module", params=["x86_64", "ppc64le"])
def measured(request: pytest.FixtureRequest) -> Iterator[Measured]:
    options = Options(arch=request.param, icount="shift=0,sleep=off", append="mitigations=off")
    with (
        Guest.start(options) as guest,
        RspProxy(guest.gdb_socket) as proxy,
        Debugger(proxy.path) as debugger,
    ):
        reads = Reads(guest, debugger, proxy)
        debugger(f"set optprobe ring-records {RECORDS}")
        yield Measured(BENCH_TARGETS[request.param], guest, proxy, debugger, reads, reads.repeat(MANY, 2))
        assert guest.problems() == []


def test_an_optimized_count_at_a_functions_entry(measured: Measured) -> None:
    found = measured.optimized(FUNCTION)
    assert found.instructions is not None
    # Two on x86-64, ten on ppc64le; the timer's ticks make the rest of what is seen.
    assert 1 <= found.instructions <= measured.target.most


def test_an_optimized_count_elsewhere(measured: Measured) -> None:
    if measured.target.elsewhere is None:
        pytest.skip("a target is set for ppc64le")
    for place in (measured.target.behind, measured.target.emulated, STDU_R1):
        found = measured.optimized(place)
        assert found.instructions is not None
        assert 1 <= found.instructions <= measured.target.elsewhere, place


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_at_a_functions_entry(measured: Measured, name: str) -> None:
    most = dict(zip(PROGRAMS, measured.target.programs, strict=True))[name]
    found = measured.optimized(FUNCTION, PROGRAMS[name])
    assert found.instructions is not None
    print(f"{name}: {found.instructions:.1f}")
    assert 1 <= found.instructions <= most


def test_a_break_whose_condition_is_false(measured: Measured) -> None:
    found = measured.optimized(FUNCTION, BREAK)
    assert found.instructions is not None
    assert 1 <= found.instructions <= 0.05 * measured.unprobed[0].instructions


@pytest.mark.parametrize(("tier", "stops"), [("breakpoint", 2), ("emulated", 1)])
def test_stops_of_a_hit(measured: Measured, tier: str, stops: int) -> None:
    location = measured.target.emulated if tier == "emulated" else FUNCTION
    measured.debugger(f"optprobe add {location} -tier {tier}")
    found = measured.reads.measure(FEW)
    measured.debugger("optprobe delete")
    assert found.stops == pytest.approx(stops, abs=0.5)
    assert found.packets > 2 * stops


def test_programs_beside_linux_s_own_events(measured: Measured) -> None:
    """Traps are those that the processor takes: two become one where an instruction is emulated."""
    rows = {row.name: row for row in Calls(measured.guest, measured.debugger, measured.proxy, CALLS, 1).run((64,))}
    traps = {name: row.traps for name, row in rows.items()}
    assert traps == {
        "no probe": 0,
        "uprobe": 1,
        "uprobe, emulation off": 2,
        "uretprobe": 2,
        "uretprobe, emulation off": 3,
        "Linux's event": 1,
        "Linux's event, return": 2,
    }
    for ours, theirs in (("uprobe", "Linux's event"), ("uretprobe", "Linux's event, return")):
        assert 0 < rows[ours].instructions <= rows[theirs].instructions / 2


def test_what_the_first_add_of_a_boot_takes_is_printed(tmp_path: Path) -> None:
    """The same probes are put in each time."""
    lines = [*FirstAdd(Options(), tmp_path, say, glob="v*", boots=2).run()]
    kinds = [(kernel, add) for kernel in ("new", "known") for add in ("first", "again")]
    assert [(line.kernel, line.add) for line in lines] == kinds
    assert len({line.probes for line in lines}) == 1 and lines[0].probes > 100
    assert all(min(line.seconds, line.gdb, line.qemu) > 0 for line in lines)
