"""A ppc64le kernel of a few pages: what its code says of its data, where its tree maps it, where room is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack

import pytest

from gdb_optprobe.guest.linux import physical_patch
from gdb_optprobe.guest.linux.arch.ppc64le import areas, data_page, image_padding, radix
from gdb_optprobe.guest.linux.arch.ppc64le.arch import LINUX_PPC64LE
from gdb_optprobe.guest.linux.arch.ppc64le.constants import DerivedSymbols, constants
from gdb_optprobe.guest.linux.arch.ppc64le.find import LINEAR_MAP, LinearMap
from gdb_optprobe.guest.linux.arch.ppc64le.kernel_tree import VMALLOC, KernelMap
from gdb_optprobe.guest.linux.arch.ppc64le.restarts import Restarts
from gdb_optprobe.guest.linux.arch.ppc64le.text import PowerText
from gdb_optprobe.guest.linux.clock import LogClock, log_clock
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.kprobes import hashed
from gdb_optprobe.guest.text import Area, Fact
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from gdb_optprobe.isa.ppc64le.templates import load
from tests.guest.linux.fake_kernel import Machine, Pages, Structures, symbols

BASE = LINEAR_MAP[0]
TEXT = BASE + 0x8000
USER = TEXT + 0x100  # a function that uses what has no name
TOC = TEXT + 0x20000
TABLE = TOC + 0x10000 - 0x800
FRAME = 0x400000


def words(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def toc_setup(function: int) -> bytes:
    offset = TOC - function
    return words(0x3C4C0000 | offset + 0x8000 >> 16, 0x38420000 | offset & 0xFFFF)


def made_of_toc(register: int, address: int) -> bytes:
    """addis register,2,…; addi register,register,…"""
    offset = address - TOC
    return words(
        0x3C020000 | register << 21 | offset + 0x8000 >> 16 & 0xFFFF,
        0x38000000 | register << 21 | register << 16 | offset & 0xFFFF,
    )


NAMES = {
    "_stext": BASE,
    "start_text": TEXT,
    "find_bug": USER,
    "search_exception_tables": USER + 0x40,
    "is_ftrace_trampoline": USER + 0x80,
    "tail": USER + 0xC0,
    "d__etext": TEXT + 0x10000,
    "_einittext": TEXT + 0x20000,
}


def power_kernel(memory: Pages, names: Mapping[str, int] = NAMES) -> Kernel:
    return Kernel(memory, DerivedSymbols(symbols(**names), memory))


# --- names from code -------------------------------------------------------------------------------------------------


def test_constants_are_those_that_a_function_makes() -> None:
    code = toc_setup(USER) + made_of_toc(9, TABLE) + words(0x39490010, 0xE9690018, 0x39200001, 0x39090004)
    #        addi r10,r9,16   ld r11,24(r9)   li r9,1   addi r8,r9,4: of a number that is no address
    found = constants(PPC64LE.decode(code, USER), TOC)
    assert found.made == (TABLE, TABLE + 16)
    assert found.used == (TABLE + 24,)


def test_a_register_that_was_overwritten_makes_no_address() -> None:
    code = made_of_toc(9, TABLE) + words(0x7C691B78, 0x39490010)  # mr r9,r3; addi r10,r9,16
    assert constants(PPC64LE.decode(code, USER), TOC).made == (TABLE,)
    called = made_of_toc(9, TABLE) + words(0x48000101, 0x39490010)  # bl; addi r10,r9,16
    assert constants(PPC64LE.decode(called, USER), TOC).made == (TABLE,)


def table_at(memory: Pages, at: int, rows: int, target: int = USER) -> None:
    for number in range(rows):
        here = at + 12 * number
        memory.put(here, pack("<iiHH", target - here, 0, number, 0))


def test_a_table_gets_its_name_from_the_function_that_searches_it() -> None:
    memory = Pages()
    # The end is made first, and a third address is no bound of it.
    code = toc_setup(USER) + made_of_toc(9, TABLE + 36) + made_of_toc(10, TABLE) + made_of_toc(8, TABLE + 30)
    memory.put(USER, code)
    table_at(memory, TABLE, 3)
    found = power_kernel(memory)
    assert found.range("__start___bug_table", "__stop___bug_table") == (TABLE, TABLE + 36)


@pytest.mark.parametrize("printing", ["flags_string", "trace_raw_output_kmalloc"])
def test_the_flags_of_the_page_allocator_are_those_that_are_printed(printing: str) -> None:
    names = {**NAMES, printing: USER, "next": USER + 0x40}
    del names["find_bug"], names["search_exception_tables"]
    memory, text = Pages(), TABLE + 0x800
    memory.put(USER, toc_setup(USER) + made_of_toc(9, text) + made_of_toc(8, TABLE))
    memory.put(text, b"GFP_KERNEL\0" + bytes(32))
    memory.put_words(TABLE, 0xCC0, text, 0, 0)
    assert power_kernel(memory, names).address("gfpflag_names") == TABLE
    memory.put(text, b"dirty\0")
    assert power_kernel(memory, names).symbols.address("gfpflag_names") is None, "names of something else"


SCALE, BEGUN = 0xFA00_0000_0000_0000, 0x1234_5678
"""Of a timebase of 512 MHz, with a shift of 1."""


def timed(order: Sequence[int]) -> Kernel:
    """A kernel that has these in the variables of sched_clock: a word, a word, and one of 4 bytes behind another."""
    names = {**NAMES, "sched_clock": USER, "d_tb_ticks_per_usec": TABLE + 0x40}
    del names["find_bug"]
    memory = Pages()
    loads = words(0x81490000, 0xE9090008, 0xE8E90010)  # lwz r10,0(r9); ld r8,8(r9); ld r7,16(r9)
    memory.put(USER, toc_setup(USER) + made_of_toc(9, TABLE) + loads)
    memory.put(TABLE, words(order[0], 0xFFFF_FFFF))
    memory.put_words(TABLE + 8, *order[1:])
    memory.put_words(TABLE + 0x40, 512)
    return power_kernel(memory, names)


def test_the_logs_clock_is_what_sched_clock_reads() -> None:
    clock = LogClock(SCALE << 1, 64, -(BEGUN * SCALE << 1 >> 64))
    for order in ((1, SCALE, BEGUN), (1, BEGUN, SCALE)):
        found = timed(order)
        assert log_clock(found, LINUX_PPC64LE.clock, LINUX_PPC64LE.log_clock) == clock
        assert found.symbols.address("tb_to_ns_scale") == TABLE + 8 * order.index(SCALE)
    assert clock(BEGUN + 512_000_000) - clock(BEGUN) == 10**9
    for order in ((2, SCALE, BEGUN), (1, SCALE, SCALE), (1, BEGUN, BEGUN), (64, SCALE, BEGUN)):
        assert log_clock(timed(order), LINUX_PPC64LE.clock, LINUX_PPC64LE.log_clock) is None


def test_the_lists_of_kprobes_are_what_get_kprobe_looks_through() -> None:
    names = {**NAMES, "get_kprobe": USER}
    del names["find_bug"]
    for word, found in ((0, TABLE), (BASE + 0x4000, TABLE), (USER & 0xFFFF, None), (BASE + 4, None)):
        memory = Pages()
        memory.put(USER, toc_setup(USER) + made_of_toc(8, TABLE))
        memory.put_words(TABLE, *[0] * 63, word)
        assert power_kernel(memory, names).symbols.address("kprobe_table") == found


def restarting(memory: Pages, *rows: tuple[int, int, int]) -> Kernel:
    memory.put(USER + 0xC0, toc_setup(USER + 0xC0) + made_of_toc(9, TABLE) + made_of_toc(8, TABLE + 24 * len(rows)))
    for number, row in enumerate(rows):
        memory.put(TABLE + 24 * number, pack("<QQQ", *row))
    return power_kernel(memory, NAMES | {"search_kernel_restart_table": USER + 0xC0, "tail": USER + 0x100})


def test_sequences_that_are_started_again() -> None:
    kernel = restarting(Pages(), (USER + 8, USER + 20, USER + 8), (USER + 0x30, USER + 0x34, USER))
    found = Restarts(kernel)
    assert found.within(USER, USER + 0x40) == [USER + 8, USER + 12, USER + 16, USER + 0x30]
    assert found.within(USER + 12, USER + 16) == [USER + 12]
    kinds = {(mark.fact, mark.address) for mark in PowerText(kernel).marks(USER, USER + 16)}
    assert kinds == {(Fact.RESTART, USER + 8), (Fact.RESTART, USER + 12)}


def test_what_does_not_lead_to_text_is_no_table_of_sequences() -> None:
    kernel = restarting(Pages(), (USER + 8, USER + 20, USER + 8), (USER + 0x30, USER + 0x34, 0x1234))
    assert Restarts(kernel).within(USER, USER + 0x40) == []


def test_what_is_no_table_gets_no_name() -> None:
    memory = Pages()
    memory.put(USER, toc_setup(USER) + made_of_toc(9, TABLE + 36) + made_of_toc(10, TABLE))
    table_at(memory, TABLE, 3, target=TABLE + 0x100000)
    assert power_kernel(memory).range("__start___bug_table", "__stop___bug_table") == (0, 0)


def test_the_list_of_tracers_is_the_one_that_ends() -> None:
    memory = Pages()
    head, end = TABLE, TABLE + 0x40
    memory.put(USER + 0x80, toc_setup(USER + 0x80) + made_of_toc(9, head) + words(0xE9490000) + made_of_toc(8, end))
    memory.put_words(head, TABLE + 0x80)
    memory.put_words(TABLE + 0x80, 0, end)  # an ops, whose `next` is the end
    found = power_kernel(memory)
    assert (found.address("ftrace_ops_list"), found.address("ftrace_list_end")) == (head, end)


# --- kprobes of the guest's own --------------------------------------------------------------------------------------

HEADS, KPROBE, SLOT = TABLE, TABLE + 0x1000, USER + 0x400
LD_R3_40_R3, LWZ_R4_80_R3, LD_R4_136_R3 = 0xE8630028, 0x80830050, 0xE8830088
KPROBE_NAMES = {
    "get_kprobe": USER + 0xC0,
    "arch_disarm_kprobe": USER + 0x100,
    "arch_remove_optimized_kprobe": USER + 0x140,
    "aggr_pre_handler": USER + 0x180,
    "register_kprobe": USER + 0x1C0,
    "tail": USER + 0x200,
}


def kprobed(memory: Pages, at: int) -> Kernel:
    """With a kprobe at `at`, which is a jump."""
    memory.put(USER, toc_setup(USER) + words(*[0x60000000] * 14))
    memory.put(USER + 0xC0, toc_setup(USER + 0xC0) + made_of_toc(8, HEADS) + words(0x60000000) * 12)
    memory.put(USER + 0x100, words(LWZ_R4_80_R3, LD_R3_40_R3) + bytes(0x38))
    memory.put(USER + 0x140, words(LD_R4_136_R3) + bytes(0x3C))
    memory.put(HEADS, bytes(512))
    memory.put_words(HEADS + 8 * hashed(at), KPROBE)
    memory.put(KPROBE, bytes(160))
    memory.put_words(KPROBE + 40, at)
    memory.put(KPROBE + 80, memory.read(at, 4))
    memory.put_words(KPROBE + 64, USER + 0x180)
    memory.put_words(KPROBE + 136, SLOT)
    memory.put(at, words(0x48000000 | SLOT - at))
    names = {name: where for name, where in (NAMES | KPROBE_NAMES).items() if name != "find_bug"}
    found = symbols(**names, vfs_read=USER)
    return LINUX_PPC64LE.kernel(memory, found, Structures({}))


def test_the_local_entry_is_told_where_the_guest_has_a_kprobe_on_the_second_word_of_the_global_one() -> None:
    memory = Pages()
    text = PowerText(kprobed(memory, USER + 4))
    assert LINUX_PPC64LE.entry(USER, text) == USER + 8
    memory.put_words(HEADS + 8 * hashed(USER + 4), 0)
    text.forget()
    assert LINUX_PPC64LE.entry(USER, text) == USER, "a jump that nothing explains"


def test_what_a_function_tells_is_told_where_the_guest_has_a_kprobe_in_it() -> None:
    memory = Pages()
    kernel = kprobed(memory, USER + 0x14)
    memory.put(USER + 0x14, words(0x60000000))
    memory.put(USER, toc_setup(USER) + made_of_toc(9, TABLE) + words(0xE9690018))
    memory.put(KPROBE + 80, memory.read(USER + 0x14, 4))
    memory.put(USER + 0x14, words(0x48000000 | SLOT - USER - 0x14))
    assert isinstance(kernel.symbols, DerivedSymbols)
    assert kernel.symbols.constants_of("vfs_read").used == (TABLE + 0x18,)


# --- where things are ------------------------------------------------------------------------------------------------


def big(value: int) -> bytes:
    return value.to_bytes(8, "big")


def tree(memory: Pages, root: int, rights: int) -> None:
    """2 MiB of the linear map's start, through tables of 13, 9 and 9 bits, a page of 2 MiB at their end."""
    middle, last = root + 0x10000, root + 0x11000
    memory.put(root, big(1 << 63 | middle | 9))
    memory.put(middle, big(1 << 63 | last | 9))
    memory.put(last, big(1 << 63 | 1 << 62 | rights))


