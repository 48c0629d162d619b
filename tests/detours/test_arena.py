from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item, Journal, TableKind
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.slots import Alignment, Slot, Slots
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import FakeMemory

REACH = 1 << 31
CODE = (0xFFFFFFFF82000000, 0xFFFFFFFF82000100)
DATA = (0xFFFFFFFF7FE00000, 0xFFFFFFFF7FE00800)


def arena(fill: int | None = 0xCC) -> Arena:
    return Arena(Ranges((CODE,), (DATA,), fill))


def code_of(refused: pytest.ExceptionInfo[Refused]) -> str:
    return refused.value.reason.code


def test_counters_lie_side_by_side() -> None:
    there = arena()
    assert [there.allocate_data(8).address - DATA[0] for _ in range(256)] == list(range(0, 2048, 8))
    with pytest.raises(Refused) as refused:
        there.allocate_data(8)
    assert code_of(refused) == "ARENA_FULL"


def test_the_largest_piece_is_one_that_is_found() -> None:
    for start, end, most in ((0, 12, 8), (4, 24, 16), (4, 12, 0)):
        slots = Slots(start, end, 4, 8)
        assert slots.largest == most and (slots.find(most + 8) is None) and (not most or slots.find(most) is not None)


def test_new_code_is_of_whole_units_beside_an_earlier_version_s() -> None:
    there = Arena(Ranges((CODE,), (DATA,), 0xCC), 4, unit=8)
    assert there.code.claim(CODE[0] + 4, 20) == Slot(CODE[0] + 4, 20), "what was adopted stays where it is"
    assert there.code.largest == 0x100 - 24
    assert there.allocate_code(9, CODE[0], REACH) == Slot(CODE[0] + 24, 16)
    assert there.free_code(CODE[0], REACH) == CODE[0] + 40 and there.rounded(33) == 40
    assert there.code.claim(CODE[0] + 44, 12) is not None
    code, _ = there.allocate_counts(2, 40, 8, (CODE[0], CODE[0]), REACH, REACH)
    assert code == Slot(CODE[0] + 56, 80)
    assert there.allocate_code(4, CODE[0], REACH) == Slot(CODE[0] + 136, 8), "the four bytes at 40 are no unit"


def test_arena_full() -> None:
    there = arena()
    for _ in range(16):
        there.allocate_code(13, CODE[0], REACH)
    with pytest.raises(Refused) as refused:
        there.allocate_code(13, CODE[0], REACH)
    assert code_of(refused) == "ARENA_FULL" and "256 of 256" in refused.value.message


def test_what_is_aligned_begins_where_it_asks_and_code_elsewhere_if_it_must() -> None:
    there = Arena(Ranges(((CODE[0], CODE[0] + 0x2000),), ((DATA[0], DATA[0] + 0x3000),), 0xCC))
    there.allocate_data(8)
    table = there.allocate_data(0x1FE0, aligned=Alignment(0x1000, 24))
    assert (table.address + 24) % 0x1000 == 0
    assert there.allocate_data(8).address == DATA[0] + 8, "what is before it is still free"
    with pytest.raises(Refused):
        there.allocate_data(0x1FE0, aligned=Alignment(0x1000, 24))
    page = Alignment(0x1000, is_needed=False)
    first, second, third = (there.allocate_code(32, CODE[0], REACH, page).address - CODE[0] for _ in range(3))
    assert (first, second, third) == (0, 32, 64), "the second page is for what needs one"


def test_counters_begin_pages_until_half_of_a_range_is_left_in_one_piece() -> None:
    """A small table with each, as `-return -maxactive 8` has on aarch64; then a large one still has its place."""
    there = Arena(Ranges((CODE,), ((DATA[0], DATA[0] + 0x10000),), 0xCC))
    page, table = Alignment(0x1000, is_needed=False), Alignment(128, 24)
    found = list[int]()
    for _ in range(100):
        assert there.allocate_data(24 + 8 * 16, DATA[0], REACH, table).address % 128 == 128 - 24
        expected = there.check_room(8, DATA[0], REACH, page)
        found.append(there.allocate_data(8, DATA[0], REACH, page).address)
        assert found[-1] == expected
    assert [at for at in found if at % 0x1000 == 0] == [DATA[0] + 0x1000 * page for page in (*range(1, 8), 0)]
    there.allocate_data(0x1FD8, DATA[0], REACH, Alignment(0x1000, 24))
    assert not there.lacks


