"""Small data that made a reader work or fill memory without end: each is refused in one line, and the rest is read."""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import kallsyms, kernel_image, symbolfile, vmlinux
from gdb_optprobe.guest.btf import DEEPEST, MOST_MEMBERS, Btf
from gdb_optprobe.guest.linux import kprobes, list_head
from gdb_optprobe.guest.linux.arch.ppc64le import radix
from gdb_optprobe.guest.linux.arch.x86_64 import image_padding, mid_function_entries, nops, orc_unwind
from gdb_optprobe.guest.linux.arch.x86_64.mmu import KIND
from gdb_optprobe.guest.linux.exiting import Listed
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.jump_labels import JumpLabels
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.linux.modules import Module, State, Table
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.linux.user import cfi
from gdb_optprobe.guest.linux.user.cfi import CallFrames
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.guest.symbols import Symbols, SymbolTable
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.handlers.ctype import Array, Struct, size_of
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import _no_member
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.maps import journal_format
from gdb_optprobe.maps.ring import RingLayout, RingPosition
from tests.guest import blobs, elf_blobs
from tests.guest.blobs import BtfWriter
from tests.guest.linux import test_kprobes
from tests.guest.linux.arch.x86_64 import test_orc_unwind
from tests.guest.linux.fake_kernel import Pages, Structures, kernel, symbols
from tests.hostile.measured import in_memory, outcome, within

pytestmark = pytest.mark.thorough

FUNC_PROTO, FUNC, TYPEDEF, ARRAY, ENUM = 13, 12, 8, 3, 6
LINES = 2_000_000

# --- types -----------------------------------------------------------------------------------------------------------


def doubling(levels: int, leaf: bool) -> bytes:
    """Anonymous structs, each with two of the one before."""
    writer = BtfWriter()
    number = writer.integer("int", 4)
    last = writer.struct("", 4, *([("x", number, 0)] if leaf else []))
    for _ in range(levels):
        last = writer.struct("", 4, ("", last, 0), ("", last, 0))
    writer.struct("outer", 4, ("", last, 0))
    writer.struct("honest", 4, ("x", number, 0))
    return writer.blob()


@pytest.mark.parametrize("leaf", [True, False])
def test_anonymous_structs_that_double_per_level(leaf: bool) -> None:
    types = Btf(doubling(28, leaf))
    for _ in range(8):
        assert "has over 65,536 members" in within(lambda: types.struct("outer"), LINES).error
    assert [member.name for member in types.struct("honest").members] == ["x"]


def test_anonymous_structs_that_double_take_little_memory() -> None:
    blob = doubling(14, True)
    assert len(blob) < 1024
    found = in_memory(lambda: Btf(blob).struct("outer"), len(blob))
    assert len(found.value.members) == 1 << 14


def test_many_structs_that_each_double() -> None:
    writer = BtfWriter()
    last = writer.struct("", 4)
    for _ in range(14):
        last = writer.struct("", 4, ("", last, 0), ("", last, 0))
    for number in range(1000):
        writer.struct(f"s{number}", 4, ("", last, 0))
    types = Btf(writer.blob())
    failed = sum(bool(outcome(lambda n=number: types.struct(f"s{n}")).error) for number in range(1000))
    assert failed > 990, "those that were not refused are of 262,144 members together"


def test_60_000_nested_arrays() -> None:
    writer = BtfWriter()
    last = index = writer.integer("int", 4)
    for _ in range(60_000):
        last = writer.add("", ARRAY, 0, last, index, 0xFFFF_FFFF)
    writer.struct("outer", 4, ("x", last, 0))
    types = Btf(writer.blob())
    within(lambda: types.size(last), 20 * DEEPEST * 20)
    within(lambda: types.field("outer", "x"), 20 * DEEPEST * 20)
    found = within(lambda: BtfTypes(types).type(last), 100 * DEEPEST).value
    assert isinstance(found, Array) and size_of(found) is None


def test_200_000_chained_typedefs() -> None:
    writer = BtfWriter()
    last = writer.integer("int", 4)
    for _ in range(200_000):
        last = writer.add("", TYPEDEF, last)
    types = Btf(writer.blob())
    assert "nested too deeply" in within(lambda: types.resolve(last), 40 * DEEPEST).error