@pytest.mark.parametrize("rights, writable, executable", [(5, False, True), (6, True, False), (4, False, False)])
def test_a_radix_tree(rights: int, writable: bool, executable: bool) -> None:
    memory = Pages()
    tree(memory, FRAME, rights)
    page = radix.translate(memory.read_physical, FRAME, BASE + 0x12345)
    assert page == radix.Page(BASE, 0, 1 << 21, 1 << 63 | 1 << 62 | rights, FRAME + 0x11000)
    assert (page.writable, page.executable) == (writable, executable)


def test_what_a_radix_tree_does_not_map() -> None:
    memory = Pages()
    tree(memory, FRAME, 5)
    assert radix.translate(memory.read_physical, FRAME, BASE + (1 << 21)) is None


def test_a_page_of_text_becomes_one_of_data_and_is_known_as_such_later() -> None:
    memory = Pages()
    tree(memory, FRAME, 0x185)  # used before, as what mark_rodata_ro leaves
    code = BASE + (1 << 21)
    found = data_page.below(code, BASE, memory.read_physical, FRAME)
    assert found is not None and (found.start, found.end, found.is_data) == (BASE, code, False)
    physical_patch.apply(found.switch, memory)
    page = radix.translate(memory.read_physical, FRAME, BASE)
    assert page is not None and page.writable and not page.executable
    again = data_page.below(code, BASE, memory.read_physical, FRAME)
    assert again is not None and again.is_data and again.switch == found.switch
    physical_patch.undo(again.switch, memory)
    page = radix.translate(memory.read_physical, FRAME, BASE)
    assert page is not None and page.executable and not page.writable