def test_trampolines_that_begin_pages_leave_pages_for_pads_and_the_reserve() -> None:
    there = Arena(Ranges(((CODE[0], CODE[0] + 0x10000),), ((DATA[0], DATA[0] + 0x2000),), 0xCC))
    page = Alignment(0x1000, is_needed=False)
    for index in range(100):
        expected = there.free_code(CODE[0], REACH, page)
        at = there.allocate_code(96, CODE[0], REACH, page).address
        assert (at % 0x1000 == 0) == (expected % 0x1000 == 0) == (index < 8), index
    there.allocate_pad(CODE[0], REACH)
    there.check_reserve(CODE[0], REACH)
    assert not there.lacks


def test_a_pad_without_a_page_lacks_memory_that_may_be_lent() -> None:
    there = Arena(Ranges(((CODE[0], CODE[0] + 0x1000),), (DATA,), 0xCC))
    there.allocate_code(32, CODE[0], REACH)
    with pytest.raises(Refused) as refused:
        there.allocate_pad(CODE[0], REACH)
    assert code_of(refused) == "ARENA_FULL"
    (lack,) = there.lacks
    assert lack.is_code and lack.size >= 0x1000 and lack.low <= CODE[0] < lack.high


def test_arena_out_of_reach() -> None:
    with pytest.raises(Refused) as refused:
        arena().allocate_code(13, 0xFFFFFFFFC0000000 - (1 << 33), REACH)
    assert code_of(refused) == "ARENA_OUT_OF_REACH"


def test_no_arena() -> None:
    with pytest.raises(Refused) as refused:
        Arena(Ranges((), ())).allocate_code(13, CODE[0], REACH)
    assert code_of(refused) == "ARENA_MISSING"


def test_a_released_slot_waits_for_its_proof() -> None:
    there = arena()
    first, second = (there.allocate_code(16, CODE[0], REACH) for _ in range(2))
    counter = there.allocate_data(8)
    for slot in (first, second):
        there.code.release(slot)
    there.data.release(counter)
    assert there.reclaim(lambda ranges: [ranges[0]]) == (second,), "somebody is still in the first"
    assert there.dirty() == (first,)
    assert there.allocate_code(16, CODE[0], REACH) == second
    assert there.allocate_data(8) != counter, "what runs in the first may still count"
    assert there.reclaim(lambda ranges: []) == (first,)
    assert there.allocate_code(16, CODE[0], REACH) == first
    assert there.allocate_data(8) == counter


def test_data_in_use_only_since_a_detour_was_left_do_not_wait_for_it() -> None:
    there = arena()
    first, second = (there.allocate_code(16, CODE[0], REACH) for _ in range(2))
    before = there.allocate_data(8)
    there.retire(first, Detour(first.address, b"", 0, ()))
    since = there.allocate_data(8)
    there.retire(second, Detour(second.address, b"", 0, ()))
    for counter in (before, since):
        there.data.release(counter)
    inside = [(first.address, first.end), (second.address, second.end)]
    assert there.reclaim(lambda ranges: inside) == ()
    assert there.data.dirty == (before, since), "the second was in use with both"
    assert there.reclaim(lambda ranges: inside[:1]) == (second,)
    assert there.data.dirty == (before,)
    assert there.reclaim(lambda ranges: ()) == (first,)
    assert there.data.dirty == ()


