"""How a kernel writes its ORC tables is told by its code; tables that disagree with the code are refused, and named."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64 import orc, orc_layout, orc_unwind
from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import (
    BP,
    FIRST_NUMBERS,
    LEGACY,
    MODERN,
    PREV_SP,
    SECOND_NUMBERS,
    SP,
    UNDEFINED,
    UNKNOWN,
    Encoding,
    Entry,
    Kind,
)
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.isa.x86_64 import X86_64
from tests.guest.linux.fake_kernel import Pages, symbols

TEXT, IPS, ENTRIES = 0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8200_0000, 0xFFFF_FFFF_8210_0000
STRIDE, FUNCTIONS = 64, 40
# A function as compilers write it, and what is so before each of its instructions: (RSP + …, RBP is at the CFA - …).
PUSHING = "0f1f440000 4157 55 53 4883ec20 488b07 e800000000"
PUSHED = [(8, 0), (8, 0), (16, 0), (24, 24), (32, 24), (64, 24), (64, 24)]
STORING = "f30f1efa 4883ec28 48896c2418 89d5 488b07"
STORED = [(8, 0), (8, 0), (48, 0), (48, 24), (48, 24)]
FRAMED = "55 4889e5 4883ec40 488b07"
"""Behind its second instruction the CFA is RBP + 16."""
# A numbering that is like none that is known, of UNDEFINED, BP, SP and PREV_SP.
STRANGE = (UNDEFINED, BP, UNKNOWN, SP, UNKNOWN, PREV_SP)


def call(where: tuple[int, int], saved: int) -> Entry:
    return Entry(*where, PREV_SP if saved else UNDEFINED, -saved, Kind.CALL, signal=False)


def function(code: str) -> tuple[bytes, list[tuple[int, Entry]]]:
    """Its code, and from which offset on the stack is how."""
    data = bytes.fromhex(code)
    if code == FRAMED:
        states = [call((SP, 8), 0), call((SP, 16), 16), call((BP, 16), 16), call((BP, 16), 16)]
    else:
        states = [call((SP, depth), saved) for depth, saved in (PUSHED if code == PUSHING else STORED)]
    offsets = [insn.address for insn in X86_64.decode(data, 0)]
    return data, list(zip(offsets, states, strict=True))


def encoded(entry: Entry, layout: Encoding, numbers: Sequence[int]) -> bytes:
    kind = layout.kinds.index(entry.kind)
    bits = numbers.index(entry.sp_register) | numbers.index(entry.bp_register) << 4 | kind << layout.type[0] - 32
    return struct.pack("<hhH", entry.sp_offset, entry.bp_offset, bits)


class Facts:
    """types: where the bits of an orc_entry are, for a kernel with types."""

    def __init__(self, types: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.types = types
        self.known: dict[str, object] = {}

    def bits(self, struct: str) -> Mapping[str, tuple[int, int]]:
        if self.types is None:
            raise OptprobeError("no types")
        return self.types

    def fact(self, name: str) -> object:
        return self.known.get(name)

    def learn(self, name: str, value: object) -> None:
        self.known[name] = value


def kernel_of(layout: Encoding, numbers: Sequence[int], lying: int = 0) -> tuple[Kernel, Pages]:
    """One with functions of each kind. lying: of how many functions the tables say what is not so."""
    memory, rows = Pages(), []
    names = {}
    for number in range(FUNCTIONS):
        start = TEXT + number * STRIDE
        code, states = function((PUSHING, STORING, FRAMED)[number % 3])
        memory.put(start, code.ljust(STRIDE, b"\xcc"))
        names[f"f{number}"] = start
        depth = 24 if number < lying else 0
        rows += [
            (start + at, call((state.sp_register, state.sp_offset + depth * bool(at)), -state.bp_offset))
            for at, state in states
        ]
    memory.put(IPS, b"".join(struct.pack("<i", at - IPS - 4 * n) for n, (at, _) in enumerate(rows)))
    memory.put(ENTRIES, b"".join(encoded(entry, layout, numbers) for _, entry in rows))
    end = TEXT + FUNCTIONS * STRIDE
    tables = {
        "d___start_orc_unwind_ip": IPS,
        "d___stop_orc_unwind_ip": IPS + 4 * len(rows),
        "d___start_orc_unwind": ENTRIES,
    }
    bounds = {"d__stext": TEXT, "d__etext": end, "d__einittext": end}
    return Kernel(memory, symbols(**names, **tables, **bounds)), memory


@pytest.mark.parametrize("types", [True, False])
@pytest.mark.parametrize("layout", [LEGACY, MODERN], ids=["legacy", "modern"])
@pytest.mark.parametrize("numbers", [FIRST_NUMBERS, SECOND_NUMBERS], ids=["first", "second"])
def test_the_code_tells_the_numbers(layout: Encoding, numbers: tuple[int, ...], types: bool) -> None:
    places = {"type": layout.type} | {
        name: at for name, at in (("signal", layout.signal), ("end", layout.end)) if at is not None
    }
    facts = Facts(places if types else None)
    kernel, _ = kernel_of(layout, numbers)
    assert orc.tables(kernel, facts).encoding == layout.numbered(numbers)
    # The second time nothing is looked at.
    assert orc.tables(Kernel(Pages(), kernel.symbols), facts).encoding == layout.numbered(numbers)


def test_numbers_that_are_not_known_of_any_kernel() -> None:
    """What the code shows is believed; no frame is unwound by a register that it does not show."""
    kernel, _ = kernel_of(MODERN, STRANGE)
    found = orc.tables(kernel, Facts())
    assert found.encoding.registers == STRANGE
    for number in (2, 6):
        entry = orc_unwind.decode(struct.pack("<hhH", 8, 0, number | 2 << 8), found.encoding)
        assert entry is not None
        assert entry.sp_register == UNKNOWN


def test_rbp_that_is_kept_where_it_is_not_known() -> None:
    entry = struct.pack("<hhH", 8, -16, 5 | 12 << 4 | 2 << 8)
    memory = Pages()
    memory.put(IPS, struct.pack("<i", TEXT - IPS))
    memory.put(ENTRIES, entry)
    memory.put_words(0xFFFF_C900_0000_0000 - 8, TEXT + 1, TEXT + 2)
    tables = orc_unwind.Tables((TEXT, TEXT + 64), (IPS, IPS + 4), ENTRIES)
    state = orc_unwind.State({"rip": TEXT, "rsp": 0xFFFF_C900_0000_0000 - 8, "rbp": 0})
    assert orc_unwind.unwind(state, tables, memory.read) is None


def test_tables_that_disagree_with_the_code_are_refused() -> None:
    kernel, _ = kernel_of(MODERN, FIRST_NUMBERS, lying=FUNCTIONS // 4)
    facts = Facts()
    with pytest.raises(OptprobeError, match="are of an unknown layout"):
        orc.tables(kernel, facts)
    assert not facts.known


def test_a_kernel_without_tables() -> None:
    with pytest.raises(OptprobeError, match="CONFIG_UNWINDER_ORC"):
        orc.tables(Kernel(Pages(), symbols(_stext=TEXT)), Facts())


def test_what_changes_the_stack_in_another_way_ends_what_is_known() -> None:
    for code in ("415c", "4883e4f0", "c9", "4801c4", "488d65d8", "4889ec", "89e5", "6681ec0001", "9c"):
        insns = X86_64.decode(bytes.fromhex(code + "90" * 4), TEXT)
        assert [at for at, _ in orc_layout.expected(insns)] == [TEXT], insns[0].text
