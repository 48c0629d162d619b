"""Every reader of a guest's data, given what is nearly valid and what is not: a value or an OptprobeError, soon.

The short form counts lines of Python's, and memory. The full one (scripts/stress -k hostile) takes 10**6 cases, or as
many as $OPTPROBE_CASES says, of which none may take the CPU for more than a second.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gdb_optprobe.detours import arena_contents
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest import kallsyms, kernel_image, vmlinux
from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.guest.kernel_image import Run
from gdb_optprobe.guest.linux import kprobes, list_head
from gdb_optprobe.guest.linux.arch.aarch64 import find as arm_find
from gdb_optprobe.guest.linux.arch.aarch64 import paging as arm_paging
from gdb_optprobe.guest.linux.arch.aarch64 import probe_read as arm_reads
from gdb_optprobe.guest.linux.arch.aarch64.frame_records import record_in_registers
from gdb_optprobe.guest.linux.arch.aarch64.text import ArmText
from gdb_optprobe.guest.linux.arch.ppc64le import radix
from gdb_optprobe.guest.linux.arch.x86_64 import jump_tables, mid_function_entries, nops, orc_unwind, paging
from gdb_optprobe.guest.linux.arch.x86_64.mmu import KIND, X86Mmu
from gdb_optprobe.guest.linux.arch.x86_64.smp_locks import SmpLocks
from gdb_optprobe.guest.linux.arch.x86_64.static_calls import StaticCalls
from gdb_optprobe.guest.linux.bug_table import BugTable
from gdb_optprobe.guest.linux.exception_table import ExceptionTable
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.jump_labels import JumpLabels
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.module_symbols import ModuleSymbols
from gdb_optprobe.guest.linux.modules import Modules
from gdb_optprobe.guest.linux.user import cfi, files
from gdb_optprobe.guest.linux.user.cfi import CallFrames, Expression
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.guest.linux.user.mm import spaces
from gdb_optprobe.guest.linux.user.page_frames import PageFrames
from gdb_optprobe.guest.linux.user.pagecache import PageCache
from gdb_optprobe.guest.symbols import Symbols, SymbolTable
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.handlers.ctype import Struct, describe, size_of
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.maps import journal_format
from gdb_optprobe.maps.aggregate import Average, Powers
from gdb_optprobe.maps.call_table import CallTableLayout
from gdb_optprobe.maps.hash_map import HashMapLayout
from gdb_optprobe.maps.ring import START, RingLayout, RingPosition
from gdb_optprobe.maps.user_call_table import UserCallTableLayout
from gdb_optprobe.probes import journal_records
from gdb_optprobe.probes.user import trap_records
from tests.detours import test_journal
from tests.guest import blobs, elf_blobs
from tests.guest.linux import fake_kernel, test_kprobes, test_modules
from tests.guest.linux.arch.aarch64 import tables as arm_tables
from tests.guest.linux.arch.aarch64 import test_find as arm_kernels
from tests.guest.linux.arch.aarch64 import test_frame_records as arm_frames
from tests.guest.linux.arch.aarch64 import test_names as arm_names
from tests.guest.linux.arch.ppc64le import small_guest as power_guest
from tests.guest.linux.arch.x86_64 import small_guest, test_orc_unwind
from tests.guest.linux.fake_kernel import Pages, Structures
from tests.guest.linux.user import test_files
from tests.hostile.measured import in_memory, outcome, soon, within
from tests.hostile.mutations import EDGES, Liar, mutated
from tests.probes import test_journal_records

pytestmark = pytest.mark.stress

FULL = bool(os.environ.get("OPTPROBE_FULL"))
CASES = int(os.environ.get("OPTPROBE_CASES", 10**6))
LINES = 400_000
SECONDS = 1.0

Make = Callable[[Random], Callable[[], Any]]
"""A case: what is read, made; and the reading."""


@dataclass(frozen=True)
class Reader:
    """share: of the full form's cases, in thousandths. short: cases of the short form. size: bytes that are read."""

    make: Make
    share: int
    short: int = 40
    size: int = 1 << 16


def asking(*questions: Callable[[], Any]) -> None:
    """Each by itself: one that is refused keeps nothing from being asked."""
    for question in questions:
        outcome(question)


# --- symbols and types -----------------------------------------------------------------------------------------------


@cache
def valid_kallsyms() -> list[bytes]:
    names = blobs.kernel_symbols(1100, percpu=20)
    return [blobs.kallsyms(names, layout, before=bytes(64)) for layout in blobs.LAYOUTS.values() if layout.percpu] + [
        blobs.kallsyms(blobs.kernel_symbols(1100), blobs.LINUX_7_2, before=bytes(64))
    ]


def of_kallsyms(random: Random) -> Callable[[], Any]:
    data = mutated(random.choice(valid_kallsyms()), random, random.choice((1, 4)))
    return lambda: len(kallsyms.recover(data, blobs.RODATA))


