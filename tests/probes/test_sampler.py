"""What is read of probes at any time is what a report has; words, and nothing else, are asked of the memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers.ir import Constant
from gdb_optprobe.maps import aggregate
from gdb_optprobe.probes.sampler import Sampler, is_chosen
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.views import ObjectView
from tests.fake_guest import MEETING, PLAIN, THREADS, TRACED, FakeGuest, Registers, program
from tests.probes.test_batch import functions, run

SMALL = Settings(table_keys=2, ring_records=2)
PROBES = (
    Spec(f"*{PLAIN:#x}"),
    Spec(f"*{PLAIN:#x}", actions=("count by $rsp", "sum($rcx) by ($rsp, $rcx)", "hist($rax)"), name="mine"),
    Spec(f"*{TRACED:#x}", actions=('print("%ld", $rcx)', "max($rcx)")),
    Spec(f"*{TRACED:#x}", Kind.KRETPROBE),
    Spec(f"*{PLAIN:#x}", tier="breakpoint"),
)


def probed() -> tuple[FakeGuest, Session]:
    guest = program()
    guest.settings = SMALL
    guest.names = NamesAt(Registers(guest.isa), cpu=Constant(0))
    session = guest.session()
    for spec in PROBES:
        session.add(spec)
    return guest, session


class Reading:
    """The guest's memory, of which it is kept what was read; it cannot be written."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.reads = memory, list[tuple[int, int]]()

    def read(self, address: int, size: int) -> bytes:
        self.reads.append((address, size))
        return self.memory.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        raise AssertionError("nothing is written")


def values(objects: Sequence[ObjectView]) -> dict[str, object]:
    return {
        one.action: {row.key: aggregate.value(one.aggregate, row.words) for row in one.rows} for one in objects
    }


def sampled(session: Session, sampler: Sampler) -> tuple[Reading, list[int]]:
    memory = Reading(session.target.guest.machine)
    return memory, list(sampler.sample(memory).hits)


def test_each_row_has_what_a_report_has() -> None:
    guest, session = probed()
    sampler = session.sampler()
    assert sampler.numbers == [view.number for view in session.views()]
    for _ in range(3):
        for number in range(THREADS):
            guest.run_to(number, MEETING)
        memory, hits = sampled(session, sampler)
        reports = session.reports()
        assert hits == [view.hits for view in reports] and sum(hits) > 0
        sample = sampler.sample(memory)
        for place, view in enumerate(reports):
            lost = view.dropped + (view.missed or 0) + sum(one.lost or 0 for one in view.objects)
            assert sample.lost.get(place, 0) == lost
        shown = sampler.gathered(range(len(hits)), memory, runs=True)
        assert [values(one.objects) for one in shown] == [values(view.objects) for view in reports]
    assert any(sample.lost.values()), "the ring has two places"


def test_rows_of_a_glob_are_read_as_one_array() -> None:
    guest = functions()
    session = guest.session()
    session.add(Spec("f*", glob=True))
    sampler = session.sampler()
    run(guest)
    memory, hits = sampled(session, sampler)
    assert hits == [view.hits for view in session.reports()] and sum(hits) > 0
    assert len(memory.reads) < len(hits) / 10
    assert sampler.labels == [view.symbol for view in session.views()]


def test_shared_maps_are_read_once_for_all_rows() -> None:
    guest = functions()
    session = guest.session()
    session.add(Spec("f1*", glob=True, actions=("count by $rsp",)))
    sampler = session.sampler()
    run(guest)
    memory = Reading(guest.machine)
    shown = sampler.gathered(range(len(sampler.labels)), memory, runs=False)
    assert [values(one.objects) for one in shown] == [values(view.objects) for view in session.reports()]
    assert len(set(memory.reads)) == len(memory.reads)


def test_a_glob_chooses_rows_by_function_and_by_name() -> None:
    _, session = probed()
    names = {"mine": [2], "nothing*": [], "": [1, 2, 3, 4, 5]}
    assert {pattern: session.sampler(pattern).numbers for pattern in names} == names
    label = session.sampler("mine").labels[0]
    assert session.sampler(label).numbers == [1, 2, 5]


@pytest.mark.parametrize(
    ("pattern", "is_it"), [("vfs_*", True), ("vfs_read", True), ("vfs_read%return", True), ("vfs_write", False)]
)
def test_an_offset_and_a_return_are_no_part_of_the_function(pattern: str, is_it: bool) -> None:
    assert is_chosen(pattern, "vfs_read%return") is is_it
    assert is_chosen(pattern, "vfs_read+0x10") is (is_it and "%" not in pattern)