PAGE_SIZE, START, MIDDLE, END = 1 << 16, BASE + 0x70000, BASE + 0x100000, BASE + 0x1F0000


def test_pages_of_a_leaf_that_has_constants_too_become_data() -> None:
    memory = Pages()
    tree(memory, FRAME, 0x185)
    found = data_page.split(START, MIDDLE, END, PAGE_SIZE, memory.read_physical, FRAME)
    assert found is not None and (found.start, found.end, found.is_data) == (START, MIDDLE, False)
    before = {number: bytes(page) for number, page in memory.pages.items()}
    # The table is in what the linear map maps: the fake has physical memory elsewhere.
    memory.put(END - BASE, bytes(0x100))
    physical_patch.apply(found.switch, memory)
    for at in range(BASE, BASE + (1 << 21), PAGE_SIZE):
        page = radix.translate(memory.read_physical, FRAME, at + 0x123)
        assert page is not None and (page.address, page.physical, page.size) == (at, at - BASE, PAGE_SIZE)
        assert (page.writable, page.executable) == ((True, False) if START <= at < MIDDLE else (False, True))
    again = data_page.was_split(BASE + 0x60000, END, memory.read_physical, FRAME)
    assert again is not None and again.is_data and again.switch == found.switch
    assert (again.start, again.end) == (START, MIDDLE)
    physical_patch.undo(again.switch, memory)
    assert {number: bytes(memory.pages[number]) for number in before} == before
    assert data_page.was_split(BASE, END, memory.read_physical, FRAME) is None