@cache
def valid_btf() -> bytes:
    writer = blobs.BtfWriter()
    number = writer.integer("int", 4, signed=True)
    wide = writer.integer("long", 8, signed=True)
    pointer = writer.add("", 2, number)
    array_ = writer.add("", 3, 0, number, number, 4)
    typedef = writer.add("word_t", 8, wide)
    const = writer.add("", 10, typedef)
    inner = writer.struct("", 16, ("x", number, 0), ("y", pointer, 64))
    union = writer.struct("", 16, ("u", const, 0), ("", inner, 0), union=True)
    writer.struct("s", 64, ("a", array_, 0), ("", union, 128), ("c", typedef, 256), ("d", inner, 320))
    writer.bitfields("b", 8, ("low", number, 0, 3), ("high", number, 3, 29))
    writer.add("e", 6, 4, writer.string("ONE"), 1, writer.string("TWO"), -2, vlen=2)
    writer.add("w", 19, 8, writer.string("HUGE"), 5, 1, vlen=1)
    proto = writer.add("", 13, number, writer.string("p"), pointer, 0, 0, vlen=2)
    writer.add("f", 12, proto)
    writer.add("v", 14, number, 0)
    writer.add("s", 7)
    writer.add("fl", 16, 8)
    return writer.blob()


def of_btf(random: Random) -> Callable[[], Any]:
    data = mutated(valid_btf(), random, 4, 48)

    def read() -> int:
        known = Btf(data)
        types = BtfTypes(known)
        for name in ("s", "b", "e", "word_t"):
            asking(lambda name=name: known.struct(name), lambda name=name: known.field(name, "a[2]"))
        asking(lambda: known.constant("TWO"), lambda: known.function("f"), lambda: known.variable("v"))
        for number in range(min(len(known), 64)):
            asking(lambda n=number: known.size(n), lambda n=number: converted(types, n))
        return len(known)

    return read


def converted(types: BtfTypes, number: int) -> None:
    found = types.type(number)
    describe(found), size_of(found)
    if isinstance(found, Struct):
        for name in found.names()[:8]:
            found.lookup(name)


# --- unwinding -------------------------------------------------------------------------------------------------------


@cache
def valid_orc() -> test_orc_unwind.Kernel:
    layout = test_orc_unwind.MODERN
    rows = [
        (16 * at, test_orc_unwind.orc(layout, kind, (at % 10, 8 * at), (at % 3, 16), signal=bool(at & 1)))
        for at, kind in enumerate([*layout.kinds] * 20)
    ]
    return test_orc_unwind.Kernel(rows)


def of_orc(random: Random) -> Callable[[], Any]:
    valid = valid_orc()
    memory = blobs.FakeMemory()
    for at, piece in valid.memory.pieces.items():
        memory.place(at, mutated(bytes(piece), random, 2).ljust(len(piece), b"\0"))
    memory.place(test_orc_unwind.STACK, struct.pack("<128Q", *(_word(random) for _ in range(128))))
    layout = random.choice(list(test_orc_unwind.ENCODINGS.values()))
    ips = valid.tables.ips if random.random() < 0.8 else (valid.tables.ips[0], _word(random))
    tables = orc_unwind.Tables(valid.tables.text, ips, valid.tables.entries, valid.tables.lookup, layout)
    pc = test_orc_unwind.TEXT + random.randrange(2000)
    registers = {"rip": pc, "rsp": test_orc_unwind.STACK, "rbp": _word(random)}

    def read() -> int:
        state: orc_unwind.State | None = orc_unwind.State(registers)
        for depth in range(64):
            state = orc_unwind.unwind(state, tables, memory.read)
            if state is None:
                return depth
        return 64

    return read


def _word(random: Random) -> int:
    near = test_orc_unwind.STACK + 8 * random.randrange(128), test_orc_unwind.TEXT + random.randrange(1 << 12)
    return random.choice((*near, *near, random.choice(EDGES), random.getrandbits(64)))


OPCODES = bytes((*range(0x17), 0x2E, 0x2F, 0x41, 0x44, 0x82, 0x86, 0xC3, 0xFF, 0x40, 0x80))


def some_program(random: Random, most: int) -> bytes:
    parts = bytearray()
    for _ in range(random.randrange(most)):
        parts.append(random.choice(OPCODES))
        parts += bytes(random.choice((0, 1, 7, 8, 16, 0x7F, 0x80, 0xFF)) for _ in range(random.randrange(4)))
    return bytes(parts)


def frames(random: Random) -> tuple[bytes, int]:
    encoding = random.choice((0x1B, 0x1B, 0x00, 0x03, 0x04, 0x0B, 0x0C, 0x01, 0x09, 0xFF, 0x50, 0x9B))
    augmentation = random.choice((b"zR", b"zR", b"", b"zPLR", b"zRS", b"eh"))
    body = bytes(4) + b"\1" + augmentation + b"\0\1\x78\x10"
    body += (bytes((1, encoding)) if augmentation == b"zR" else b"") + b"\x0c\x07\x08" + some_program(random, 4)
    data = bytearray(struct.pack("<I", len(body)) + body)
    for number in range(random.randrange(8)):
        at = len(data)
        fields = struct.pack("<iI", 0x10 * number - at, 16) if encoding == 0x1B else struct.pack("<QQ", 16 * number, 16)
        record = struct.pack("<I", at + 4) + fields + bytes(augmentation[:1] == b"z") + some_program(random, 24)
        data += struct.pack("<I", len(record)) + record
    return mutated(bytes(data), random, 1), 0x400000


