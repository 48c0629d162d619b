"""A guest in which probes were left: memory that is only that, and what today's code writes of them into the journal.

    1  vfs_read, a kprobe with a condition, a map, a histogram and records, optimized
    2  vfs_write, a kretprobe that keeps something at the entry, optimized, a call under way
    3  do_exit, disabled; its hits were seen at stops
    4  main of a program, a uprobe: a trap in its text
    5  in a module that was unloaded   6  that only Python can do   7  more than a journal takes
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from gdb_optprobe.detours import lent_block
from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.arena_contents import block_value
from gdb_optprobe.detours.block import Block
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item, Journal, TableKind
from gdb_optprobe.detours.lent_block import CELL, LentBlock
from gdb_optprobe.detours.slots import Alignment, Slot
from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.base import Loan, Room
from gdb_optprobe.guest.linux.physical_patch import PhysicalPatch
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.handlers.compile import ProgramLimits, compile_handler
from gdb_optprobe.handlers.ir import Constant
from gdb_optprobe.handlers.return_scope import ReturnScope, compile_entry
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.maps.call_table import CallCounts, CallTableLayout
from gdb_optprobe.maps.ring import RingPosition
from gdb_optprobe.probes import arena_record, journal_records, rethook_records
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.rethook import Rethook
from gdb_optprobe.probes.settings import Settings, sizes_of
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.user import trap_records
from gdb_optprobe.probes.user.trap_records import TrapRecord
from gdb_optprobe.probes.user.uretprobe import LAYOUT
from tests.handlers.world import World

KERNEL = 0xFFFF_FFFF_8100_0000
TEXT, CODE = (KERNEL, KERNEL + 0x1000), (KERNEL + 0x2_0000, KERNEL + 0x2_4000)
DATA, JOURNAL = (KERNEL + 0x4_0000, KERNEL + 0x10_0000), (KERNEL + 0x3_0000, KERNEL + 0x3_2000)
FILL = 0xCC
READ, WRITE, EXIT, MAIN = KERNEL + 0x100, KERNEL + 0x200, KERNEL + 0x300, 0x40_1136
NOP5, PROLOGUE = bytes.fromhex("0f1f440000"), bytes.fromhex("554889e553")
SIZES = sizes_of(Settings(table_keys=4, ring_records=4))
SLOTS = 4
BLOCK, PLACE_OF_BLOCK = 0xFFFF_8880_0400_0000, 0xFFFF_FFFF_7FC0_0000
BINARY = File("/bin/busybox", 0xFFFF_8880_0001_0000, 77, 0x80_0002, 1_131_168, 0xFFFF_8880_0001_0170)
PLACE = Room((CODE,), DATA, FILL, journal=JOURNAL, repay=lambda loan, mapping: None)
MAPPING = (
    PhysicalPatch(0x5000, bytes(8), bytes.fromhex("6370000000000080"), True),
    PhysicalPatch(0x7000, b"\xcc" * 4096, bytes(4096)),
)
LENT = replace(PLACE, mapping=MAPPING, loan=Loan(0xFFFF_FFFF_A000_0000, 0x20_0000))
RECOVERED = cast(Any, SimpleNamespace(build="4a" * 20, text=TEXT))
SPECS: Mapping[int, Spec] = {
    1: Spec(
        "vfs_read",
        condition="count > 4096",
        actions=("count by ($comm, fd)", "hist(count)", 'print("%lu of %s", count, $comm)', "avg(fd)"),
        name="reads",
    ),
    2: Spec(
        "vfs_write",
        kind=Kind.KRETPROBE,
        condition="$elapsed > 1000",
        actions=("hist($elapsed)", "sum($saved.n)"),
        entry_condition=Fragment.whole("fd > 2"),
        entry_actions=(Fragment.whole("save n = count"), Fragment.whole("max(count)")),
        maxactive=SLOTS,
    ),
    3: Spec("do_exit", tier="breakpoint", glob=True),
    4: Spec("/bin/busybox:main+4", kind=Kind.UPROBE, file="/tmp/busybox.debug", pid=42),
    5: Spec("dummy:dummy_xmit", pending=True),
    6: Spec("do_exit", pre_handler=print),
    7: Spec("vfs_read", actions=("count",) * 1100),
}


class Guest:
    """Memory of text, code, data and the journal, and nothing else."""

    def __init__(self) -> None:
        self.regions = {start: bytearray([FILL]) * (end - start) for start, end in (TEXT, CODE, DATA, JOURNAL)}
        for address, code in ((READ, NOP5), (WRITE, NOP5), (EXIT, PROLOGUE)):
            self.write(address, code)

    def _at(self, address: int, size: int) -> tuple[bytearray, int]:
        for start, data in self.regions.items():
            if start <= address and address + size <= start + len(data):
                return data, address - start
        raise Unreadable(address, size)

    def read(self, address: int, size: int) -> bytes:
        data, at = self._at(address, size)
        return bytes(data[at : at + size])

    def write(self, address: int, new: bytes) -> None:
        data, at = self._at(address, len(new))
        data[at : at + len(new)] = new


def handler(spec: Spec) -> Handler:
    """What a hit does, where every function has the parameters of tests/handlers/world.py."""
    if spec.is_plain_count:
        return Handler()
    limits, world, cpu = ProgramLimits(), World(), Constant(3)
    condition, actions = spec.condition_part, spec.action_parts
    if not spec.is_return:
        compiled = compile_handler(condition, actions, world, limits)
        return Handler.of(compiled, 0x2_0F00, cpu, table_bits=2, ring_bits=2, overwrites=spec.overwrite)
    isa = X86_64.returning
    assert isa is not None
    scope = ReturnScope(world, world, isa.slot, 1_000_000_000)
    compile_entry(scope, spec.entry_actions, limits)
    program = compile_handler(condition, actions, scope, limits)
    made = Handler.of(program, 0x2_0F00, cpu, table_bits=2, ring_bits=2)
    return replace(made, entry=scope.entry(spec.entry_condition))


def leave(guest: Guest) -> Journal:
    """What today's code notes of all of it, and what it writes for the first time."""
    start, end = JOURNAL
    journal = Journal(guest, start, end - start, FILL)
    arena = Arena(Ranges((CODE,), (DATA,), FILL), X86_64.alignment, journal)
    journal.put(Item.ROOM, 0, arena_record.encode_room(LENT, RECOVERED))
    journal.begin()
    _leave_kprobe(guest, arena)
    _leave_kretprobe(guest, arena)
    seen = Probe(3, SPECS[3], EXIT, Handler(), {}, enabled=False)
    seen.seen = replace(seen.seen, head=(9,))
    journal_records.write_probe(seen, journal)
    _leave_uprobe(guest, arena)
    for number, address, home in ((5, READ, "dummy:dummy_xmit+5"), (6, EXIT, ""), (7, READ, "")):
        journal_records.write_probe(Probe(number, SPECS[number], address, home=home), journal)
    journal.flush()
    _leave_block(guest, arena)
    return journal