@pytest.mark.parametrize("rights", [4, 6, 7])
def test_a_leaf_that_is_no_text_is_not_split(rights: int) -> None:
    memory = Pages()
    tree(memory, FRAME, rights)
    assert data_page.split(START, MIDDLE, END, PAGE_SIZE, memory.read_physical, FRAME) is None


@pytest.mark.parametrize("rights, bottom", [(4, BASE), (7, BASE), (5, BASE + 1)])
def test_no_page_for_data(rights: int, bottom: int) -> None:
    memory = Pages()
    tree(memory, FRAME, rights)
    assert data_page.below(BASE + (1 << 21), bottom, memory.read_physical, FRAME) is None


def test_the_linear_map_is_there_while_a_cpu_is_little_endian() -> None:
    machine = Machine({"msr": 1 << 63 | 1}, {"msr": 1 << 63})
    view = LinearMap(machine)
    assert view.walk(BASE + 0x1234) == (0x1234, LINEAR_MAP[1] - BASE - 0x1234)
    assert view.walk(0xC000_3D00_0000_0000) is None, "vmalloc, with hash page tables and pages of 4K"
    assert view.walk(LINEAR_MAP[1]) is None and view.walk(0x1234) is None
    assert view.now(BASE + 0x1234) == 0x1234
    machine.state[0]["msr"] = 1 << 63  # firmware
    assert view.now(BASE + 0x1234) is None