def of_call_frames(random: Random) -> Callable[[], Any]:
    data, address = frames(random)
    found = CallFrames(data, address, random.choice((4, 8)))
    stack = {name: random.getrandbits(64) for name in range(20)}

    def register(number: int) -> int:
        if number not in stack:
            raise cfi.Damaged("no such register")
        return stack[number]

    def word(at: int) -> int:
        if at % 3 == 0:
            raise Unreadable(at, 8)
        return at * 5 & (1 << 64) - 1

    def read() -> None:
        for at in (address + 8, address + 0x18, 8, 0, (1 << 64) - 1):
            rules = outcome(lambda at=at: found.rules(at)).value
            for rule in rules.registers.values() if rules is not None else ():
                if isinstance(rule, Expression):
                    asking(lambda rule=rule, at=at: cfi.evaluate(rule.expression, [at], register, word))
            if rules is not None and isinstance(rules.cfa, bytes):
                asking(lambda rules=rules: cfi.evaluate(rules.cfa, [], register, word))

    return read


# --- programs and images ---------------------------------------------------------------------------------------------


@cache
def valid_elf(bits: int) -> bytes:
    """Code, two symbols, a build-id, frames."""
    strings = b"\0answer\0_start\0"
    names = b"\0.eh_frame\0"
    note = blobs.note(b"GNU\0", 3, bytes(range(20)))
    data, _ = frames(Random(7))
    base = 0x200
    parts = [strings, names, note, data]
    places = [base + sum(len(part) + -len(part) % 8 for part in parts[:at]) for at in range(5)]
    code = 0x400000
    if bits == 64:
        rows = [struct.pack("<IBBHQQ", name, 2, 0, 1, code + at, 16) for name, at in ((1, 0x40), (8, 0x60))]
        table, each = b"".join(rows), 24
        form, header = "<IIQQQQIIQQ", "<HHIQQQIHHHHHH"
        loads = [
            struct.pack("<IIQQQQQQ", 1, 5, 0, code, 0, 0x1000, 0x1000, 4096),
            struct.pack("<IIQQQQQQ", 4, 4, places[2], 0, 0, len(note), len(note), 4),
        ]
    else:
        rows = [struct.pack("<IIIBBH", name, code + at, 16, 2, 0, 1) for name, at in ((1, 0x40), (8, 0x60))]
        table, each = b"".join(rows), 16
        form, header = "<IIIIIIIIII", "<HHIIIIIHHHHHH"
        loads = [
            struct.pack("<IIIIIIII", 1, 0, code, 0, 0x1000, 0x1000, 5, 4096),
            struct.pack("<IIIIIIII", 4, places[2], 0, 0, len(note), len(note), 4, 4),
        ]
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (0, 2, 0, 0, places[4], len(table), 2, 0, 8, each),
        (0, 3, 0, 0, places[0], len(strings), 0, 0, 1, 0),
        (1, 1, 2, code, places[3], len(data), 0, 0, 8, 0),
        (0, 3, 0, 0, places[1], len(names), 0, 0, 1, 0),
    ]
    body = bytearray(0x1000)
    for at, part in zip(places, (*parts, table), strict=True):
        body[at : at + len(part)] = part
    at = 0x1000 - len(sections) * struct.calcsize(form)
    for number, section in enumerate(sections):
        struct.pack_into(form, body, at + number * struct.calcsize(form), *section)
    body[:7] = bytes((0x7F, 0x45, 0x4C, 0x46, 2 if bits == 64 else 1, 1, 1))
    size = 16 + struct.calcsize(header)
    machine, each_load = (62, 56) if bits == 64 else (3, 32)
    values = (2, machine, 1, code + 0x40, size, at, 0, size, each_load, 2, struct.calcsize(form), len(sections), 4)
    struct.pack_into(header, body, 16, *values)
    body[size : size + 2 * each_load] = b"".join(loads)
    return bytes(body)


def of_elf(random: Random) -> Callable[[], Any]:
    data = mutated(valid_elf(random.choice((32, 64))), random, random.choice((1, 2, 4)), 0x100)

    def file(offset: int, size: int) -> bytes:
        assert offset >= 0 and offset + size <= len(data), "never asked for what the file does not have"
        return data[offset : offset + size]

    def read() -> None:
        found = Elf.of("hostile", file, len(data), KIND)
        asking(lambda: found.filler, lambda: found.first_code, lambda: found.resolve("answer"))
        asking(lambda: found.spell(0x400044), lambda: found.function(0x400068), lambda: found.entry_of(0x400040))
        asking(lambda: found.call_frames.rules(0x400008), lambda: found.text(0x400040, 64), lambda: found.offset(0))

    return read


def test_the_valid_ones_are_valid() -> None:
    """So that what is made of them comes far."""
    for bits in (32, 64):
        data = valid_elf(bits)
        found = Elf.of("valid", lambda offset, size, data=data: data[offset : offset + size], len(data), KIND)
        assert found.resolve("answer") == 0x400040 and found.build_id == bytes(range(20))
        assert found.call_frames.data
    assert all(len(kallsyms.recover(data, blobs.RODATA)) == 1100 for data in valid_kallsyms())
    assert Btf(valid_btf()).field("s", "d.y").offset == 48
    assert len(FtraceSites(ftrace_kernel(valid_ftrace()), nops.SITE)) == 8
    assert len(small_guest.saved(small_guest.guest(), small_guest.COUNTED)) > 4
    assert files.find(user_kernel(valid_files()), "/bin/sh").size == 9000
    assert vmlinux.read(valid_vmlinux()).symbols.names[0] == "_text"