def wide_struct() -> BtfTypes:
    writer = BtfWriter()
    number = writer.integer("int", 4)
    inner = writer.struct("inner", 4, *((f"i{at}", number, 0) for at in range(1 << 10)))
    members = [(f"member_{at}", inner if at % 2 else number, 32 * at) for at in range(MOST_MEMBERS - 1)]
    writer.struct("wide", 1 << 20, *members)
    return BtfTypes(Btf(writer.blob()))


def test_a_mistyped_member_of_65_535() -> None:
    types = wide_struct()
    struct_ = types.named("struct", "wide")
    assert isinstance(struct_, Struct)
    found = within(lambda: _no_member(struct_, Fragment.whole("member_0x")), LINES)
    assert "did you mean 'member_0'?" in str(found.value)


def test_functions_that_share_65_535_parameters() -> None:
    writer = BtfWriter()
    number = writer.integer("int", 4)
    words = [word for _ in range(0xFFFF) for word in (0, number)]
    proto = writer.add("", FUNC_PROTO, 0, *words, vlen=0xFFFF)
    for _ in range(2000):
        writer.add("f", FUNC, proto)
    types = Btf(writer.blob())
    assert "parameters" in within(lambda: types.type(proto), 1000).error
    assert "functions 'f'" in within(lambda: types.function("f"), LINES).error


def test_members_and_enumerators_whose_names_overlap() -> None:
    """Each of 65,535 is called what is left of one string of 1 MiB."""
    for kind, each in ((4, 3), (ENUM, 2)):
        writer = BtfWriter()
        start = writer.string("n" * (1 << 20))
        words = [word for at in range(0xFFFF) for word in (start + at, 0, 0)[:each]]
        last = writer.add("s", kind, 4, *words, vlen=0xFFFF)
        blob = writer.blob()
        assert "too long" in in_memory(lambda blob=blob, last=last: Btf(blob).type(last), len(blob)).error


# --- kallsyms --------------------------------------------------------------------------------------------------------


def kernel_data(at_length: int = 0) -> bytes:
    """One token is so long."""
    tables = blobs.TOKENS
    try:
        if at_length:
            blobs.TOKENS = (*tables[:-1], "_" * at_length)
        return blobs.kallsyms(blobs.kernel_symbols(4000, percpu=20), blobs.LINUX_6_4)
    finally:
        blobs.TOKENS = tables


def test_a_token_of_1_mib() -> None:
    """Of 4,000 symbols, each of which has it."""
    data = kernel_data()
    whole = kallsyms.recover(data, blobs.RODATA)
    assert len(whole) == 4000
    zero = data.index(kallsyms.DIGITS)
    start = zero
    index = data.index(b"\0\0", zero)
    long = data[:index] + b"_" * (1 << 20) + data[index:]
    assert start
    found = in_memory(lambda: kallsyms.recover(long, blobs.RODATA), len(long))
    assert "symbol table (kallsyms)" in found.error


def test_names_that_expand_without_end() -> None:
    """Names of a hundred tokens, each of which stands for hundreds of characters."""
    count, token = 6_000, b"x" * 500
    table = [bytes([code]) if chr(code).isdigit() else b"" for code in range(256)]
    table[200] = token
    names = (b"\x64" + b"\xc8" * 100) * count
    markers = [101 * at for at in range(0, count, 256)]
    data = pack(count, names, markers, table)
    found = in_memory(lambda: kallsyms.recover(data, blobs.RODATA), len(data))
    assert "symbol table (kallsyms)" in found.error


def pack(count: int, names: bytes, markers: list[int], table: list[bytes]) -> bytes:
    strings = b"".join(token + b"\0" for token in table)
    index = struct.pack("<256H", *(sum(len(token) + 1 for token in table[:at]) & 0xFFFF for at in range(256)))
    offsets = struct.pack(f"<{count}i", *range(-count, 0))
    parts = (struct.pack("<I", count), names, struct.pack(f"<{len(markers)}I", *markers), strings, index)
    aligned = b"".join(part + bytes(-len(part) % 8) for part in (*parts, offsets, struct.pack("<Q", blobs.TEXT)))
    return bytes(4096) + aligned


def test_eight_decoy_token_tables() -> None:
    """Before each, words that look like markers and lead nowhere."""
    table = [bytes([code]) if chr(code).isdigit() else b"" for code in range(256)]
    strings = b"".join(token + b"\0" for token in table)
    index = struct.pack("<256H", *(sum(len(token) + 1 for token in table[:at]) for at in range(256)))
    decoy = (bytes(-len(strings) % 8).join((strings, b"")) + index).ljust(2048, b"\1")
    rising = array("I", range(600, 600 * (1 << 15), 600)).tobytes()
    data = b"".join((rising * 4).ljust(1 << 19, b"\1") + decoy for _ in range(8))
    found = in_memory(lambda: kallsyms.recover(data, blobs.RODATA), len(data))
    assert "symbol table (kallsyms)" in found.error


