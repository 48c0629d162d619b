from __future__ import annotations

from struct import pack

import pytest

from gdb_optprobe.guest.linux.text import KernelText
from gdb_optprobe.guest.text import Area, Fact
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import code
from tests.linux.fakes import Pages, kernel

TEXT = 0xFFFFFFFF81000000
DATA = 0xFFFFFFFF82000000
RECORD = DATA + 0x800
NAMES = {
    "_stext": TEXT,
    "hot": TEXT + 0x10,
    "other": TEXT + 0x30,
    "hot.cold": TEXT + 0x100,
    "tail": TEXT + 0x120,
    "ftrace_caller": TEXT + 0x200,
    "__entry_text_start": TEXT + 0x800,
    "__entry_text_end": TEXT + 0x900,
    "_etext": TEXT + 0x1000,
    "_sinittext": TEXT + 0x2000,
    "_einittext": TEXT + 0x3000,
    "d___start_rodata": DATA,
    "d___end_rodata": DATA + 0x1000,
}
NAMES_PLAIN = {name.removeprefix("d_"): at for name, at in NAMES.items()}


def text(tables: dict[str, int] | None = None, traced: bool = True, **listings: str) -> tuple[Pages, KernelText]:
    """A kernel whose functions hold `listings`; `hot` has a tracer's site unless not `traced`."""
    memory = Pages()
    memory.put(TEXT, b"\xcc" * 0x1000)
    memory.put(DATA, bytes(0x1000))
    for name, listing in listings.items():
        memory.put(NAMES[name.replace("_cold", ".cold")], code(listing))
    names = {**NAMES_PLAIN, **(tables or {})}
    if traced:
        names["ftrace_pages_start"] = DATA + 0xF00
        memory.put_words(DATA + 0xF00, RECORD)
        memory.put_words(RECORD, 0, RECORD + 0x40)
        memory.put(RECORD + 16, pack("<ii", 1, 0))
        memory.put_words(RECORD + 0x40, TEXT + 0x10, 0)
    return memory, KernelText(kernel(memory, names), X86_64)


@pytest.mark.parametrize(
    ("address", "area"),
    [
        (TEXT - 1, Area.NOT_TEXT),
        (TEXT + 0x10, Area.TEXT),
        (TEXT + 0x850, Area.ENTRY),
        (TEXT + 0x204, Area.COPIED),
        (TEXT + 0x2000, Area.INIT),
        (0xFFFFFFFFC0001000, Area.MODULE),
        (0x400000, Area.NOT_TEXT),
    ],
)
def test_area(address: int, area: Area) -> None:
    assert text()[1].area(address) is area


def test_jump_from_the_cold_part() -> None:
    _, there = text(
        hot="0f 1f 44 00 00  nop\n 0f 84 e5 00 00 00  je hot.cold\n 90  nop\n 90  nop\n c3  ret",
        hot_cold="e9 17 ff ff ff  jmp hot+12",
    )
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.complete and function.compiled
    assert [jump.source for jump in function.jumps_into(TEXT + 0x1B, TEXT + 0x1D)] == [TEXT + 0x100]


def test_cold_part_knows_its_function() -> None:
    _, there = text(
        hot="0f 1f 44 00 00  nop\n 0f 84 e6 00 00 00  je hot.cold+1\n c3  ret",
        hot_cold="90  nop\n 90  nop\n c3  ret",
    )
    function = there.function(TEXT + 0x101)
    assert function is not None and function.start == TEXT + 0x100
    assert [jump.source for jump in function.jumps_into(TEXT + 0x100, TEXT + 0x105)] == [TEXT + 0x15]


def test_jump_label_is_a_jump_while_it_is_a_nop() -> None:
    tables = {"__start___jump_table": DATA + 0x100, "__stop___jump_table": DATA + 0x110}
    memory, there = text(tables, hot="0f 1f 44 00 00  nop\n 66 90  xchg %ax, %ax\n 90  nop\n 90  nop\n c3  ret")
    at = DATA + 0x100
    memory.put(at, pack("<iiq", TEXT + 0x15 - at, TEXT + 0x18 - at - 4, 0))
    function = there.function(TEXT + 0x10)
    assert function is not None
    (jump,) = function.jumps_into(TEXT + 0x17, TEXT + 0x1A)
    assert (jump.source, jump.kind) == (TEXT + 0x15, "jump label")
    assert [mark.fact for mark in there.marks(TEXT + 0x11, TEXT + 0x16)] == [Fact.JUMP_LABEL]


