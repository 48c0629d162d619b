"""Frames by ORC: each type of entry, each base register, each layout of the entries."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import (
    LEGACY,
    MODERN,
    Encoding,
    Kind,
    State,
    Tables,
    decode,
    encoding,
    unwind,
)
from tests.guest.blobs import FakeMemory

TEXT, TEXT_END = 0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8110_0000
IPS, ENTRIES, LOOKUP = 0xFFFF_FFFF_82C0_0000, 0xFFFF_FFFF_82D0_0000, 0xFFFF_FFFF_82E0_0000
STACK = 0xFFFF_C900_0000_0000
UNDEFINED, PREV_SP, DX, DI, BP, SP, R10, R13, BP_INDIRECT, SP_INDIRECT = range(10)

LINUX_6_3 = encoding({"type": (40, 2), "signal": (42, 1), "end": (43, 1)})
ENCODINGS = {"legacy": LEGACY, "6.3": LINUX_6_3, "modern": MODERN}
CALL, REGS, PARTIAL, END, NOTHING = Kind.CALL, Kind.REGS, Kind.REGS_PARTIAL, Kind.END_OF_STACK, Kind.UNDEFINED


def orc(
    layout: Encoding, kind: Kind, sp: tuple[int, int] = (SP, 8), bp: tuple[int, int] = (0, 0), signal: bool = False
) -> bytes:
    """One entry, as objtool writes it."""
    where = {"type": layout.type, "signal": layout.signal, "end": layout.end}
    if layout.end and kind in (END, NOTHING):
        values, sp = {"type": 0, "end": kind is END}, (UNDEFINED, 0)
    else:
        values = {"type": layout.kinds.index(kind), "signal": signal}
    bits = sp[0] | bp[0] << 4
    for name, value in values.items():
        place = where[name]
        bits |= int(value) << (place[0] - 32) if place else 0
    return struct.pack("<hhH", sp[1], bp[1], bits)


class Kernel:
    """Tables with one entry for each (offset into the text, entry), and a stack of words."""

    def __init__(self, entries: Iterable[tuple[int, bytes]], layout: Encoding = MODERN, lookup: bool = True) -> None:
        ordered = sorted(entries)
        self.memory = FakeMemory()
        starts = [offset for offset, _ in ordered]
        self.memory.place(
            IPS, b"".join(struct.pack("<i", TEXT + start - IPS - 4 * at) for at, start in enumerate(starts))
        )
        self.memory.place(ENTRIES, b"".join(entry for _, entry in ordered))
        blocks = (TEXT_END - TEXT) // 256 + 1
        words, at = [], 0
        for block in range(blocks):
            while at + 1 < len(starts) and starts[at + 1] <= block * 256:
                at += 1
            words.append(at)
        self.memory.place(LOOKUP, struct.pack(f"<{blocks}I", *words))
        self.tables = Tables(
            (TEXT, TEXT_END),
            (IPS, IPS + 4 * len(starts)),
            ENTRIES,
            (LOOKUP, blocks) if lookup else (0, 0),
            layout,
        )

    def stack(self, *words: int) -> None:
        self.memory.place(STACK, struct.pack(f"<{len(words)}Q", *words))

    def unwind(self, **registers: int) -> State | None:
        return self.step(State({"rip": TEXT + 0x1000, "rsp": STACK, "rbp": 0xB0} | registers))

    def step(self, state: State) -> State | None:
        return unwind(state, self.tables, self.memory.read)


@pytest.fixture(params=ENCODINGS.values(), ids=list(ENCODINGS))
def layout(request: pytest.FixtureRequest) -> Encoding:
    found: Encoding = request.param
    return found


def one(entry: bytes, layout: Encoding = MODERN) -> Kernel:
    return Kernel([(0, entry)], layout)


def test_at_a_functions_entry(layout: Encoding) -> None:
    kernel = one(orc(layout, CALL), layout)
    kernel.stack(TEXT + 0x55)
    assert kernel.unwind() == State({"rip": TEXT + 0x55, "rsp": STACK + 8, "rbp": 0xB0}, exact=False)


def test_behind_pushes_with_rbp_saved(layout: Encoding) -> None:
    """push r15; …; push rbp; push rbx"""
    kernel = one(orc(layout, CALL, (SP, 32), (PREV_SP, -24)), layout)
    kernel.stack(0xB8, 0x5A5A, 0xF15, TEXT + 0x55)
    assert kernel.unwind() == State({"rip": TEXT + 0x55, "rsp": STACK + 32, "rbp": 0x5A5A}, exact=False)


@pytest.mark.parametrize(
    ("sp", "registers"),
    [
        ((BP, 16), {"rbp": STACK}),
        ((BP_INDIRECT, -8), {"rbp": STACK + 32}),
        ((SP_INDIRECT, 0), {"rsp": STACK + 24}),
        ((SP_INDIRECT, -8), {"rsp": STACK + 32}),
        ((R10, 0), {"r10": STACK + 16}),
        ((R13, 0), {"r13": STACK + 16}),
        ((DI, 0), {"rdi": STACK + 16}),
        ((DX, 0), {"rdx": STACK + 16}),
    ],
)
def test_every_base_of_the_stack_pointer(sp: tuple[int, int], registers: dict[str, int]) -> None:
    kernel = one(orc(MODERN, CALL, sp))
    kernel.stack(0, TEXT + 0x55, 0, STACK + 16, STACK + 24)
    # STACK + 32 holds the stack pointer of the case with an offset.
    found = kernel.unwind(**registers)
    assert found is not None
    assert (found.registers["rip"], found.registers["rsp"]) == (TEXT + 0x55, STACK + 16)


def test_a_base_that_is_not_known_any_more() -> None:
    assert one(orc(MODERN, CALL, (R10, 0))).unwind() is None
    assert one(orc(MODERN, CALL, (11, 0))).unwind() is None


def test_rbp_saved_by_rbp(layout: Encoding) -> None:
    kernel = one(orc(layout, CALL, (SP, 8), (BP, 8)), layout)
    kernel.stack(TEXT + 0x55, 0, 0x5A5A)
    assert kernel.unwind(rbp=STACK + 8) == State({"rip": TEXT + 0x55, "rsp": STACK + 8, "rbp": 0x5A5A}, exact=False)


def test_interrupted_code_has_all_registers(layout: Encoding) -> None:
    kernel = one(orc(layout, REGS, (SP, 0), signal=True), layout)
    kernel.stack(*range(16), TEXT + 0x66, 0x10, 0x246, STACK + 800, 0x18)
    found = kernel.unwind()
    assert found is not None
    assert found.exact
    names = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax".split()  # noqa: SIM905
    expected = dict(zip(names, range(16), strict=True)) | {"rip": TEXT + 0x66, "eflags": 0x246, "rsp": STACK + 800}
    assert found.registers == expected | {"ss": 0x18}


def test_an_interrupts_frame_leaves_registers_as_they_are(layout: Encoding) -> None:
    kernel = one(orc(layout, PARTIAL, (SP, 8), signal=True), layout)
    kernel.stack(0xE, TEXT + 0x66, 0x10, 0x246, STACK + 800, 0x18)
    found = kernel.unwind(r13=13)
    assert found is not None
    expected = {"rip": TEXT + 0x66, "eflags": 0x246, "rsp": STACK + 800, "ss": 0x18, "rbp": 0xB0, "r13": 13}
    assert (found.registers, found.exact) == (expected, True)


def test_user_mode_is_the_end(layout: Encoding) -> None:
    kernel = one(orc(layout, REGS, (SP, 0), signal=True), layout)
    kernel.stack(*range(16), 0x401000, 0x33, 0x246, 0x7FFE_0000, 0x2B)
    assert kernel.unwind() is None


@pytest.mark.parametrize("kind", [END, NOTHING])
def test_the_end_of_the_stack(layout: Encoding, kind: Kind) -> None:
    entry = orc(layout, kind, (UNDEFINED, 0))
    assert decode(entry, layout).kind is kind  # type: ignore[union-attr]
    kernel = one(entry, layout)
    kernel.stack(TEXT + 0x55)
    assert kernel.unwind() is None


def test_a_return_address_belongs_to_the_call_before_it() -> None:
    """A function that ends in a call of a function that does not return."""
    kernel = Kernel([(0, orc(MODERN, CALL, (SP, 16))), (0x1000, orc(MODERN, CALL, (SP, 8)))])
    kernel.stack(TEXT + 1, TEXT + 2)
    registers = {"rip": TEXT + 0x1000, "rsp": STACK, "rbp": 0}
    found = [kernel.step(State(registers, exact)) for exact in (True, False)]
    assert [state and state.registers["rip"] for state in found] == [TEXT + 1, TEXT + 2]


def test_a_call_of_a_null_pointer() -> None:
    kernel = one(orc(MODERN, CALL))
    kernel.stack(TEXT + 0x55)
    assert kernel.unwind(rip=0) == State({"rip": TEXT + 0x55, "rsp": STACK + 8, "rbp": 0xB0}, exact=False)


def test_what_cannot_be_read_or_is_no_kernel_text() -> None:
    kernel = one(orc(MODERN, CALL))
    assert kernel.unwind(rsp=0x1000) is None
    kernel.stack(TEXT)
    assert kernel.unwind(rip=TEXT_END) is None
    assert kernel.unwind(rip=0x401000) is None
    assert decode(bytes(4) + b"\x05\x07", MODERN) is None, "a type that has no meaning"


def test_a_frame_that_is_its_own_caller() -> None:
    kernel = one(orc(MODERN, CALL, (SP, 0)))
    kernel.memory.place(STACK - 8, struct.pack("<Q", TEXT + 0x1000))
    assert kernel.unwind() is None


@pytest.mark.parametrize("lookup", [True, False])
def test_every_entry_is_found(lookup: bool) -> None:
    starts = sorted({at * at * 7 % 0xFF000 for at in range(3000)})
    kernel = Kernel([(start, orc(MODERN, CALL, (SP, 8 * at))) for at, start in enumerate(starts)], lookup=lookup)
    for at in range(0, len(starts) - 1, 7):
        for address in (starts[at], starts[at + 1] - 1):
            entry = kernel.tables.find(TEXT + address, kernel.memory.read)
            assert entry is not None
            assert entry.sp_offset == 8 * at


def test_an_entry_takes_few_reads_and_is_read_once() -> None:
    starts = range(0, 0xFF000, 16)
    kernel = Kernel([(start, orc(MODERN, CALL)) for start in starts])
    for _ in range(3):
        kernel.tables.find(TEXT + 0x5008, kernel.memory.read)
    assert len(kernel.memory.accesses) == 3
    assert sum(size for _, size in kernel.memory.accesses) < 200


def test_the_encoding_comes_from_the_members() -> None:
    assert encoding({"sp_offset": (0, 0), "type": (40, 2), "end": (42, 1)}) == LEGACY
    assert encoding({"sp_offset": [0, 0], "type": [40, 3], "signal": [43, 1]}) == MODERN