def test_constants_beyond_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The symbol table lies behind the limit: that there is none would be false."""
    data = kernel_data()
    monkeypatch.setattr(kallsyms, "LARGEST", 1 << 20)
    far = outcome(lambda: kallsyms.recover(bytes(1 << 20) + data, blobs.RODATA)).error
    assert "its read-only data has over 1,048,576 bytes" in far and "CONFIG_KALLSYMS" not in far
    none = outcome(lambda: kallsyms.recover(bytes(1 << 20), blobs.RODATA)).error
    assert "found in the 1 MiB where its read-only data may lie (is CONFIG_KALLSYMS off?)" in none


def test_digits_in_a_row_without_end() -> None:
    data = kallsyms.DIGITS * (1 << 16)
    found = within(lambda: kallsyms.recover(data, blobs.RODATA), LINES)
    assert "has over 1,024 candidates" in found.error


# --- programs --------------------------------------------------------------------------------------------------------


def elf(sections: list[tuple[int, int, int, int, int]], body: bytes, loads: int = 1) -> Elf:
    """sections: type, offset, size, link, size of each, offsets from the end of the header."""
    base = 64 + 56 * loads
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    at = base + len(body)
    head = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, at, 0, 64, 56, loads, 64, len(sections), 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0, base, base, 4096)
    headers = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, base + offset, size, link, 0, 8, each)
        for kind, offset, size, link, each in sections
    )
    data = ident + head + load * loads + body + headers
    return Elf.of("hostile", lambda offset, size: data[offset : offset + size], len(data), KIND)


def overlapping(names: int, count: int) -> tuple[bytes, list[tuple[int, int, int, int, int]]]:
    strings = b"n" * names + b"\0"
    rows = b"".join(struct.pack("<IBBHQQ", at, 2, 0, 1, 0x400000, 0) for at in range(count))
    return strings + rows, [(2, len(strings), len(rows), 1, 24), (3, 0, len(strings), 0, 0)]


def test_a_program_whose_symbols_names_overlap() -> None:
    """1 MiB of it: 20,000 symbols, each with a name of up to 500 KB."""
    body, sections = overlapping(1 << 19, 20_000)
    found = in_memory(lambda: elf(sections, body).symbols, len(body))
    assert found.value == (), "names that long are no function's"
    body, sections = overlapping(1 << 13, 40_000)
    assert "bytes of names" in in_memory(lambda: elf(sections, body).symbols, len(body)).error


def test_a_symbol_table_that_thousands_of_sections_are() -> None:
    body, sections = overlapping(4, 4)
    kind, at, size, _, each = sections[0]
    found = elf([sections[1], *[(kind, at, size, 0, each)] * 4000], body)
    assert within(lambda: len(found.symbols), 20_000).value == 4


def test_segments_of_code_without_end() -> None:
    assert "too much code" in within(lambda: elf([], b"", loads=2000), 100_000).error


FDES = (8 if os.environ.get("OPTPROBE_FULL") else 1) << 20


@pytest.mark.stress
def test_8_mib_of_fdes() -> None:
    common = struct.pack("<II", 16, 0) + b"\1zR\0\1\x78\x10\1\x1b\x0c\x07\x08"
    count = FDES // 20
    rows = [struct.pack("<IIiII", 16, len(common) + 20 * at + 4, 0, 16, 0) for at in range(count)]
    frames = CallFrames(common + b"".join(rows), 0x400000)
    found = in_memory(lambda: frames.rules(0x400000 + len(common) + 8), len(frames.data))
    assert found.value is not None


def test_more_fdes_than_are_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of those that are read holds; that nothing is said of other code is not known."""
    common = struct.pack("<II", 16, 0) + b"\1zR\0\1\x78\x10\1\x1b\x0c\x07\x08"
    at, places = 0x400000, [len(common) + 20 * number for number in range(100)]
    data = common + b"".join(struct.pack("<IIiII", 16, place + 4, 0, 4, 0) for place in places) + bytes(4)
    for most, told in ((100, True), (99, False), (50, False)):
        monkeypatch.setattr(cfi, "MOST_FRAMES", most)
        frames = CallFrames(data, at)
        of = [outcome(lambda frames=frames, place=place: frames.rules(at + place + 8)) for place in places]
        assert all(found.value is not None for found in of[:most])
        assert all(f".eh_frame has over {most} descriptions of frames" in found.error for found in of[most:])
        elsewhere = outcome(lambda frames=frames: frames.rules(at - 1))
        assert elsewhere.value is None and bool(elsewhere.error) != told