@cache
def valid_vmlinux() -> bytes:
    text = 0xFFFFFFFF81000000
    rows = [("_text", text, 1, 1, 2), ("f", text + 0x10, 1, 0, 2), ("d", text + 0x100000, 3, 2, 1)]
    return elf_blobs.vmlinux(rows)


def of_vmlinux(random: Random) -> Callable[[], Any]:
    data = mutated(valid_vmlinux(), random, random.choice((1, 2, 8)))
    start = random.choice((0xFFFFFFFF81000000, 0xFFFFFFFFA1000000, *EDGES))

    def read() -> None:
        found = vmlinux.read(data)
        asking(lambda: vmlinux.completed(found.symbols, found.at(start)), lambda: vmlinux.has_data(found.symbols))

    return read


def of_image(random: Random) -> Callable[[], Any]:
    vdso = valid_elf(64)[:0x200] + bytes(64)
    notes = blobs.note(b"GNU\0", 3, bytes(20)) + blobs.note(b"Xen\0", 1, bytes(8))
    data = mutated(b"Linux version 6.1 (x)\n" + bytes(6) + vdso + notes * 3, random, 4)
    runs = [
        Run(_page(random), random.choice((4096, 1 << 21, 0, 1 << 40)), random.random() < 0.5, random.random() < 0.5)
        for _ in range(random.randrange(12))
    ]

    def read() -> None:
        kernel_image.banner(data)
        asking(lambda: kernel_image.build_id(data), lambda: kernel_image.find(runs))

    return read


def _page(random: Random) -> int:
    return 0xFFFFFFFF80000000 + 4096 * random.randrange(8)


# --- what we keep in the guest ---------------------------------------------------------------------------------------


def some_json(random: Random, depth: int = 0) -> Any:
    match random.randrange(9 if depth < 4 else 7):
        case 0:
            return random.choice(EDGES)
        case 1:
            return -random.choice(EDGES)
        case 2:
            return random.choice(("", "48", "zz", "\n", "\x1b[2J", "é", "\ud800", "cc" * 9))
        case 3:
            return random.choice((None, True, False))
        case 4:
            return random.choice((0.5, 1e300, float("nan"), float("inf")))
        case 5 | 6:
            return random.randrange(1 << 18)
        case 7:
            return [some_json(random, depth + 1) for _ in range(random.randrange(6))]
        case _:
            keys = ("spec", "at", "tier", "sizes", "name", "0")
            return {random.choice(keys): some_json(random, depth + 1) for _ in range(random.randrange(5))}


def some_state(random: Random) -> dict[str, Any]:
    kinds = ("text", "code", "pads", "data", "probe", "point", "user", "room", "full", "")
    numbers = (f"{number:x}" for number in (0x1000, 0x1010, 0x10000, 0x10040, 0x30000, 0, 1 << 70))
    places = [*numbers, "", "-1", "x", " 1", "1_0"]
    valid = {
        "text 1000": ["4889e5909090", 0],
        "code 10000": [64, 32, 0, [[0, 4096]], [[8, "c3"]]],
        "pads 11000": None,
        "data 30000": 64,
    }
    state = {key: value for key, value in valid.items() if random.random() < 0.7}
    for _ in range(random.randrange(4)):
        state[f"{random.choice(kinds)} {random.choice(places)}"] = some_json(random)
    return state


@cache
def arena() -> Pages:
    memory = Pages()
    memory.put(0x1000, bytes(0x1000))
    memory.put(0x10000, b"\xcc" * 0x10000)
    return memory


def of_journal(random: Random) -> Callable[[], Any]:
    size = 1 << 12
    half = journal_format.header(random.choice((0, 1, 1, 1, 5, (1 << 32) - 1)))
    generation = int.from_bytes(half[12:16], "little")
    for _ in range(random.randrange(4)):
        body = json.dumps(some_state(random)).encode()
        body = mutated(body, random) if random.random() < 0.3 else body
        body = zlib.compress(body) if random.random() < 0.3 else body
        half += struct.pack("<II", len(body), zlib.crc32(body, generation)) + body
    other = journal_format.header(random.randrange(3)) if random.random() < 0.3 else b""
    region = half[:size].ljust(size, b"\xcc") + other.ljust(size, b"\xcc")
    region = mutated(region, random, 4, 96) if random.random() < 0.4 else region
    memory = arena()

    def read() -> None:
        found = journal_format.decode(region, 0xCC)
        if found is not None:
            contents = arena_contents.decode(found.state, test_journal.BOUNDS, memory, X86_64)
            arena_contents.restoring_patches(contents, memory, X86_64)

    return read


