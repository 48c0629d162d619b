"""Probes that another version left in a guest: what it wrote is read, and what is written is what it would have read.

    journal.txt   a record a line, as JSON; journal_counts.txt of counts that were added together, journal_blocks.txt of
                  the same as an earlier version noted them
    guest.txt     the memory of that guest: the journal's region, the detours, the branches, and what was counted
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours import lent_block
from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.arena_contents import Bounds, decode, restoring_patches
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item, Journal, TableKind
from gdb_optprobe.detours.lent_block import LentBlock
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.guest.linux.tracepoints import Tracepoint
from gdb_optprobe.handlers.ir import Map, Program, Update
from gdb_optprobe.handlers.lower_routine import caller_key
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.maps import journal_format
from gdb_optprobe.maps.aggregate import Count
from gdb_optprobe.maps.call_table import CallCounts, CallSlot
from gdb_optprobe.maps.ring import RingPosition
from gdb_optprobe.probes import arena_record
from gdb_optprobe.probes.arena_record import RecordedArena
from gdb_optprobe.probes.handler import HITS, Handler
from gdb_optprobe.probes.journal_records import (
    ProbeRecord,
    fingerprint,
    probe_value,
    read_block,
    read_probe,
    write_probe,
)
from gdb_optprobe.probes.leftovers import read_records
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.results import Results, Row
from gdb_optprobe.probes.rethook_records import read_rethooks, write_hits
from gdb_optprobe.probes.session_maps import SessionMaps
from gdb_optprobe.probes.shared_maps import MapsRecord, SharedMaps
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.tracepoint_handlers import EventHandler
from tests.golden import golden, left_in_guest
from tests.golden.left_in_guest import (
    BINARY,
    BLOCK,
    CODE,
    DATA,
    FILL,
    JOURNAL,
    KERNEL,
    MAIN,
    NOP5,
    PLACE_OF_BLOCK,
    READ,
    SIZES,
    SPECS,
    TEXT,
    WRITE,
    Guest,
    handler,
)


def listing(state: Mapping[str, Any]) -> str:
    """A record a line."""
    return "".join(f"{journal_format.body({key: value}).decode()}\n" for key, value in state.items())


def as_it_was() -> Guest:
    """The guest of guest.txt."""
    guest = Guest()
    for line in golden("guest.txt").splitlines():
        address, data = line.split(": ")
        byte, _, count = data.partition(" * ")
        guest.write(int(address, 16), bytes.fromhex(byte) * int(count or 1))
    return guest


def found() -> RecordedArena:
    guest = cast(Any, as_it_was())
    window = SimpleNamespace(
        orders=(9,), is_place=lambda place, order: place == PLACE_OF_BLOCK, is_mapped=lambda place, order, block: False
    )
    port: Any = SimpleNamespace(
        places=lambda machine, kernel: [left_in_guest.PLACE], loaded=(0, 0), window=lambda machine, kernel: window
    )
    left = arena_record.find_arena(guest, guest, cast(Any, None), port, left_in_guest.RECOVERED, X86_64)
    assert left is not None
    return left


def gathered(guest: Guest, one: ProbeRecord) -> Results:
    made = handler(one.spec)
    assert one.data is not None
    return Results.decode(made, guest.read(one.data, made.size), one.since)


def test_what_is_written() -> None:
    """The record of a uprobe has `waits`, as every one that a GDB wrote; the one in journal.txt has not."""
    written = listing(left_in_guest.leave(Guest()).state)
    assert written.replace('"pid":42,"waits":true,', '"pid":42,') == golden("journal.txt")


def test_what_is_written_of_blocks() -> None:
    assert listing(left_in_guest.leave_blocks(Guest()).state) == golden("journal_counts.txt")


def test_what_is_written_of_events() -> None:
    """Of one with a handler that has the arguments alone, of one that has the fields assigned, with its counter, and of
    both kinds where a module is held.
    """
    slot, counter, hold = Slot(CODE[0], 16), Slot(DATA[0], 8), Slot(DATA[0] + 16, 16)
    state = {}
    for event, missed, held in (
        ("rawtracepoint:sched_switch", None, None),
        ("tracepoint:sched:sched_wakeup", counter, None),
        ("rawtracepoint:kvm_exit", None, hold),
        ("tracepoint:kvm:kvm_exit", counter, hold),
    ):
        name = event_name.parse(event)
        assert name is not None
        code, of = Detour(slot.address, NOP5, slot.address, ()), KERNEL + 0x4000 if held is not None else 0
        tracepoint = Tracepoint(name.event, KERNEL + 0x80, of)
        handler = EventHandler(name, tracepoint, slot, code, slot.address, None, missed, hold=held)
        state[f"{Item.EVENT} {slot.address:x}"] = handler.value
        slot = Slot(slot.end, 64)
    assert listing(state) == golden("journal_events.txt")


def test_what_is_written_where_the_journal_has_moved() -> None:
    """The memory that it is in now is a block of code, which is listed there too."""
    guest = Guest()
    journal = Journal(cast(Any, guest), JOURNAL[0], JOURNAL[1] - JOURNAL[0], FILL)
    block = LentBlock(DATA[0], 9, CODE[0], is_code=True)
    journal.put(Item.MORE, block.cell, lent_block.encode(block))
    journal.put(Item.DATA, block.cell, 8)
    journal.begin()
    journal.move(CODE[0], 0x4000)
    found = journal_format.decode(guest.read(JOURNAL[0], JOURNAL[1] - JOURNAL[0]), FILL)
    assert found is not None and listing(found.state) == golden("journal_moved.txt")
    moved = journal_format.decode(guest.read(CODE[0], 0x4000), FILL)
    assert moved is not None and moved.state == journal.state
    assert lent_block.decode_all(moved.state, DATA) == (block,)


@pytest.mark.parametrize("name", ["journal_blocks.txt", "journal_counts.txt"])
def test_blocks_are_read(name: str) -> None:
    items = [json.loads(line) for line in golden(name).splitlines()]
    state = {key: value for item in items for key, value in item.items()}
    guest = as_it_was()
    left = decode(state, Bounds(TEXT, (CODE,), DATA, FILL), guest, X86_64)
    (live, returns), (dead,) = left.live_blocks, (block for block in left.blocks if not block.is_live)
    assert (live.is_live, live.first, list(live.members), dead.is_live, len(dead)) == (True, 12, [0, 2, 3], False, 2)
    record = read_block(live, left)
    assert (record.spec, record.enabled) == (Spec("vfs_*", glob=True, name="all"), False)
    assert {slot.address - DATA[0] for slot in left.data} == {0x100, 0x108, 0x110, 0x200, 0x300, 0x400}
    assert (read_block(returns, left).spec.actions, returns.times) == (("latency",), (DATA[0] + 0x400, 4))


def test_a_record_of_each_kind_and_the_numbers_of_tables() -> None:
    of = ("", "_blocks", "_counts", "_events", "_hits", "_moved")
    names = [f"journal{each}.txt" for each in of]
    lines = "".join(map(golden, names)).splitlines()
    written = {key.split()[0] for line in lines for key in json.loads(line)}
    assert {str(item) for item in Item} == written, "one that is added is added to this guest too"
    tables = (TableKind.TRAPS, TableKind.USER_TRAPS, TableKind.USER_WRITES, TableKind.USER_MAPPINGS)
    assert (*tables, TableKind.USER_CALLS) == (1, 2, 3, 4, 5) == tuple(TableKind)


def test_what_is_read() -> None:
    assert listing(found().found.state) == golden("journal.txt")


def test_the_guest_s_own_bytes_come_back() -> None:
    guest = as_it_was()
    texts, ways = restoring_patches(found().left, guest, X86_64)
    branches = [(at, guest.read(at, 5), NOP5) for at in (READ, WRITE)]
    assert ([(patch.address, patch.old, patch.new) for patch in texts], ways) == (branches, [])


def test_the_probes_do_the_same_with_the_same_memory() -> None:
    probes, traps = read_records(found().left)
    by_number = {one.number: one for one in probes}
    assert list(by_number) == [1, 2, 3, 4, 5, 6, 7]
    for number in (1, 2):
        one = by_number[number]
        assert fingerprint(handler(one.spec)) == fingerprint(handler(SPECS[number])) == one.program
        assert one.sizes == SIZES
    assert (by_number[1].since, by_number[3].seen) == (RingPosition(3, (1,)), (9,))
    assert [one.enabled for one in probes] == [True, True, False, True, True, True, True]
    assert [one.python for one in probes] == [False] * 5 + [True, False]
    assert [one.lost for one in probes] == [False] * 6 + [True]
    assert by_number[5].home == "dummy:dummy_xmit+5"
    for number in (3, 4, 5):
        assert by_number[number].spec == SPECS[number]
    known = [(trap.file, trap.address, trap.original.hex()) for trap in traps]
    assert known == [(BINARY, MAIN, "55"), (BINARY, MAIN + 0x100, "c3")]


def test_a_probe_whose_ring_overwrites() -> None:
    """It came later, so the guest of guest.txt has none. Its memory is another than without the option."""
    spec = Spec("vfs_read", actions=("record(count)",), overwrite=True)
    made, plain = handler(spec), handler(replace(spec, overwrite=False))
    assert fingerprint(made) != fingerprint(plain) and made.size == plain.size + 4 * 8
    journal = Journal(Guest(), left_in_guest.JOURNAL[0], 0x2000, FILL)
    write_probe(Probe(8, spec, READ, made, SIZES, since=RingPosition(9)), journal)
    assert listing(journal.state) == golden("journal_overwrite.txt")
    (value,) = json.loads(golden("journal_overwrite.txt")).values()
    one = read_probe(8, value, found().left)
    assert (one.spec, one.program, one.since) == (spec, fingerprint(handler(one.spec)), RingPosition(9))


def test_a_probe_that_shares_its_maps() -> None:
    """It came later, too. Its maps are in other memory than its counts."""
    maps = SharedMaps(0, 0, bits=4, memory=Slot(DATA[0] + 0x1000, 0x1000), users={9})
    spec = Spec("vfs_r*", glob=True, actions=("count by fd",))
    made = handler(spec).sharing(maps, READ)
    assert made.shared is maps and made.size == 4 * 8
    journal = Journal(Guest(), left_in_guest.JOURNAL[0], 0x2000, FILL)
    write_probe(Probe(9, spec, READ, made, SIZES, counter=Slot(DATA[0], made.size)), journal)
    assert listing(journal.state) == golden("journal_maps.txt")
    (value,) = json.loads(golden("journal_maps.txt")).values()
    one = read_probe(9, value, found().left)
    assert one.maps == MapsRecord(DATA[0] + 0x1000, 4, False, READ) and one.program == fingerprint(made)
    for wrong in ([DATA[0] + 8, 4, 0, READ], [DATA[0] + 0x1000, 21, 0, READ], [DATA[0] + 0x1000, 4, 2, READ], [1]):
        with pytest.raises(journal_format.Damaged):
            read_probe(9, value | {"maps": wrong}, found().left)


def test_a_probe_that_uses_maps_of_the_session() -> None:
    """Their types are those of the program; where they are is noted."""
    target = Map("by", (), Count())
    maps = SessionMaps(Guest())
    maps.adopt(9, target, 512, Slot(DATA[0] + 0x1000, 0x1000))
    made = Handler(Program(None, (Update(HITS), Update(target)), quiet=True), maps=maps)
    spec = Spec("vfs_read", actions=("{ @by = count(); }",))
    journal = Journal(Guest(), left_in_guest.JOURNAL[0], 0x2000, FILL)
    write_probe(Probe(9, spec, READ, made, SIZES, counter=Slot(DATA[0], made.size)), journal)
    assert listing(journal.state) == golden("journal_named_maps.txt")
    (value,) = json.loads(golden("journal_named_maps.txt")).values()
    one = read_probe(9, value, found().left)
    assert one.named == {"by": (DATA[0] + 0x1000, 512)} and one.program == fingerprint(made)
    at = DATA[0] + 0x1000
    for wrong in ({"by": [at + 8, 1]}, {"a b": [at, 1]}, {"by": [at, 0]}, {"by": [at, 1 << 40]}, {"by": at}, [1]):
        with pytest.raises(journal_format.Damaged):
            read_probe(9, value | {"named maps": wrong}, found().left)


def test_a_block_of_which_the_detours_call_a_routine() -> None:
    """It came later, too. Its probes have their hits alone, and a program."""
    spec = Spec("vfs_*", glob=True, condition="fd == 3")
    made = handler(spec).made_bare()
    assert made is not None and made.size == 8 and handler(Spec("vfs_*", condition="*buf == 3")).made_bare() is None
    value = probe_value(Probe(12, spec, READ, made, SIZES)) | {"routine": CODE[0]}
    del value["at"]
    assert f"{json.dumps(value, separators=(',', ':'))}\n" == golden("journal_routine.txt")
    items = [json.loads(line) for line in golden("journal_blocks.txt").splitlines()]
    state = {key: one for item in items for key, one in item.items()}
    key, block = next((key, one) for key, one in state.items() if key.startswith("block") and one[5] is not None)

    def read(probe: Mapping[str, Any]) -> ProbeRecord:
        changed = state | {key: [*block[:5], probe, *block[6:]]}
        left = decode(changed, Bounds(TEXT, (CODE,), DATA, FILL), as_it_was(), X86_64)
        return read_block(left.live_blocks[0], left)

    one = read(json.loads(golden("journal_routine.txt")))
    assert (one.spec, one.routine, one.bare, one.program) == (spec, CODE[0], True, fingerprint(made))
    for wrong in ({"bare": False}, {"program": 0}, {"do": ["hist(fd)"]}):
        with pytest.raises(journal_format.Damaged):
            read(value | wrong)


def test_a_block_of_which_the_routine_fills_maps() -> None:
    """Its probes have their hits alone; the first one's key in the maps is where its call returns to, inverted."""
    maps = SharedMaps(0, 0, bits=4, cells=True, memory=Slot(DATA[0] + 0x8000, 0x1000))
    spec = Spec("vfs_*", glob=True, actions=("count by fd", "sum(count)"))
    made = handler(spec).sharing(maps, caller_key(CODE[0] + 5)).made_bare()
    assert made is not None and made.size == 8
    value = probe_value(Probe(12, spec, READ, made, SIZES)) | {"routine": CODE[0]}
    del value["at"]
    assert f"{json.dumps(value, separators=(',', ':'))}\n" == golden("journal_keyed.txt")
    items = [json.loads(line) for line in golden("journal_blocks.txt").splitlines()]
    state = {key: one for item in items for key, one in item.items()} | {f"{Item.DATA} {DATA[0] + 0x8000:x}": 0x1000}
    key, block = next((key, one) for key, one in state.items() if key.startswith("block") and one[5] is not None)

    def read(probe: Mapping[str, Any]) -> ProbeRecord:
        changed = state | {key: [*block[:5], probe, *block[6:]]}
        left = decode(changed, Bounds(TEXT, (CODE,), DATA, FILL), as_it_was(), X86_64)
        return read_block(left.live_blocks[0], left)

    one = read(json.loads(golden("journal_keyed.txt")))
    assert (one.spec, one.routine, one.bare, one.program) == (spec, CODE[0], True, fingerprint(made))
    assert one.maps == MapsRecord(DATA[0] + 0x8000, 4, True, caller_key(CODE[0] + 5))
    without = {name: given for name, given in value.items() if name != "maps"}
    for wrong in (value | {"bare": False}, value | {"maps": [DATA[0] + 8, 4, 1, 0]}, without):
        with pytest.raises(journal_format.Damaged):
            read(wrong)