def test_data_wait_for_code_that_may_write_there_and_for_no_other() -> None:
    """A return address of a call that never ends keeps what it leads to, and nothing else."""
    there = arena()
    first, second = (there.allocate_code(16, CODE[0], REACH) for _ in range(2))
    table, counter, other = (there.allocate_data(8) for _ in range(3))
    there.set_references(first, [table.address, counter.address])
    for slot in (first, second):
        there.retire(slot, Detour(slot.address, b"", 0, ()))
    for data in (table, counter, other):
        there.data.release(data)
    inside = [(first.address, first.end), (second.address, second.end)]
    assert there.reclaim(lambda ranges: inside) == ()
    assert there.data.dirty == (table, counter, other), "of the second nothing is known"
    assert there.reclaim(lambda ranges: inside[:1]) == (second,)
    assert there.data.dirty == (table, counter)
    assert there.reclaim(lambda ranges: ()) == (first,)
    assert there.data.dirty == ()


def test_what_code_used_is_not_what_other_code_uses_in_its_place() -> None:
    there = arena()
    slot, data = there.allocate_code(16, CODE[0], REACH), there.allocate_data(8)
    there.set_references(slot, ())
    there.retire(slot, Detour(slot.address, b"", 0, ()))
    assert there.reclaim(lambda _: ()) == (slot,)
    assert there.allocate_code(16, CODE[0], REACH) == slot
    there.retire(slot, Detour(slot.address, b"", 0, ()))
    there.data.release(data)
    assert there.reclaim(lambda ranges: ranges) == () and there.data.dirty == (data,)


@pytest.mark.parametrize("used", [True, False])
def test_pads_and_routines_wait_for_code_that_may_come_there_and_for_no_other(used: bool) -> None:
    start = 0xFFFFFFFF82000000
    there = Arena(Ranges(((start, start + 0x4000),), ((start + 0x10000, start + 0x14000),), 0xCC))
    code, routine, page = Slot(start, 16), Slot(start + 64, 16), Slot(start + 0x1000, 0x1000)
    heads = {code: 0x1000, routine: routine.address}
    left = {slot: Detour(slot.address, b"\x90" * 16, head, ()) for slot, head in heads.items()}
    uses = {code.address: frozenset([routine.address, page.address] if used else [])}
    there.adopt(ArenaContents(code=left, pads=(page,), references=uses), FakeMemory(start, bytes(0x4000)), X86_64)
    freed = there.reclaim(lambda ranges: [(code.address, code.end)])
    assert (routine in freed, bool(there.pad_pages)) == (not used, used)
    assert code in there.reclaim(lambda ranges: ()) or not used
    assert (routine in there.dirty(), there.pad_pages) == (False, ())


def test_code_that_was_left_is_taken_up_again() -> None:
    there = arena()
    slot = there.allocate_code(16, CODE[0], REACH)
    detour = Detour(slot.address, b"\x90" * 16, 0, ())
    there.retire(slot, detour)
    assert there.reuse(lambda one: one.data == b"\xcc" * 16) is None
    assert there.reuse(lambda one: one.data == detour.data) == (slot, detour)
    assert there.reclaim(lambda _: ()) == () and not there.dirty() and there.code.used == 16
    there.retire(slot, detour)
    assert there.reclaim(lambda _: ()) == (slot,)


def test_foreign_bytes_lose_the_slot() -> None:
    there = arena()
    memory = FakeMemory(CODE[0], b"\xcc" * 15 + b"\x90" + b"\xcc" * 240)
    slot = there.allocate_code(16, CODE[0], REACH)
    with pytest.raises(TextChanged):
        there.code_patch(slot, b"\x90", memory, b"\xcc")
    again = there.allocate_code(16, CODE[0], REACH)
    assert again != slot
    patch = there.code_patch(again, b"\x90\x90", memory, b"\xcc")
    assert patch.old == b"\xcc" * 16 and patch.new == b"\x90\x90" + b"\xcc" * 14


def test_claimed_slots_are_not_handed_out() -> None:
    there = arena()
    assert there.code.claim(CODE[0], 20) == Slot(CODE[0], 24)
    assert there.code.claim(CODE[0] + 16, 16) is None
    assert there.allocate_code(16, CODE[0], REACH).address == CODE[0] + 24


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 70)), max_size=60))
def test_slots_never_overlap_and_nothing_is_lost(steps: list[tuple[bool, int]]) -> None:
    slots = Slots(0x1003, 0x1400, 16)
    held: list[Slot] = []
    for free, size in steps:
        if free and held:
            slot = held.pop(size % len(held))
            slots.release(slot)
            slots.reclaim([slot])
        elif (got := slots.allocate(size)) is not None:
            assert got.size >= size and got.address % 16 == 0
            assert all(got.end <= other.address or other.end <= got.address for other in held)
            held.append(got)
    assert slots.free_bytes + sum(slot.size for slot in held) == slots.size