FIELDS: dict[str, Any] = {
    "at": test_journal_records.AT, "location": "vfs_read", "kind": "kretprobe", "if": "count > 1",
    "do": ["count by $pid"],
    "tier": "optimized", "name": "n", "glob": True, "entry if": "fd > 2", "entry do": ["count"], "maxactive": 7,
    "pending": True, "file": "/bin/x", "pid": 3, "home": "e1000", "waits": True, "off": True, "python": True,
    "data": 0x30000, "program": 5, "sizes": {"bits": 8}, "since": [9, 7, 8], "seen": [1, -2],
}  # fmt: skip


def of_probes(random: Random) -> Callable[[], Any]:
    value = {name: given for name, given in FIELDS.items() if random.random() < 0.5}
    value |= {"at": test_journal_records.AT, "location": "vfs_read"}
    for _ in range(random.choice((1, 1, 2, 5))):
        value[random.choice((*FIELDS, "x"))] = some_json(random)
    number = random.choice((1, 1, 1, *EDGES))
    trap: Any = ["/bin/x", 1 << 63, 77, 8, 9000, 1 << 63, 0x400000, "c3", 0]
    for _ in range(random.choice((1, 1, 3))):
        trap[random.randrange(9)] = some_json(random)

    def read() -> None:
        asking(
            lambda: journal_records.read_probe(number, value, test_journal_records.LEFT),
            lambda: trap_records.read_traps({1: trap, 2: trap[:8]}),
        )

    return read


def of_objects(random: Random) -> Callable[[], Any]:
    def header() -> bytes:
        return b"".join(random.choice((*EDGES, *range(40))).to_bytes(8, "little") for _ in range(2))

    ring = RingLayout(random.randrange(4), random.randrange(1, 8))
    table = HashMapLayout(random.randrange(1, 4), random.choice((Average(True), Powers(False))), random.randrange(1, 6))
    calls, users = CallTableLayout(random.randrange(1, 40), random.randrange(4)), UserCallTableLayout(8)
    pending = tuple(random.choice((*EDGES, *range(99))) for _ in range(random.randrange(9)))
    since = random.choice((START, RingPosition(random.choice(EDGES), pending)))
    data = bytes(random.choices((0, 0, 1, 3, 3, 0xFF), k=4096)) * 8
    records = b"".join(
        (number + 1).to_bytes(8, "little").ljust(ring.record_size, b"\3") for number in range(ring.places)
    )

    def read() -> None:
        for body in (records, data):
            found = ring.decode((header() + body)[: ring.size].ljust(ring.size, b"\0"), since)
            assert len(found.position.pending) <= ring.places and len(found.records) <= ring.places
            assert len(ring.decode(found.header + body[: ring.size - 16], found.position).header) == 16
        table.decode((header() + data)[: table.size].ljust(table.size, b"\3"))
        calls.decode((header() * 2 + data)[: calls.size].ljust(calls.size, b"\1"))
        list(users.calls(data[: users.size].ljust(users.size, b"\1")))

    return read


# --- lists and tables of the kernel ----------------------------------------------------------------------------------


@cache
def valid_module() -> Pages:
    memory = Pages()
    test_modules.module_at(memory)
    return memory


def of_modules(random: Random) -> Callable[[], Any]:
    memory = Liar(valid_module(), random)
    offsets = {f"module.{name}": at for name, at in test_modules.OFFSETS.items()} if random.random() < 0.7 else {}
    if offsets and random.random() < 0.1:
        offsets[random.choice(list(offsets))] = random.choice(EDGES[:-6])
    names = fake_kernel.symbols(modules=test_modules.HEAD)
    kernel = Kernel(memory, names, Structures(offsets))

    def read() -> None:
        for module in Modules(kernel, test_modules.AREA).loaded():
            found = outcome(lambda module=module: ModuleSymbols(module, kernel, 12)).value
            if found is not None:
                functions = list(found.functions())
                asking(*(lambda at=at, found=found: found.function_bounds(at) for _, at in functions[:8]))

    return read


@cache
def valid_threads() -> fake_kernel.Machine:
    there = small_guest.guest()
    small_guest.end_thread(there)
    return there


def of_threads(random: Random) -> Callable[[], Any]:
    valid = valid_threads()
    memory = Liar(valid, random, valid.state)
    names = random.choice((small_guest.COUNTED, small_guest.LISTED, small_guest.NAMES))
    return lambda: len(small_guest.saved(memory, names))


@cache
def valid_power_threads() -> fake_kernel.Machine:
    there = power_guest.guest()
    power_guest.accounted(there)
    return there


def of_power_threads(random: Random) -> Callable[[], Any]:
    valid = valid_power_threads()
    memory = Liar(valid, random, valid.state)
    return lambda: len(power_guest.saved(memory))


RECORDS, SITES = 0xFFFF888000002000, 0xFFFFFFFF81000000


@cache
def valid_ftrace() -> Pages:
    memory = Pages()
    memory.put(RECORDS, bytes(0x1000))
    memory.put_words(0xFFFFFFFF82000000, RECORDS)
    memory.put(0xFFFFFFFF82000800, bytes(8))
    for page in range(2):
        at = RECORDS + 0x800 * page
        memory.put_words(at, (RECORDS + 0x800) * (page == 0), at + 0x100, 4)
        for row in range(4):
            memory.put_words(at + 0x100 + 16 * row, SITES + 64 * (4 * page + row), row << 23)
    memory.put(SITES, bytes.fromhex("0f1f440000c3").ljust(64, b"\x90") * 8)
    return memory


