from __future__ import annotations

from collections.abc import Sequence
from struct import pack

import pytest

from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.linux.arch.x86_64.text import SEVERAL, KernelText
from gdb_optprobe.guest.linux.core_text import FEW_AT_A_TIME
from gdb_optprobe.guest.machine import Changed
from gdb_optprobe.guest.memory import Image, KernelMemory
from gdb_optprobe.guest.text import Area, Fact, Jump
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.unpatched_text import unpatched
from tests.detours.fakes import code
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFFFFFF81000000
DATA = 0xFFFFFFFF82000000
RECORD = DATA + 0x800
NAMES = {
    "_stext": TEXT,
    "hot": TEXT + 0x10,
    "other": TEXT + 0x30,
    "hot.cold": TEXT + 0x100,
    "tail": TEXT + 0x120,
    "far": TEXT + 0x180,
    "ftrace_caller": TEXT + 0x200,
    "core_restore_code": TEXT + 0x220,
    "verify_cpu": TEXT + 0x240,
    "__cfi_called": TEXT + 0x260,
    "called": TEXT + 0x270,
    "bpf_dispatcher_xdp_func": TEXT + 0x280,
    "behind": TEXT + 0x2A0,
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


def test_the_code_of_all_parts_is_decoded_without_a_search_for_what_leads_into_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, found = text(hot="74 02  je 1f\nc3  ret\n90  nop", hot_cold="0f 0b  ud2")
    function = found.function(TEXT + 0x10)
    assert function is not None
    whole = function.whole.code
    found.forget()
    monkeypatch.setattr(KernelText, "all_entries", lambda self: pytest.fail("it was searched for"))
    again = found.function(TEXT + 0x10)
    assert again is not None and again is not function and again.code == whole and NAMES["hot.cold"] in again.code


@pytest.mark.parametrize(
    ("address", "area"),
    [
        (TEXT - 1, Area.NOT_TEXT),
        (TEXT + 0x10, Area.TEXT),
        (TEXT + 0x850, Area.ENTRY),
        (TEXT + 0x204, Area.COPIED),
        (TEXT + 0x220, Area.COPIED),
        (TEXT + 0x240, Area.EARLY),
        (TEXT + 0x260, Area.NOT_TEXT),
        (TEXT + 0x270, Area.TEXT),
        (TEXT + 0x2000, Area.INIT),
        (0xFFFFFFFFC0001000, Area.MODULE),
        (0x400000, Area.NOT_TEXT),
    ],
)
def test_area(address: int, area: Area) -> None:
    assert text()[1].area(address) is area


@pytest.mark.parametrize(
    ("end", "address", "area"),
    [
        (TEXT + 0x200_0000, 0xFFFFFFFFA0001000, Area.MODULE),
        (0xFFFFFFFFA300_0000, 0xFFFFFFFFA0001000, Area.NOT_TEXT),
        (0xFFFFFFFFA300_0000, 0xFFFFFFFFC0001000, Area.MODULE),
    ],
    ids=["no KASLR", "within the image", "behind the image"],
)
def test_modules_are_behind_the_image_wherever_that_is(end: int, address: int, area: Area) -> None:
    """A kernel that is not moved has them from 512 MiB on, where another has its own data."""
    assert text({"d__end": end})[1].area(address) is area


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
    _, there = text(traced=False, other="90  nop\n ff e0  jmp *%rax")
    function = there.function(TEXT + 0x30)
    assert function is not None and function.whole.blind_jumps == (TEXT + 0x31,) and not function.compiled


def test_table_of_assembler_code_does_not_tell_all() -> None:
    memory, there = text(traced=False, other="ff 24 c5 40 00 00 82  jmp *table(,%rax,8)\n 90  nop\n c3  ret")
    memory.put_words(DATA + 0x40, TEXT + 0x37, TEXT + 0x38, 0)
    function = there.function(TEXT + 0x30)
    assert function is not None and function.whole.blind_jumps == (TEXT + 0x30,)


def test_clone_of_a_compiler_is_compiled() -> None:
    memory = Pages()
    memory.put(TEXT, b"\xcc" * 0x1000)
    memory.put(TEXT + 0x10, code("ff e0  jmp *%rax"))
    names = {"_stext": TEXT, "poll.constprop.0": TEXT + 0x10, "next": TEXT + 0x20, "_etext": TEXT + 0x1000}
    function = KernelText(kernel(memory, names), X86_64).function(TEXT + 0x10)
    assert function is not None and function.compiled and function.whole.blind_jumps == ()


def test_neighbours_reach_with_short_branches() -> None:
    _, there = text(traced=False, hot="90  nop\n 90  nop\n c3  ret", other="eb df  jmp hot+1")
    function = there.function(TEXT + 0x10)
    assert function is not None
    assert [jump.source for jump in function.jumps_into(TEXT + 0x10, TEXT + 0x13)] == [TEXT + 0x30]


def test_neighbour_with_a_breakpoint_may_hide_a_short_branch() -> None:
    hidden = "90  nop\n cc de  int3 on: jmp hot+1\n c3  ret"
    _, there = text(traced=False, hot="90  nop\n 90  nop\n c3  ret", other=hidden)
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.complete
    assert Jump(TEXT + 0x31, TEXT + 0x11, "branch") in function.whole.jumps


def test_anybody_far_away_may_jump_in() -> None:
    _, there = text(hot="0f 1f 44 00 00  nop\n 90  nop\n c3  ret", far="e9 91 fe ff ff  jmp hot+6")
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.complete
    assert list(function.jumps_into(TEXT + 0x15, TEXT + 0x1A)) == [Jump(TEXT + 0x180, TEXT + 0x16)]


def test_an_address_that_the_function_takes_is_where_it_may_go() -> None:
    """As sync_core() does it: iretq to the instruction behind."""
    _, there = text(hot="0f 1f 44 00 00  nop\n 68 1c 00 00 81  push $hot+12\n 48 cf  iretq\n 90  nop\n c3  ret")
    function = there.function(TEXT + 0x10)
    assert function is not None
    assert list(function.jumps_into(TEXT + 0x1A, TEXT + 0x1F)) == [Jump(TEXT + 0x15, TEXT + 0x1C, "pointer")]


def test_jump_label_and_fixup_of_another_function() -> None:
    tables = {"__start___jump_table": DATA + 0x100, "__stop___jump_table": DATA + 0x110}
    tables |= {"__start___ex_table": DATA + 0x200, "__stop___ex_table": DATA + 0x20C}
    memory, there = text(tables, hot="0f 1f 44 00 00  nop\n 90  nop\n 90  nop\n c3  ret")
    memory.put(DATA + 0x100, pack("<iiq", TEXT + 0x180 - DATA - 0x100, TEXT + 0x16 - DATA - 0x104, 0))
    memory.put(DATA + 0x200, pack("<iii", TEXT + 0x190 - DATA - 0x200, TEXT + 0x17 - DATA - 0x204, 1))
    function = there.function(TEXT + 0x10)
    assert function is not None
    assert list(function.jumps_into(TEXT + 0x15, TEXT + 0x1A)) == [
        Jump(TEXT + 0x180, TEXT + 0x16, "jump label"),
        Jump(TEXT + 0x190, TEXT + 0x17, "fixup of a fault"),
    ]


def test_a_fault_that_goes_on_elsewhere_is_a_jump_too() -> None:
    """What lives there lives before the instruction that may fault."""
    tables = {"__start___ex_table": DATA + 0x200, "__stop___ex_table": DATA + 0x20C}
    memory, there = text(tables, hot="0f 1f 44 00 00  nop\n 8b 07  mov (%rdi), %eax\n c3  ret")
    memory.put(DATA + 0x200, pack("<iii", TEXT + 0x15 - DATA - 0x200, TEXT + 0x105 - DATA - 0x204, 1))
    function = there.function(TEXT + 0x10)
    assert function is not None
    assert Jump(TEXT + 0x15, TEXT + 0x105, "fixup of a fault") in function.whole.jumps


def test_a_jump_out_of_all_functions_is_somebody_elses() -> None:
    """It covers instructions that are not known, but at a tracer's site, where it covers one."""
    _, there = text(hot="0f 1f 44 00 00  nop\n e9 00 00 00 10  jmp nowhere\n 90  nop\n c3  ret")
    function = there.function(TEXT + 0x10)
    assert function is not None and not function.whole.complete
    _, there = text(hot="e9 00 00 00 10  jmp nowhere\n 90  nop\n c3  ret")
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.complete


def test_a_jump_into_init_text_is_the_kernels_own() -> None:
    """Functions marked __ref keep jumps to code that was freed."""
    _, there = text(hot="0f 1f 44 00 00  nop\n e9 e6 1f 00 00  jmp init\n c3  ret")
    function = there.function(TEXT + 0x10)
    assert function is not None and function.whole.complete


def test_code_whose_neighbour_may_run_into_it_is_not_known() -> None:
    """retbleed_untrain_ret ends in the middle of an instruction, whose rest is the next function."""
    memory = Pages()
    memory.put(TEXT, b"\xf6\xc3" + b"\xcc" * 0xFFE)
    names = {"_stext": TEXT, "return_thunk": TEXT + 1, "next": TEXT + 0x10, "_etext": TEXT + 0x1000}
    there = KernelText(kernel(memory, names), X86_64)
    function = there.function(TEXT + 1)
    assert function is not None and not function.whole.complete


def test_dispatcher_of_bpf_is_rewritten() -> None:
    _, there = text(bpf_dispatcher_xdp_func="0f 1f 44 00 00  nop\n e9 10 00 00 00  jmp\n c3  ret")
    start = TEXT + 0x280
    assert [mark.fact for mark in there.marks(start, start + 5)] == [Fact.STATIC_CALL]
    assert there.marks(start + 9, start + 14) == []


@pytest.mark.parametrize(("listed", "patched", "facts"), [(1, 1, [Fact.LOCK_PREFIX]), (0, 1, []), (1, 0, [])])
def test_lock_prefixes_come_back_with_the_second_cpu(listed: int, patched: int, facts: list[Fact]) -> None:
    tables = {"__smp_locks": DATA + 0x300, "__smp_locks_end": DATA + 0x304}
    tables |= {"smp_alt_modules": DATA + 0x400, "uniproc_patched": DATA + 0x500}
    memory, there = text(tables, hot="0f 1f 44 00 00  nop\n 3e ff 00  incl %ds:(%rax)\n c3  ret")
    memory.put(DATA + 0x300, pack("<i", TEXT + 0x15 - DATA - 0x300))
    memory.put_words(DATA + 0x400, DATA + 0x600 if listed else DATA + 0x400)
    memory.put(DATA + 0x500, bytes([patched]))
    assert [mark.fact for mark in there.marks(TEXT + 0x15, TEXT + 0x18)] == facts


def test_static_call_and_its_trampoline_are_rewritten() -> None:
    tables = {"__start_static_call_sites": DATA + 0x100, "__stop_static_call_sites": DATA + 0x108}
    tables |= {"__static_call_text_start": TEXT + 0x120, "__static_call_text_end": TEXT + 0x180}
    memory, there = text(tables, hot="0f 1f 44 00 00  nop\n e8 00 00 00 00  call\n c3  ret")
    memory.put(DATA + 0x100, pack("<ii", TEXT + 0x15 - DATA - 0x100, 0))
    for at in (TEXT + 0x15, TEXT + 0x120):
        assert [mark.fact for mark in there.marks(at, at + 5)] == [Fact.STATIC_CALL]


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


def test_a_branch_that_is_removed_does_not_stay_in_a_neighbours_text() -> None:
    """Functions share pieces of text: another one is looked at while the branch is there, this one after it went."""
    memory = Pages()
    memory.put(TEXT, b"\xe9\0\0\0\0" + b"\xc3" * 0xFFB)
    names = {"hot": TEXT, "_stext": TEXT, "next": TEXT + 0x10, "last": TEXT + 0x20, "_etext": TEXT + 0x1000}
    branches = {TEXT: b"\x55" * 5}

    def overlay(address: int, data: bytes) -> bytes:
        return branches[address] + data[5:] if address in branches else data

    there = KernelText(kernel(memory, names), X86_64, overlay)
    there.function(TEXT + 0x10)
    branches.clear()
    memory.put(TEXT, b"\x55" * 5)
    function = there.function(TEXT)
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


@pytest.mark.parametrize("asked", [1, 2 * SEVERAL])
def test_constants_are_read_at_once_where_many_are_asked_for_in_a_stop(
    asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found is the same, with the tables as they are in this stop."""
    switch = "0f 1f 44 00 00  nop\n ff 24 c5 40 00 00 82  jmp *table(,%rax,8)\n 90  nop\n 90  nop\n c3  ret"
    memory, there = text(hot=switch)
    reads, read = list[int](), memory.read

    def noted(address: int, size: int) -> bytes:
        reads.append(address)
        return read(address, size)

    monkeypatch.setattr(memory, "read", noted)
    for table in ((TEXT + 0x1D, 0), (TEXT + 0x1D, TEXT + 0x1E, 0)):
        memory.put_words(DATA + 0x40, *table)
        there.forget()
        reads.clear()
        for _ in range(asked):
            there._functions.clear()
            function = there.function(TEXT + 0x10)
            assert function is not None
            assert {jump.target for jump in function.jumps_into(TEXT + 0x1C, TEXT + 0x1F)} == {*table} - {0}
        assert reads.count(DATA + 0x40) == (2 if asked == 1 else SEVERAL - 1), "as 8 bytes an entry, and as 4"


class Images(Pages):
    """Memory that can be had at once. taken: how often it was."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, int]] = []
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        return super().read(address, size)

    def image(self, start: int, end: int, changed: Changed | None = None) -> Image:
        self.taken.append((start, end))
        return Image(start, super().read(start, end - start))


def test_text_that_is_asked_for_bit_by_bit_is_read_at_once() -> None:
    memory = Images()
    memory.pages = text(hot="c3  ret", other="90  nop")[0].pages
    found = KernelText(kernel(memory, NAMES_PLAIN), X86_64)
    places = [found.place(NAMES[name]) for name in ("hot", "other")]
    both = [place for place in places if place is not None]
    for _ in range(FEW_AT_A_TIME // 2):
        assert not memory.taken
        wanted = found.code(both)
    assert memory.taken == [(TEXT, TEXT + 0x1000)]
    before = memory.reads
    assert found.code(both) == wanted and memory.reads == before
    assert found.reader([(TEXT - 8, TEXT)]) is memory is found.reader([(TEXT + 0xFFF, TEXT + 0x1001)])
    memory.put(NAMES["hot"], b"\x90")
    found.forget()
    assert found.code(both) != wanted, "the guest has run"


class Seen(Pages):
    """Memory as a vCPU sees it."""

    def read_virtual(self, address: int, size: int) -> bytes:
        return self.read(address, size)

    def write_virtual(self, address: int, data: bytes) -> None:
        self.write(address, data)


def test_a_branch_that_was_taken_out_is_not_in_the_text_that_was_read_at_once() -> None:
    pages, dumps = Seen(), list[int]()
    pages.pages = text(hot="0f 1f 44 00 00  nopl\nc3  ret", other="90  nop")[0].pages

    def dump(pieces: Sequence[tuple[int, int]]) -> list[bytes]:
        dumps.append(len(pieces))
        return [pages.read(at, size) for at, size in pieces]

    memory = KernelMemory(pages, pages, lambda at: (at, 0x10000), dump)
    patch = Patch(NAMES["hot"], pages.read(NAMES["hot"], 5), code("e9 10 20 30 00  jmp"))
    patches = [patch]
    found = KernelText(kernel(memory, NAMES_PLAIN), X86_64, lambda address, data: unpatched(data, address, patches))
    place = found.place(NAMES["hot"])
    assert place is not None
    (wanted,) = found.code([place])
    memory.write(patch.address, patch.new)

    def ask() -> bytes | None:
        for _ in range(FEW_AT_A_TIME):
            (held,) = found.code([place])
        return held

    assert ask() == wanted and len(dumps) == 1
    memory.write(DATA, b"other")
    assert ask() == wanted and len(dumps) == 1, "nothing of the text was written"
    patches.clear()
    memory.write(patch.address, patch.old)
    assert found.code([place]) == [wanted] and found._read(place.start, place.end) == wanted
    assert ask() == wanted and len(dumps) == 2


def test_one_that_asks_for_much_at_a_time_reads_that() -> None:
    memory = Images()
    memory.pages = text()[0].pages
    found = KernelText(kernel(memory, NAMES_PLAIN), X86_64)
    for _ in range(3):
        assert found.reader([(TEXT + at, TEXT + at + 1) for at in range(runs.MANY)]) is memory
    assert not memory.taken