def test_600_000_fdes_are_all_read() -> None:
    common = struct.pack("<II", 16, 0) + b"\1zR\0\1\x78\x10\1\x1b\x0c\x07\x08"
    count, form = 600_000, struct.Struct("<IIiII")
    data = common + b"".join(form.pack(16, len(common) + 20 * at + 4, 0, 4, 0) for at in range(count))
    last = len(common) + 20 * (count - 1) + 8
    assert CallFrames(data, 0x400000).rules(0x400000 + last) is not None


def test_a_vmlinux_whose_symbols_names_overlap() -> None:
    rows = [("_text", 0xFFFFFFFF81000000, elf_blobs.TEXT, 1, 2), ("n" * (1 << 19), 0xFFFFFFFF81000010, 1, 0, 2)]
    data = bytearray(elf_blobs.vmlinux(rows))
    assert vmlinux.read(bytes(data)).symbols.names == ["_text"], "no kernel's name is that long"
    short = bytearray(elf_blobs.vmlinux([rows[0], *(("n" * 400, 0xFFFFFFFF81000010, 1, 0, 2) for _ in range(40_000))]))
    first = vmlinux.HEADER.size + vmlinux.SYMBOL.size
    for at in range(40_001):
        struct.pack_into("<I", short, first + 24 * at, 7 if at else 1)
    row = vmlinux.HEADER.unpack_from(short)[6] + 7 * vmlinux.SECTION.size
    assert vmlinux.SECTION.unpack_from(short, row)[1] == 3
    struct.pack_into("<Q", short, row + 32, 7 + 401)
    assert "bytes of names" in in_memory(lambda: vmlinux.read(bytes(short)), len(short)).error


@pytest.mark.parametrize("at", [1 << 63, (1 << 64) - 64])
def test_a_vmlinux_whose_sections_lie_beyond_all_memory(at: int) -> None:
    data = bytearray(elf_blobs.vmlinux([("_text", 0xFFFFFFFF81000000, elf_blobs.TEXT, 1, 2)]))
    struct.pack_into("<Q", data, 40, at)
    assert outcome(lambda: vmlinux.read(bytes(data))).error


def test_a_vmlinux_whose_symbols_are_moved_beyond_all_memory() -> None:
    rows = [("_text", 1 << 63, elf_blobs.TEXT, 1, 2), ("last", (1 << 64) - 1, elf_blobs.TEXT, 1, 2)]
    found = vmlinux.read(elf_blobs.vmlinux(rows))
    assert outcome(lambda: found.at((1 << 63) + 4096)).error


def test_elf_files_within_constants_without_end() -> None:
    vdso = bytearray(64)
    vdso[:7] = b"\x7fELF\x02\x01\x01"
    note = blobs.note(b"GNU\0", 3, bytes(20))
    data = bytes(vdso) * 4000 + note * 4000
    assert "ELF files within" in within(lambda: kernel_image.build_id(data), LINES).error


# --- rings, journal --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("following", [1 << 22, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("first", [0, 1 << 22, 1 << 40, (1 << 64) - 1])
def test_headers_of_rings(following: int, first: int) -> None:
    layout = RingLayout(2, 4)
    data = following.to_bytes(8, "little") + first.to_bytes(8, "little") + bytes(layout.size - 16)
    for since in (RingPosition(), RingPosition(1 << 21, tuple(range(1 << 10))), RingPosition(1 << 60)):
        found = within(lambda since=since: layout.decode(data, since), 3000).value
        assert found.records == () and len(found.position.pending) <= layout.places
        assert len(found.header) == 16


def test_pending_records_do_not_pile_up() -> None:
    """A guest that hands out numbers and never writes a record, read again and again."""
    layout, since = RingLayout(2, 4), RingPosition()
    for turn in range(1, 100):
        header = (16 * turn).to_bytes(8, "little") + (16 * (turn - 1)).to_bytes(8, "little")
        since = layout.decode(header + bytes(layout.size - 16), since).position
        assert len(since.pending) <= layout.places