def ftrace_kernel(memory: Pages) -> Kernel:
    names = {"ftrace_pages_start": 0xFFFFFFFF82000000, "ftrace_ops_list": 0xFFFFFFFF82000800, "ftrace_list_end": SITES}
    return fake_kernel.kernel(memory, names, {"ftrace_page.next": 0, "ftrace_page.records": 8, "ftrace_page.index": 16})


def of_ftrace(random: Random) -> Callable[[], Any]:
    kernel = ftrace_kernel(Liar(valid_ftrace(), random))
    of = random.choice((None, (SITES, SITES + 0x1000)))

    def read() -> None:
        sites = FtraceSites(kernel, nops.SITE, of=of)
        asking(lambda: len(sites), lambda: sites.sites(SITES, SITES + 0x1000), lambda: sites.idle, sites.tracing)

    return read


TABLE = 0xFFFFFFFF82000000
BOUNDS = ("ex_table", "jump_table", "bug_table")


@cache
def valid_tables() -> Pages:
    memory = Pages()
    for at in range(TABLE, TABLE + 0x1000, 4):
        memory.put(at, (SITES + (at & 0x3FF) - at & 0xFFFFFFFF).to_bytes(4, "little"))
    return memory


def of_tables(random: Random) -> Callable[[], Any]:
    memory = Liar(valid_tables(), random)
    names = {"_stext": SITES, "smp_alt_modules": TABLE}
    pairs = [(f"__start___{name}", f"__stop___{name}") for name in BOUNDS]
    pairs += [("__start_static_call_sites", "__stop_static_call_sites"), ("__smp_locks", "__smp_locks_end")]
    for start, stop in pairs:
        first = TABLE + random.choice((0, 0, 8, 0x400, 3))
        sizes = (0, 8, 0x60, 0x300, 0xC00, 7, 1 << 20, 1 << 24, 0x7D000000 - 0x400)
        names |= {start: first, stop: first + random.choice(sizes)}
    kernel = fake_kernel.kernel(memory, names, {"bug_entry.flags": 10} if random.random() < 0.5 else {})

    def read() -> None:
        end = SITES + 0x400
        asking(lambda: ExceptionTable(kernel).fixups(SITES, end), lambda: JumpLabels(kernel).within(SITES, end))
        asking(lambda: BugTable(kernel).has(SITES), lambda: StaticCalls(kernel).within(SITES, end))
        asking(lambda: SmpLocks(kernel).within(SITES, end), lambda: list(list_head.members(kernel, TABLE, 8)))

    return read


@cache
def valid_kprobes() -> Pages:
    return test_kprobes.guest(test_kprobes.JUMP).memory


def of_kprobes(random: Random) -> Callable[[], Any]:
    memory = Liar(valid_kprobes(), random)
    plain = {name.removeprefix("d_"): at for name, at in test_kprobes.NAMES.items()}
    kernel = fake_kernel.kernel(memory, plain, test_kprobes.LAYOUT)
    return lambda: kprobes.known(kernel, X86_64)


@cache
def valid_files() -> test_files.Kernel:
    guest = test_files.Kernel()
    file = guest.inode(stat.S_IFREG, 9000)
    top = guest.within(guest.root, bin=guest.inode(stat.S_IFDIR), data=guest.inode(stat.S_IFDIR))
    guest.within(top["bin"], busybox=file, sh=guest.inode(stat.S_IFLNK, link="/bin/busybox"))
    disk = guest.dentry("/", guest.inode(stat.S_IFDIR))
    mount = guest.mounted(disk)
    guest.put_words(mount + 0x18, top["data"])
    guest.listed(guest.mount + 0x60, [mount + 0x70])
    found = files.find(guest.known, "/bin/busybox")
    cached = [test_files.page(guest, found, index, b"x") for index in range(2)]
    node = guest.new()
    guest.put_words(node + 0x28, *cached)
    guest.put_words(found.mapping + 8, node + 2)
    return guest


def user_kernel(memory: Pages) -> Kernel:
    return fake_kernel.kernel(memory, {"d_init_task": test_files.INIT}, test_files.OFFSETS)


def of_files(random: Random) -> Callable[[], Any]:
    kernel = user_kernel(Liar(valid_files(), random))

    def read() -> None:
        asking(lambda: files.find(kernel, "/data/program"), lambda: files.find(kernel, "/bin/../bin/sh"))
        file = files.find(kernel, "/bin/sh")
        frames = PageFrames.of(kernel, X86Mmu(test_files.DIRECT, 1 << 32, False))
        asking(lambda: PageCache(kernel, frames, file).read(100, 6000), lambda: spaces(kernel, file, 4096))
        asking(lambda: files.written(kernel, file.inode))

    return read


# --- page tables and code --------------------------------------------------------------------------------------------