def test_what_was_counted() -> None:
    """By native code of then, in Unicorn."""
    guest, (probes, _) = as_it_was(), read_records(found().left)
    kprobe, kretprobe, uprobe = (gathered(guest, one) for one in probes if one.number in (1, 2, 4))
    assert sum(kprobe.head[2:-2]) == 3, "of the histogram"
    assert (kprobe.head[:2], kprobe.head[16:18], kprobe.head[-2:]) == ((3, 0), (1, 2), (3, 10))
    dd = b"dd".ljust(16, b"\0")
    assert kprobe.tables == ({dd + b"\4".ljust(8, b"\0"): (1,), dd + b"\3".ljust(8, b"\0"): (2,)},)
    assert kprobe.lost == (0,)
    assert kprobe.records == (Row(3, 3, 1001, (8192).to_bytes(8, "little") + dd),), "others are seen or were pending"
    assert (kretprobe.head[0], sum(kretprobe.head[2:68]), kretprobe.head[68:]) == (2, 2, (10000, 0, 0))
    assert uprobe.head == (12,)


def test_the_calls_under_way() -> None:
    guest, left = as_it_was(), found().left
    arena = Arena(Ranges((CODE,), (DATA,), FILL), X86_64.alignment)
    (point,) = read_rethooks(left, arena)
    assert (point.address, point.earlier_counts, point.layout.slots) == (WRITE, CallCounts(5, 1, 2), 4)
    assert not point.ended
    calls = point.layout.decode(guest.read(point.memory.address, point.layout.size))
    assert calls.active == (CallSlot(0xFFFF_C900_0010_7001, READ + 0x80, (5000, 77)),)
    assert (calls.returns, calls.missed, calls.dropped) == (7, 1, 0)
    assert left.tables[TableKind.USER_CALLS] in left.data


def test_hits_that_are_returns() -> None:
    """The table lacks them; where the counter has gone, so have they."""
    left = found().left
    arena = Arena(Ranges((CODE,), (DATA,), FILL), X86_64.alignment)
    (at,) = left.points or {}
    counter = next(slot for slot in left.data if slot.address != at)
    (point,) = read_rethooks(replace(left, hits={at: counter.address}), arena)
    assert point.hits == counter
    write_hits(point, arena)
    assert listing(arena.journal.state) == golden("journal_hits.txt")
    (gone,) = read_rethooks(replace(left, hits={at: counter.address + 1}), arena)
    assert gone.hits is None
    for wrong in (-1, "x", [counter.address]):
        with pytest.raises(journal_format.Damaged):
            read_rethooks(replace(left, hits={at: wrong}), None)


def test_memory_that_the_kernel_has_lent() -> None:
    guest, (block,) = as_it_was(), found().left.lent
    assert (block.order, block.place) == (9, PLACE_OF_BLOCK)
    assert guest.read(block.cell, 8) == BLOCK.to_bytes(8, "little")