def leave_blocks(guest: Guest) -> Journal:
    """What today's code notes of counts that were added together: one that left its block, and a block that was left.
    """
    start, end = JOURNAL
    journal = Journal(guest, start, end - start, FILL)
    sites = array("Q", (READ, READ + 0x20, WRITE, EXIT))
    code, data = Slot(CODE[0] + 0x100, 64), Slot(DATA[0] + 0x100, 32)
    block = Block(sites=sites, originals=[NOP5] * 4, code=code, data=data, step=16)
    spec = Spec("vfs_*", glob=True, name="all")
    value = journal_records.probe_value(Probe(12, spec, READ, sizes=SIZES, enabled=False))
    value = {name: kept for name, kept in value.items() if name != "at"}
    journal.put(Item.COUNTS, 12, block_value(block, code.address, value))
    journal.put(Item.ALONE, 13, 1)
    journal.put(Item.DATA, block.counter(1).address, 8)
    code, data = Slot(CODE[0] + 0x200, 32), Slot(DATA[0] + 0x200, 16)
    originals = [PROLOGUE, NOP5]
    left = Block(sites=sites[2:], originals=originals, traced=False, is_uniform=False, code=code, data=data, step=16)
    journal.put(Item.BLOCK, left.code.address, block_value(left, 40, None))
    returns = replace(block, code=Slot(CODE[0] + 0x300, 64), data=Slot(DATA[0] + 0x300, 32))
    spec = Spec("vfs_*", Kind.KRETPROBE, glob=True, actions=("latency",))
    value = journal_records.probe_value(Probe(50, spec, READ, sizes=SIZES))
    value = {name: kept for name, kept in value.items() if name != "at"}
    journal.put(Item.COUNTS, 50, block_value(returns, returns.code.address, value, (DATA[0] + 0x400, 4)))
    journal.put(Item.DATA, DATA[0] + 0x400, 0x3000)
    return journal