class Tables:
    """Physical memory of a few frames, each of which is a page table that leads to some of them."""

    def __init__(self, random: Random, flags: Sequence[int], order: str = "<") -> None:
        self.frames = []
        for _ in range(4):
            rare = [frame << 12 | random.choice(flags) for frame in range(6)]
            rare += [random.getrandbits(64), random.choice(EDGES), (1 << 52) - 4096 | flags[0]]
            if order == ">":
                rare = [entry | random.choice((0, 4, 9, 13, 31)) for entry in rare]
            words = random.choices([0, *rare] if random.random() < 0.5 else [*[0] * 200, *rare], k=512)
            self.frames.append(struct.pack(f"{order}512Q", *words))

    def read(self, address: int, size: int) -> bytes:
        frame = self.frames[address >> 12] if address >> 12 < len(self.frames) else b""
        data = frame[address % 4096 : address % 4096 + size]
        if len(data) != size:
            raise Unreadable(address, size)
        return data


def paging_flags(random: Random) -> Iterator[int]:
    for _ in range(4):
        yield paging.PRESENT | random.choice((0, paging.WRITABLE, paging.LARGE, paging.USER, paging.NO_EXECUTE))


def of_page_tables(random: Random) -> Callable[[], Any]:
    tables, la57 = Tables(random, [*paging_flags(random)]), random.random() < 0.5
    start = random.choice((0xFFFFFFFF80000000, 0, 1 << 46))

    def read() -> int:
        asking(*(lambda at=at: paging.translate(tables.read, 0, at, la57=la57) for at in (start, *EDGES)))
        found = paging.mappings(tables.read, 0, start, start + (1 << 24), la57=la57)
        return sum(1 for _ in found)

    return read


def of_page_tables_of_all(random: Random) -> Callable[[], Any]:
    """All of a kernel's image, where each table may lead to itself."""
    tables = Tables(random, [*paging_flags(random)])
    area = 0xFFFFFFFF80000000, 0xFFFFFFFFC0000000
    return lambda: sum(1 for _ in paging.mappings(tables.read, 0, *area))


def of_radix(random: Random) -> Callable[[], Any]:
    tables = Tables(random, [radix.VALID, radix.VALID | radix.LEAF, 0], ">")
    return lambda: asking(*(lambda at=at: radix.translate(tables.read, 0, at) for at in EDGES))


class ArmMachine(arm_kernels.Machine):
    """A guest with page tables that lead to frames of `Tables`, and vCPUs that say anything of them."""

    def __init__(self, random: Random) -> None:
        tcr = random.choice((arm_kernels.TCR, arm_kernels.TCR, arm_tables.WIDE_TCR, random.getrandbits(64)))
        super().__init__([{"TTBR1_EL1": random.choice((0x1000, 0x3000)), "TCR_EL1": tcr, "el": 1}])
        flags = [arm_paging.VALID | random.choice((0, arm_paging.TABLE)) | rights for rights in _ARM_RIGHTS]
        self._tables = Tables(random, flags)

    def read_physical(self, address: int, size: int) -> bytes:
        return self._tables.read(address, size)


_ARM_RIGHTS = (arm_tables.CODE, arm_tables.CONSTANT, arm_tables.DATA, arm_paging.USER, 0)


def of_arm_page_tables(random: Random) -> Callable[[], Any]:
    tables = ArmMachine(random)
    tcr, user = tables.registers(tables.selected(), ("TCR_EL1",))["TCR_EL1"], 0x1000

    def read() -> None:
        for regime in filter(None, (arm_paging.Regime.of(tcr), arm_paging.Regime.of_user(tcr))):
            page = partial(arm_paging.translate, tables.read_physical, regime, user)
            places = (regime.start, regime.start + (1 << regime.bits) - 1, *EDGES)
            asking(*(partial(page, at) for at in places))
        linear = arm_reads.Linear(0, arm_tables.regime(), arm_tables.regime())
        asking(*(lambda at=at: arm_reads.place(tables.read_physical, (user, user), at, linear) for at in EDGES))

    return read


def of_arm_kernel(random: Random) -> Callable[[], Any]:
    """Where a kernel is, where each table may lead to itself, and all of it may be code."""
    return lambda: arm_find.find(ArmMachine(random))  # type: ignore[arg-type]


def of_arm_frames(random: Random) -> Callable[[], Any]:
    """Stacks, and the code of the functions in them."""
    found, valid = arm_frames.unwinder()
    memory = Liar(valid, random)
    for at in (arm_frames.RECORD, arm_frames.ABOVE):
        memory.put_words(at, *(random.choice((*_ARM_ADDRESSES, random.choice(EDGES))) for _ in range(2)))
    text = ArmText(fake_kernel.kernel(memory, arm_frames.NAMES))
    records = replace(found, code=text, read=memory.read)

    def read() -> int:
        asking(lambda: record_in_registers(text, records.entry))
        registers = {name: random.choice((*_ARM_ADDRESSES, *EDGES)) for name in (*arm_frames.GENERAL, "sp", "pc")}
        for depth in range(64):
            caller = records.caller(registers, exact=not depth)
            if caller is None:
                return depth
            registers = dict(caller[0])
        return 64

    return read


_ARM_ADDRESSES = (arm_frames.RECORD, arm_frames.ABOVE, arm_frames.FUNCTION, arm_frames.FUNCTION + 24, arm_frames.RETURN,
                  arm_frames.ENTRY, arm_frames.SP)  # fmt: skip