def region(*bodies: bytes) -> bytes:
    half = journal_format.header(1)
    for body in bodies:
        half += struct.pack("<II", len(body), zlib.crc32(body, 1)) + body
    return half.ljust(1 << 17, b"\xcc") * 2


@pytest.mark.parametrize(
    "content",
    [b'{"a":[' + b"[]," * (1 << 20) + b"[]]}", b'{"a":"' + b"x" * (3 << 20) + b'"}', b"[" * (1 << 16)],
    ids=["lists", "text", "deep"],
)
def test_a_journal_that_unpacks_without_end(content: bytes) -> None:
    data = region(*[zlib.compress(content, 9)] * 8)
    assert in_memory(lambda: journal_format.decode(data, 0xCC), len(data)).error


def test_what_was_unwound_is_not_remembered_without_end() -> None:
    """A guest that is elsewhere at each hit."""
    guest = test_orc_unwind.Kernel([(0, test_orc_unwind.orc(test_orc_unwind.MODERN, test_orc_unwind.CALL))])
    for at in range(orc_unwind.REMEMBERED + 100):
        guest.tables.find(test_orc_unwind.TEXT + at, guest.memory.read)
    assert len(guest.tables._found) == 100


# --- lists and tables of the kernel ----------------------------------------------------------------------------------

AREA = (0xFFFFFFFFC0000000, 0xFFFFFFFFFF000000)
HEAD, FIRST = 0xFFFFFFFF81000000, 0xFFFF888000000000


class Endless:
    """Memory where every word points right behind itself."""

    def __init__(self, step: int = 64) -> None:
        self.reads = 0
        self.step = step

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        first = (address + self.step if address >= FIRST else FIRST).to_bytes(8, "little")
        return (first + bytes(max(0, size - 8)))[:size]

    def write(self, address: int, data: bytes) -> None:
        raise AssertionError("nothing is written")


def endless(*offsets: str, **names: int) -> Kernel:
    return Kernel(Endless(), symbols(**names), Structures(dict.fromkeys(offsets, 0)))


def test_a_list_without_end() -> None:
    there = endless()
    found = within(lambda: list(list_head.members(there, HEAD, 0)), 8 * LINES)
    assert "has over 524,288 members" in found.error


def test_lists_of_8192_cpus_that_are_one() -> None:
    kernel = endless()
    counted = Listed(PerCpu(kernel, (0,) * 8192), HEAD, 0, 0)
    assert "has over 524,288 threads" in within(lambda: list(counted.unlisted()), 8 * LINES).error


def test_the_threads_that_256_cpus_may_have() -> None:
    """Linux's own limit there; a ring of so many."""
    count, node = 262_144, 64

    class Ring:
        def read(self, address: int, size: int) -> bytes:
            last = address == HEAD + count * node
            return (HEAD if last else address + node).to_bytes(8, "little")[:size]

        def write(self, address: int, data: bytes) -> None:
            raise AssertionError("nothing is written")

    assert sum(1 for _ in list_head.members(Kernel(Ring(), symbols()), HEAD, 0)) == count
    assert count <= list_head.MOST


def test_modules_that_have_all_symbols_of_one_another() -> None:
    """4,000 of them, of 200,000 symbols each, in the same memory."""
    read: list[str] = []

    def text_of(module: Module) -> Any:
        read.append(module.name)
        raise OptprobeError("enough")

    symbols_ = Table(AREA[0] + 0x1000, 200_000)
    text = AREA[0], AREA[0] + 0x1000
    modules = [
        Module(AREA[0] + 64 * at, f"m{at}", State.LIVE, text, (0, 0), (), (), None, symbols_, 0, 0, (at,))
        for at in range(4000)
    ]
    found = LoadedText(SimpleNamespace(), endless(), AREA, text_of)  # type: ignore[arg-type]
    found._reader = SimpleNamespace(loaded=lambda: modules, strange={})  # type: ignore[assignment]
    assert found.modules() == () and len(read) == 5
    assert found.strange["m7"] == "what is loaded has over 1,048,576 symbols"