def _leave_kprobe(guest: Guest, arena: Arena) -> None:
    made = handler(SPECS[1])
    memory = arena.allocate_data(made.size, CODE[0], X86_64.data_reach)
    guest.write(memory.address, made.initial())
    _branch(guest, arena, READ, [memory.address])
    arena.allocate_pad(CODE[0], X86_64.branch_reach)
    page = arena.data.allocate(4096, 0, 1 << 64, 0, Alignment(4096))  # as versions before this one had with their pads
    assert page is not None
    arena.journal.put(Item.DATA, page.address, page.size)
    probe = Probe(1, SPECS[1], READ, made, SIZES, counter=memory, since=RingPosition(3, (1,)))
    journal_records.write_probe(probe, arena.journal)


def _leave_kretprobe(guest: Guest, arena: Arena) -> None:
    made = handler(SPECS[2])
    layout = CallTableLayout(SLOTS, len(made.entry.words))
    memory, table = (arena.allocate_data(size, CODE[0], X86_64.data_reach) for size in (made.size, layout.size))
    guest.write(memory.address, made.initial())
    guest.write(table.address, layout.initial())
    _branch(guest, arena, WRITE, [memory.address, table.address])
    arena.journal.put(Item.POINT, table.address, [WRITE, layout.slots, layout.saved])
    rethook_records.write_counts(Rethook.adopted(WRITE, layout, table, {}, arena, CallCounts(5, 1, 2)), arena)
    journal_records.write_probe(Probe(2, SPECS[2], WRITE, made, SIZES, counter=memory), arena.journal)


def _leave_uprobe(guest: Guest, arena: Arena) -> None:
    calls = arena.allocate_table(TableKind.USER_CALLS, LAYOUT.size, CODE[0], X86_64.data_reach)
    guest.write(calls.address, LAYOUT.initial())
    memory = arena.allocate_data(8, CODE[0], X86_64.data_reach)
    guest.write(memory.address, bytes(8))
    trap_records.write_trap(1, TrapRecord(BINARY, MAIN, b"\x55"), arena.journal)
    trap_records.write_trap(2, TrapRecord(BINARY, MAIN + 0x100, b"\xc3", calls.address), arena.journal)
    journal_records.write_probe(Probe(4, SPECS[4], MAIN, Handler(), counter=memory), arena.journal)


def _leave_block(guest: Guest, arena: Arena) -> None:
    """Pages that the kernel has lent and that were not mapped yet."""
    cell = arena.allocate_cell(CELL)
    guest.write(cell.address, BLOCK.to_bytes(CELL, "little"))
    arena.journal.put(Item.MORE, cell.address, lent_block.encode(LentBlock(cell.address, 9, PLACE_OF_BLOCK)))
    arena.journal.flush()


def _branch(guest: Guest, arena: Arena, head: int, uses: list[int]) -> None:
    """A detour that counts, without the tracer's nop which stood there, and the branch to it."""
    slot = arena.allocate_code(13, head, X86_64.branch_reach)
    back = X86_64.branch(slot.address + 8, head + 5)
    data = bytes.fromhex("f048ff0500000000") + back
    origins = ((slot.address, head), (slot.address + 8, head + 5))
    detour = Detour(slot.address, data, head, origins, exits=tuple(X86_64.decode(back, slot.address + 8)))
    arena.set_references(slot, uses)
    arena.journal.code(slot, detour)
    arena.journal.put(Item.TEXT, head, [NOP5.hex(), True])
    arena.journal.flush()
    guest.write(slot.address, arena.code_patch(slot, data, guest, b"\xcc").new)
    guest.write(head, X86_64.branch(head, slot.address))