def test_modules_are_mapped_by_the_kernel_s_own_tree_whatever_a_cpu_translates_by() -> None:
    """Firmware runs with translation off: the stub reads the linear map by chance, and no module."""
    machine = Machine({"msr": 1 << 63 | 1})
    module = VMALLOC[0] + (8 << 48) + 0x34_9680
    view = KernelMap(LinearMap(machine), symbols(_stext=BASE, __map_kernel_page=USER, d__etext=USER + 0x40))
    assert view.walk(module) is None, "no code tells where the tree is"
    machine.put(USER - BASE, toc_setup(USER) + made_of_toc(9, TABLE) + words(0xE9690018))  # ld r11,24(r9)
    machine.put(TABLE + 24 - BASE, (BASE + FRAME).to_bytes(8, "little"))
    machine.put(FRAME, bytes(0x22000))
    tree(machine, FRAME, 5)
    assert view.walk(module) is None, "not mapped"
    upper, middle, last = ((module >> shift & (1 << bits) - 1) * 8 for shift, bits in ((39, 13), (30, 9), (21, 9)))
    machine.put(FRAME + upper, big(1 << 63 | FRAME + 0x20000 | 9))
    machine.put(FRAME + 0x20000 + middle, big(1 << 63 | FRAME + 0x21000 | 9))
    machine.put(FRAME + 0x21000 + last, big(1 << 63 | 1 << 62 | 0x80_0000 | 6))
    into = module % (1 << 21)
    assert view.walk(module) == (0x80_0000 + into, (1 << 21) - into)
    assert view.walk(BASE + 0x1234) == (0x1234, LINEAR_MAP[1] - BASE - 0x1234)
    assert view.walk(VMALLOC[1]) is None