def test_detour_that_is_left_is_known_until_nobody_is_inside() -> None:
    arena = Arena(Ranges(code=((0x1000, 0x2000),), data=()))
    slot = arena.allocate_code(16, 0x1800, 1 << 31)
    detour = Detour(slot.address, b"\x90" * 16, 0x1800, ())
    arena.retire(slot, detour)
    arena.reclaim(lambda ranges: ranges)
    assert arena.retired == (detour,) and arena.dirty() == (slot,)
    arena.reclaim(lambda _: ())
    assert not arena.retired and not arena.dirty()


def test_nothing_is_free_while_somebody_is_where_a_table_leads_on_from() -> None:
    arena = Arena(Ranges(code=((0x1000, 0x2000),), data=()))
    way, other = (arena.allocate_code(16, 0x1800, 1 << 31) for _ in range(2))
    for slot in (way, other):
        arena.retire(slot, Detour(slot.address, b"\x90" * 16, 0x1800, ()), dispatches=slot is way)
    assert arena.reclaim(lambda _: [(way.address, way.end)]) == ()
    assert set(arena.reclaim(lambda _: [])) == {way, other}
    again = arena.allocate_code(16, 0x1800, 1 << 31)
    arena.retire(again, Detour(again.address, b"\x90" * 16, 0x1800, ()))
    assert again == way and arena.reclaim(lambda _: [(0x1F00, 0x1F10)]) == (again,), "it is a way no more"


def test_what_an_earlier_session_s_code_calls_is_free_behind_that() -> None:
    handler, probed = 0x9000, 0x8000
    arena = Arena(Ranges(code=((0x1000, 0x2000),), data=()))
    heads = {0x1000: 0x1000, 0x1100: handler, 0x1200: probed}
    code = {Slot(at, 16): Detour(at, b"\x90" * 16, head, ()) for at, head in heads.items()}
    arena.adopt(ArenaContents(code=code), FakeMemory(0, b""), X86_64, [handler])
    assert arena.reclaim(lambda _: [(0x1200, 0x1210)]) == (), "who is in that may call the two others"
    assert arena.reclaim(lambda _: [(0x1100, 0x1110)]) == (), "who is before its table may come to that"
    assert {slot.address for slot in arena.reclaim(lambda _: [(0x1000, 0x1010)])} == {0x1100, 0x1200}
    assert [slot.address for slot in arena.reclaim(lambda _: [])] == [0x1000]


def test_pads_have_a_page_to_themselves_and_it_comes_back() -> None:
    start = 0xFFFFFFFF82000000
    arena = Arena(Ranges(((start + 0x40, start + 0x4000),), ((start + 0x10000, start + 0x14000),), 0xCC))
    detour = arena.allocate_code(40, start, REACH)
    pads = [arena.allocate_pad(start, REACH) for _ in range(257)]
    assert len({pad.address & -4096 for pad in pads}) == 2 and detour.address < pads[0].address
    others = {arena.allocate_code(900, start, REACH).address & -4096 for _ in range(6)}
    assert others.isdisjoint(page for page, _ in arena.pad_pages)
    assert arena.tickets(start, REACH) == arena.tickets(start, REACH)
    for pad in pads:
        arena.pads.release(pad)
    assert arena.reclaim(lambda ranges: [ranges[-1]]) == (), "somebody is at a pad, and goes on anywhere from there"
    assert arena.pad_pages
    assert set(arena.reclaim(lambda _: ())) == set(pads)
    assert not arena.pad_pages and arena.data.is_empty


LARGE = ((CODE[0], CODE[0] + 0x8000),), ((DATA[0], DATA[0] + 0x2000),)