def of_arm_names(random: Random) -> Callable[[], Any]:
    """Tables of what is exported, found by code."""
    found = arm_names.kernel(arm_names.EXPORTED)
    assert isinstance(found.memory, Pages)
    found.memory = Liar(found.memory, random)
    return lambda: asking(*(lambda name=name: found.address(name) for name in _ARM_NAMES))


_ARM_NAMES = ("nr_cpu_ids", "init_task", "modules", "__start_BTF", "kprobe_table", "arch_timer_rate", "runqueues")


def of_code(random: Random) -> Callable[[], Any]:
    """What leads into functions, and their jump tables."""
    size = 0x400
    opcodes = [b"\xe8", b"\xe9", b"\x0f\x84", b"\x48\x8d\x05", b"\x68", b"\xc3", b"\x90", b"\xcc", b"\x48\xc7\xc0"]
    text = bytearray()
    while len(text) < size:
        text += random.choice(opcodes) + random.choice((b"", struct.pack("<i", random.randrange(-size, size))))
        text += random.choice((b"", struct.pack("<I", 0x81000000 + random.randrange(size))))
    code = bytes(text[:size])
    names = fake_kernel.symbols(_stext=SITES, one=SITES + 0x100, two=SITES + 0x200, d_end=SITES + size)
    constants = struct.pack("<128Q", *(SITES + random.randrange(size) for _ in range(128)))

    def memory(at: int, length: int) -> bytes:
        return constants[at - TABLE : at - TABLE + length]

    def read() -> None:
        functions = mid_function_entries.Functions(names, SITES, code)
        asking(lambda: mid_function_entries.find(code, SITES, functions, X86_64.decode, [(TABLE, constants)]))
        asking(lambda: jump_tables.targets(SITES, code, (SITES, SITES + 0x400), lambda at, n: code[at - SITES :][:n]))
        asking(lambda: jump_tables.targets(SITES, code, (TABLE, TABLE + 1024), memory))

    return read


def of_symbols(random: Random) -> Callable[[], Any]:
    """Look-ups in what any kernel says of itself."""
    count = random.randrange(40)
    addresses = sorted(random.choice((*EDGES, SITES + random.randrange(64))) for _ in range(count))
    names = [random.choice(("f", "g", "", "a" * 500, f"f{at}")) for at in range(count)]
    types = "".join(random.choice("tTdDAW?") for _ in range(count))
    table = SymbolTable(Symbols(array("Q", addresses), names, types))

    def read() -> None:
        for at in (*EDGES, SITES + 8):
            asking(lambda at=at: table.at(at), lambda at=at: table.function_bounds(at))
        asking(lambda: table.require("f"), lambda: list(table.functions()))
        asking(lambda: table.functions_matching("*a*a*a*b"))

    return read


READERS = {
    "kallsyms": Reader(of_kallsyms, 25, 60, 1 << 15),
    "btf": Reader(of_btf, 100, 200),
    "orc": Reader(of_orc, 60, 100),
    "call frames": Reader(of_call_frames, 100, 200),
    "elf": Reader(of_elf, 89, 200),
    "vmlinux": Reader(of_vmlinux, 80, 200),
    "image": Reader(of_image, 60, 100),
    "journal": Reader(of_journal, 80, 300),
    "probes of a journal": Reader(of_probes, 40, 300),
    "objects": Reader(of_objects, 20, 60),
    "modules": Reader(of_modules, 60, 100),
    "threads": Reader(of_threads, 30, 60),
    "threads of ppc64le": Reader(of_power_threads, 10, 20),
    "ftrace": Reader(of_ftrace, 60, 100),
    "tables": Reader(of_tables, 30, 60),
    "kprobes": Reader(of_kprobes, 40, 80),
    "files": Reader(of_files, 20, 60),
    "page tables": Reader(of_page_tables, 14, 20),
    "page tables of all": Reader(of_page_tables_of_all, 1, 2),
    "radix": Reader(of_radix, 20, 40),
    "page tables of aarch64": Reader(of_arm_page_tables, 10, 40),
    "kernel of aarch64": Reader(of_arm_kernel, 1, 4),
    "frames of aarch64": Reader(of_arm_frames, 20, 60),
    "names of aarch64": Reader(of_arm_names, 10, 40),
    "code": Reader(of_code, 10, 20),
    "symbols": Reader(of_symbols, 10, 40),
}


def test_the_shares_are_all_cases() -> None:
    assert sum(reader.share for reader in READERS.values()) == 1000


@pytest.mark.parametrize("name", READERS)
def test_a_hostile(name: str) -> None:
    reader = READERS[name]

    @settings(max_examples=CASES * reader.share // 1000 if FULL else reader.short, phases=[Phase.generate])
    @given(st.integers(0, (1 << 64) - 1))
    def case(seed: int) -> None:
        work = reader.make(Random(seed))
        if seed % 8 == 0:
            in_memory(work, reader.size)
        elif not FULL:
            within(work, LINES)
        else:
            soon(work, SECONDS)

    case()


def test_a_case_is_what_its_number_says() -> None:
    """So that one that fails can be made again."""
    for reader in READERS.values():
        assert outcome(reader.make(Random(3))).error == outcome(reader.make(Random(3))).error


def test_what_is_no_error_of_ours_is_seen() -> None:
    def broken() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        outcome(broken)
    with pytest.raises(OptprobeError):
        raise Unreadable(0, 8)