def test_pages_of_one_byte_of_a_radix_tree() -> None:
    """Whoever goes from page to page comes to an end."""
    for bits in range(32):
        entry = (radix.VALID | radix.LEAF | bits).to_bytes(8, "big")
        deeper = (radix.VALID | bits).to_bytes(8, "big")
        for levels in range(5):
            reads = iter([*[deeper] * levels, *[entry] * 5])
            page = radix.translate(lambda at, size, reads=reads: next(reads), 0, 0xC000000000000000)
            assert page is None or page.size >= 4096


def test_kprobes_without_end() -> None:
    memory = Endless()
    offsets = {"kprobe.hlist": 0, "kprobe.addr": 0, "kprobe.opcode": 0, "kprobe.pre_handler": 0}
    kernel = Kernel(memory, symbols(kprobe_table=HEAD), Structures(offsets))
    assert within(lambda: kprobes.known(kernel, X86_64), LINES).error


def test_a_kprobe_that_is_behind_itself() -> None:
    memory = test_kprobes.guest(test_kprobes.JUMP).memory
    memory.put_words(test_kprobes.PROBES, test_kprobes.PROBES)
    names = {name.removeprefix("d_"): at for name, at in test_kprobes.NAMES.items()}
    found = within(lambda: kprobes.known(kernel(memory, names, test_kprobes.LAYOUT), X86_64), 2000)
    assert "has no end" in found.error


def test_symbols_that_claim_half_of_all_memory() -> None:
    """Loops over the text have its length as their bound."""
    known = kernel(Pages(), {"_stext": 1 << 63, "_etext": (1 << 64) - 1})
    assert "has over 268,435,456 bytes" in within(lambda: image_padding.spans(known), 1000).error


def test_a_text_in_which_all_looks_like_a_call() -> None:
    size = 1 << 17
    text = (b"\xe8" + struct.pack("<i", 64)) * (size // 5)
    functions = mid_function_entries.Functions(symbols(f=HEAD, g=HEAD + size // 2, d_end=HEAD + size), HEAD, text)
    found = in_memory(lambda: mid_function_entries.find(text, HEAD, functions, X86_64.decode, []), size)
    assert not found.error, "most lead into their own function"
    functions = mid_function_entries.Functions(symbols(f=HEAD, d_end=HEAD + 64, d_more=HEAD + size), HEAD, text)
    assert "has over 6,1" in in_memory(
        lambda: mid_function_entries.find(text, HEAD, functions, X86_64.decode, []), size
    ).error


def test_a_function_of_64_mib_of_a_program() -> None:
    strings = b"\0huge\0"
    rows = struct.pack("<IBBHQQ", 1, 2, 0, 1, 0x400000, 1 << 26)
    found = elf([(2, len(strings), 24, 1, 24), (3, 0, len(strings), 0, 0)], strings + rows)
    assert found.resolve("huge") == 0x400000 and found.function(0x400010) is None


@pytest.mark.parametrize("count", [0, 1, 0xFFFF_FFFF])
def test_pages_of_traced_functions_without_end(count: int) -> None:
    class Records(Endless):
        def read(self, address: int, size: int) -> bytes:
            words = super().read(address, 8) + FIRST.to_bytes(8, "little") + count.to_bytes(8, "little")
            return (words * (size // 24 + 1))[:size]

    kernel = Kernel(Records(), symbols(ftrace_pages_start=HEAD))
    found = within(lambda: len(FtraceSites(kernel, nops.SITE)), LINES)
    assert "the kernel's list of traced functions has over" in found.error


def test_tables_between_symbols_that_are_far_apart() -> None:
    names = {"__start___jump_table": FIRST, "__stop___jump_table": FIRST + (1 << 24), "_stext": FIRST}
    kernel = Kernel(Endless(), symbols(**names))
    assert "has over 262,144 rows" in within(lambda: JumpLabels(kernel), 1000).error
    assert "has over 268,435,456 bytes" in within(lambda: kernel.read(FIRST, FIRST + (1 << 40)), 1000).error


def test_messages_do_not_list_all_namesakes() -> None:
    table = SymbolTable(Symbols(array("Q", range(1 << 63, (1 << 63) + 5000)), ["f"] * 5000, "t" * 5000))
    with pytest.raises(OptprobeError, match="5000 symbols are named 'f'") as raised:
        table.require("f")
    assert len(str(raised.value)) < 4096


def test_the_last_address_of_all_has_a_symbol_file() -> None:
    table = Symbols(array("Q", [HEAD, (1 << 64) - 1]), ["a", "b"], "tt")
    assert symbolfile.symbol_file(table, (HEAD, HEAD + 64), X86_64.elf)