def test_what_is_set_aside_is_there_for_another_session_and_for_nothing_else() -> None:
    there = Arena(Ranges(*LARGE, 0xCC), journal=Journal(FakeMemory(0, b"")))
    there.reserve(CODE[0], REACH)
    table = there.allocate_table(TableKind.TRAPS, 512, CODE[0], REACH)
    while there.data.largest:
        there.allocate_data(8)
    with pytest.raises(Refused):
        there.check_data(8, CODE[0], REACH)
    used = (slot for slots in there.data.slots for slot in slots.used)
    pieces = [slot for slot in used if f"data {slot.address:x}" in there.journal.state]
    other = Arena(Ranges(*LARGE, 0xCC))
    left = ArenaContents(data=tuple(pieces), tables={TableKind.TRAPS: table})
    other.adopt(left, FakeMemory(CODE[0], bytes(16)), X86_64)
    other.check_reserve(CODE[0], REACH)
    assert other.earlier_table(TableKind.TRAPS) == table
    assert other.adopt_table(TableKind.TRAPS, lambda size: size == 512) == table
    assert other.adopt_table(TableKind.TRAPS, lambda size: True) is None
    other.release_data()
    assert [slot for slots in other.data.slots for slot in slots.used] == [table]
    there.release_reserve()
    there.check_data(1024, CODE[0], REACH)


def test_the_journal_tells_of_the_table_that_there_is() -> None:
    there = Arena(Ranges(*LARGE, 0xCC))
    first, second = (there.allocate_table(TableKind.USER_TRAPS, 512, CODE[0], REACH) for _ in range(2))
    there.release_table(TableKind.USER_TRAPS, first)
    assert there.journal.state["table 2"] == second.address
    there.release_table(TableKind.USER_TRAPS, second)
    assert "table 2" not in there.journal.state


def test_what_is_told_of_a_table_of_calls_goes_with_its_memory() -> None:
    """A journal that tells of a table without memory is damaged for the GDB that finds it."""
    there = Arena(Ranges(*LARGE, 0xCC), journal=Journal(FakeMemory(0, b"")))
    slot = there.allocate_data(64, LARGE[0][0][0], 1 << 31)
    there.journal.put(Item.POINT, slot.address, [LARGE[0][0][0], 1, 0])
    there.journal.put(Item.CALLS, slot.address, [1, 0, 0, 0])
    there.data.release(slot)
    there.reclaim(lambda slots: ())
    assert not there.journal.state


def test_trampolines_of_far_functions_are_where_those_of_the_kernel_are() -> None:
    """Entries of all functions know them by one range, without what is lent near modules."""
    there, far = arena(), CODE[0] - 4 * REACH
    assert there.trampolines_near(far, REACH) == far, "where nothing is lent, there is one range alone"
    there.lender = cast(Any, SimpleNamespace(code_range=(CODE[0] + 0x10_0000, CODE[0] + 0x1000_0000)))
    assert there.code_bounds == (CODE[0], CODE[0] + 0x1000_0000)
    assert there.trampolines_near(CODE[0] - REACH // 2, REACH) == CODE[0] - REACH // 2
    assert there.trampolines_near(far, REACH) == CODE[0]


def test_code_that_several_call_serves_those_in_reach() -> None:
    there = arena()
    slot = Slot(CODE[0], 64)
    assert there.reaches(slot, CODE[0] - REACH + 4096, REACH)
    assert not there.reaches(slot, CODE[0] - REACH, REACH) and not there.reaches(slot, CODE[0] + REACH, REACH)


def test_routines_go_once_nothing_else_is_left() -> None:
    there = arena()
    slots = [there.allocate_code(16, CODE[0], REACH) for _ in range(3)]
    there.probe_reads = [(slot, Detour(slot.address, bytes(16), slot.address, ())) for slot in slots[:2]]
    there.retire_probe_read()
    assert len(there.probe_reads) == 2
    there.code.free(slots[2])
    there.retire_probe_read()
    assert there.probe_reads == [] and len(there.retired) == 2