def test_the_counters_of_detours_that_were_left() -> None:
    first, second = BASE + 0x2714F00, BASE + 0x2714F08
    code = PPC64LE.count(first, BASE, PPC64LE.dead_at_entry()) + PPC64LE.count(second, BASE, Dead())
    assert list(image_padding.counters(code)) == [first, second]
    assert list(image_padding.counters(to_bytes(*load(9, first)))) == []
    toc = BASE + 0x1148100
    named = [PPC64LE.count(at, BASE, PPC64LE.dead_at_entry(), toc) for at in (first, toc - 0x20000, toc + 8)]
    assert list(image_padding.counters(b"".join(named), toc)) == [first, toc - 0x20000, toc + 8]
    assert list(image_padding.counters(named[0])) == [], "where r2 is not known it names nothing"


# --- text ------------------------------------------------------------------------------------------------------------


def test_areas() -> None:
    memory = Pages()
    memory.put(USER, words(0x60000000) * 64)
    text = PowerText(power_kernel(memory))
    assert text.area(BASE + 0x100) is Area.ENTRY
    assert text.area(USER) is Area.TEXT
    assert text.area(TEXT + 0x10000) is Area.NOT_TEXT
    assert text.area(0xC008000000000000) is text.area(0xC0003D0000000000) is Area.MODULE
    assert areas.of("kvmppc_realmode_machine_check") is Area.EARLY
    assert areas.of("optinsn_slot") is Area.NOT_TEXT
    assert areas.of("optprobe_template_entry") is Area.COPIED
    assert areas.of("ftrace_call") is areas.of("ftrace_regs_caller") is Area.COPIED, "the tracer rewrites them"
    assert areas.of("ftrace_ool_stub_text") is Area.COPIED, "kernels since 6.13 call their tracer there"
    assert areas.of("ftrace_call_adjust") is Area.TEXT
    assert areas.of("ret_from_fork") is Area.ENTRY
    assert areas.of("vfs_read") is areas.of("dev_exception_rm") is Area.TEXT


def test_where_nothing_may_stop() -> None:
    memory = Pages()
    listing = words(
        0x60000000,  # nop
        0x7D2018A8,  # ldarx r9,0,r3
        0x7D244A14,  # add r9,r4,r9
        0x7D2019AD,  # stdcx. r9,0,r3
        0x40C2FFF4,  # bne- to the ldarx
        0x0FE00000,  # twui r0,0: a trap of the kernel's
        0x4C000024,  # rfid
        0x4E800020,  # blr
    )
    memory.put(USER, listing + bytes(64))
    text = PowerText(power_kernel(memory))
    found = [text.area(USER + 4 * number) for number in range(8)]
    between = [Area.RESERVATION, Area.RESERVATION]
    assert found == [Area.TEXT, Area.TEXT, *between, Area.TEXT, Area.TRAP, Area.SYSTEM, Area.TEXT]


def test_words_of_a_jump_table_are_no_instructions() -> None:
    memory = Pages()
    nops = [0x60000000] * 0x10
    # bctr, then offsets from the table's own address, one of which reads as `attn`
    memory.put(USER, words(0x60000000, 0x4E800420, 0x10, 0x14, *nops, 0x4E800020) + bytes(64))
    function = PowerText(power_kernel(memory)).function(USER)
    assert function is not None
    assert USER + 4 in function.own and USER + 16 in function.own
    assert not {USER + 8, USER + 12} & function.own.keys()


def test_marks_of_the_exception_table_of_two_words() -> None:
    memory = Pages()
    memory.put(USER, words(0x60000000) * 16)
    memory.put(USER + 0x40, toc_setup(USER + 0x40) + made_of_toc(9, TABLE) + made_of_toc(10, TABLE + 16) + bytes(0x28))
    for number in range(2):
        at = TABLE + 8 * number
        memory.put(at, pack("<ii", USER + 4 * number - at, USER + 0x20 - at - 4))
    text = PowerText(power_kernel(memory))
    facts = [(mark.fact, mark.address) for mark in text.marks(USER, USER + 0x40)]
    assert facts == [(Fact.EXCEPTION, USER), (Fact.EXCEPTION, USER + 4)]
    function = text.function(USER)
    assert function is not None
    assert {(j.source, j.target) for j in function.whole.jumps} == {(USER, USER + 0x20), (USER + 4, USER + 0x20)}