def test_fixup_of_a_fault_is_a_jump() -> None:
    tables = {"__start___ex_table": DATA + 0x100, "__stop___ex_table": DATA + 0x10C}
    memory, there = text(tables, hot="0f 1f 44 00 00  nop\n 8b 07  mov (%rdi), %eax\n 90  nop\n 90  nop\n c3  ret")
    at = DATA + 0x100
    memory.put(at, pack("<iii", TEXT + 0x15 - at, TEXT + 0x18 - at - 4, 1))
    function = there.function(TEXT + 0x10)
    assert function is not None
    assert [jump.kind for jump in function.jumps_into(TEXT + 0x17, TEXT + 0x1A)] == ["fixup of a fault"]
    assert [mark.fact for mark in there.marks(TEXT + 0x15, TEXT + 0x16)] == [Fact.EXCEPTION]


def test_jump_table() -> None:
    switch = "0f 1f 44 00 00  nop\n ff 24 c5 40 00 00 82  jmp *table(,%rax,8)\n 90  nop\n 90  nop\n c3  ret"
    memory, there = text(hot=switch)
    memory.put_words(DATA + 0x40, TEXT + 0x1D, TEXT + 0x1E, 0)
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.blind_jumps == ()
    assert {jump.target for jump in function.jumps_into(TEXT + 0x1C, TEXT + 0x1F)} == {TEXT + 0x1D, TEXT + 0x1E}


def test_indirect_tail_call_of_a_compiled_function_is_not_blind() -> None:
    _, there = text(hot="0f 1f 44 00 00  nop\n ff e0  jmp *%rax")
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.blind_jumps == ()


def test_indirect_jump_of_assembler_code_is_blind() -> None:
    _, there = text(traced=False, hot="90  nop\n ff e0  jmp *%rax")
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.blind_jumps == (TEXT + 0x11,) and not function.compiled


def test_assembler_neighbours_share_their_tails() -> None:
    _, there = text(traced=False, hot="90  nop\n 90  nop\n c3  ret", other="eb df  jmp hot+1")
    function = there.function(TEXT + 0x10)
    assert function is not None
    assert [jump.source for jump in function.jumps_into(TEXT + 0x10, TEXT + 0x13)] == [TEXT + 0x30]


def test_foreign_breakpoint_makes_the_rest_untrusted() -> None:
    _, there = text(hot="0f 1f 44 00 00  nop\n 90  nop\n cc  int3\n 90  nop\n c3  ret")
    function = there.function(TEXT + 0x10)
    assert function is not None and not function.whole.complete


def test_traps_behind_returns_are_the_compilers() -> None:
    _, there = text(hot="0f 1f 44 00 00  nop\n 74 02  je +2\n c3  ret\n cc  int3\n 90  nop\n c3  ret")
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.complete


def test_our_own_branches_are_looked_through() -> None:
    memory = Pages()
    memory.put(TEXT, b"\xe9\0\0\0\0" + b"\xc3" + b"\xcc" * 0xFFF)
    names = {"hot": TEXT, "_stext": TEXT, "next": TEXT + 0x10, "_etext": TEXT + 0x1000}

    def overlay(address: int, data: bytes) -> bytes:
        return b"\x55" * 5 + data[5:] if address == TEXT else data

    function = KernelText(kernel(memory, names), X86_64, overlay).function(TEXT)
    assert function is not None and [insn.size for insn in function.hot[:5]] == [1] * 5


def test_text_is_read_anew_after_the_guest_has_run() -> None:
    memory, there = text(hot="0f 1f 44 00 00  nop\n c3  ret")
    there.function(TEXT + 0x10)
    memory.put(TEXT + 0x15, b"\x90\xc3")
    there.forget()
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.code[TEXT + 0x15].data == b"\x90"


def test_spell() -> None:
    _, there = text()
    assert there.spell(TEXT + 0x10) == f"{TEXT + 0x10:#x} <hot>"
    assert there.spell(TEXT + 0x13) == f"{TEXT + 0x13:#x} <hot+3>"
