"""What is believed of a module: what lies in its own memory. The list and the structures are those of a stranger."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from struct import pack

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le.module_text import PowerModuleText
from gdb_optprobe.guest.linux.arch.x86_64.module_text import ModuleText
from gdb_optprobe.guest.linux.arch.x86_64.text import KernelText
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.linux.module_symbols import ModuleSymbols
from gdb_optprobe.guest.linux.modules import Module, Modules, State, Table
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import Area, Fact
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.x86_64 import X86_64
from tests.guest.linux.fake_kernel import Pages, Structures, kernel

AREA = (0xFFFFFFFFC0000000, 0xFFFFFFFFFF000000)
HEAD = 0xFFFFFFFF81800000
BASE = AREA[0] + 0x10000
TEXT, CONSTANTS, DATA, END = BASE, BASE + 0x1000, BASE + 0x2000, BASE + 0x3000
MODULE = DATA + 0x100
SYMBOLS, TABLE = CONSTANTS + 0x400, CONSTANTS + 0x100
OFFSETS = {
    "state": 0,
    "list": 8,
    "name": 0x18,
    "core_layout.base": 0x180,
    "core_layout.size": 0x188,
    "core_layout.text_size": 0x18C,
    "core_layout.ro_size": 0x190,
    "init_layout.base": 0x1D0,
    "init_layout.size": 0x1D8,
    "init_layout.text_size": 0x1DC,
    "init_layout.ro_size": 0x1E0,
    "core_kallsyms.symtab": 0x2A0,
    "core_kallsyms.num_symtab": 0x2A8,
    "core_kallsyms.strtab": 0x2B0,
    "core_kallsyms.typetab": 0x2B8,
    "sect_attrs": 0x2C0,
    "notes_attrs": 0x2C8,
    "args": 0x2D0,
    "jump_entries": 0x300,
    "num_jump_entries": 0x308,
}
NAMES = b"\0first\0second\0table\0$x\0$d.1\0"
# (name's offset, address, size, type)
ROWS = (
    *((20, TEXT, 0, "t"), (1, TEXT, 5, "t"), (7, TEXT + 0x10, 3, "t"), (14, TABLE, 16, "r")),
    *((23, TEXT + 0x12, 0, "t"), (20, TEXT + 0x10, 0, "t")),
)
CODE = bytes.fromhex("0f1f440000" + "c3" * 11 + "5b5dc3")


def module_at(memory: Pages, state: State = State.LIVE) -> None:
    memory.put(TEXT, CODE + bytes(END - TEXT - len(CODE)))
    memory.put_words(HEAD, MODULE + 8, MODULE + 8)
    memory.put(MODULE, int(state).to_bytes(4, "little"))
    memory.put_words(MODULE + 8, HEAD, HEAD)
    memory.put(MODULE + 0x18, b"some\0")
    sizes = (END - BASE | 0x1000 << 32, DATA - BASE | (DATA - BASE) << 32)
    memory.put_words(MODULE + 0x180, BASE, *sizes, MODULE)
    memory.put_words(MODULE + 0x1D0, 0, 0, 0, MODULE)
    strings = SYMBOLS + 24 * len(ROWS)
    for number, (name, address, size, _) in enumerate(ROWS):
        memory.put_words(SYMBOLS + 24 * number, name, address, size)
    memory.put(strings, NAMES)
    memory.put(strings + len(NAMES), "".join(kind for *_, kind in ROWS).encode())
    memory.put_words(MODULE + 0x2A0, SYMBOLS, len(ROWS), strings, strings + len(NAMES), 1, 2, 3)
    # A jump label at `second`, which leads to its own end.
    memory.put(TABLE, (TEXT + 0x10 - TABLE & 0xFFFFFFFF).to_bytes(4, "little"))
    memory.put(TABLE + 4, (TEXT + 0x12 - TABLE - 4 & 0xFFFFFFFF).to_bytes(4, "little") + bytes(8))
    memory.put_words(MODULE + 0x300, TABLE, 1)


def reader(memory: Pages, typed: bool = True) -> Modules:
    offsets = {f"module.{name}": at for name, at in OFFSETS.items()}
    found = kernel(memory, {"modules": HEAD})
    return Modules(Kernel(memory, found.symbols, Structures(offsets if typed else {})), AREA)


def the_module(memory: Pages, typed: bool = True) -> Module:
    (found,) = reader(memory, typed).loaded()
    return found


@pytest.mark.parametrize("typed", [True, False])
def test_a_module_and_its_symbols(typed: bool) -> None:
    memory = Pages()
    module_at(memory)
    module = the_module(memory, typed)
    assert (module.name, module.text, module.init, module.state) == ("some", (TEXT, CONSTANTS), (0, 0), State.LIVE)
    assert (module.tables is not None) == typed, "which tables there are is told by types alone"
    symbols = ModuleSymbols(module, kernel(memory, {"vfs_read": HEAD}), 12)
    assert symbols.function_bounds(TEXT + 4) == (TEXT, TEXT + 0x10), "padding is a function's"
    assert symbols.function_bounds(TEXT + 0x11) == (TEXT + 0x10, TEXT + 0x13), "zeros behind it are nobody's"
    assert symbols.function_bounds(TEXT + 0x20) is None
    assert [name for name, _ in symbols.functions()] == ["first", "second"], "no marks of the assembler's"
    assert symbols.address("second") == TEXT + 0x10 and symbols.address("vfs_read") == HEAD
    assert symbols.lookup("vfs_read") == [], "what a function's parts are called is looked for in the module"
    assert symbols.address("__start___ex_table") == 0, "a module without a table has not the kernel's"


@pytest.mark.parametrize(("size", "stride"), [(8, 72), (12, 72), (20, 80)], ids=["plain", "a flag before", "two"])
def test_memory_in_parts_wherever_the_types_have_their_sizes(size: int, stride: int) -> None:
    """mem[] has got members between an address and its size: each is read where the types say."""
    memory, first = Pages(), 0x320
    module_at(memory)
    parts = ((TEXT, CONSTANTS), (DATA, END), (CONSTANTS, DATA), (END, END + 0x1000), (0, 0), (0, 0), (0, 0))
    memory.put(MODULE + first, bytes(7 * stride))
    for number, (start, end) in enumerate(parts):
        at = MODULE + first + number * stride
        memory.put_words(at, start)
        if size > 8:
            memory.put(at + 8, b"\1")
        memory.put(at + size, (end - start).to_bytes(4, "little"))
    told = {f"module.{name}": at for name, at in OFFSETS.items() if "layout" not in name}
    told |= {"module.mem": first, "module.arch": first + 7 * stride}
    told |= {"module_memory.base": 0, "module_memory.size": size}
    linux = Kernel(memory, kernel(memory, {"modules": HEAD}).symbols, Structures(told))
    found = Modules(linux, AREA)
    (module,) = found.loaded()
    assert found.strange == {}
    assert (module.text, module.constants, module.data) == (parts[0], (parts[2],), (parts[1], parts[3]))


def text_of(memory: Pages, typed: bool = True) -> ModuleText:
    names = kernel(memory, {"modules": HEAD})
    return ModuleText(the_module(memory, typed), names, X86_64, OriginalText(names, X86_64), lambda _: True)


@pytest.mark.parametrize("typed", [True, False])
def test_its_tables_on_ppc64le(typed: bool) -> None:
    """The exception table has rows of another size there."""
    memory, nop = Pages(), 0x60000000
    module_at(memory)
    memory.put(TEXT, nop.to_bytes(4, "little") * 8)
    rows = CONSTANTS + 0x80
    for number, at in enumerate((TEXT, TEXT + 8)):
        here = rows + 8 * number
        memory.put(here, pack("<ii", at - here, TEXT + 0x20 - here - 4))
    module = the_module(memory, typed)
    if module.tables is not None:
        module = replace(module, tables={**module.tables, "extable": Table(rows, 2)})
    names = kernel(memory, {"modules": HEAD, "_stext": BASE - 0x8000, "d__etext": BASE - 0x4000})
    text = PowerModuleText(module, names, OriginalText(names, PPC64LE))
    marks = {(mark.fact, mark.address) for mark in text.marks(TEXT, TEXT + 0xC)}
    known = {(Fact.EXCEPTION, TEXT), (Fact.EXCEPTION, TEXT + 8)}
    assert marks == (known if typed else {(Fact.UNKNOWN, TEXT + at) for at in (0, 4, 8)})


def test_its_tables_say_what_the_kernel_rewrites() -> None:
    memory = Pages()
    module_at(memory)
    text = text_of(memory)
    assert [(mark.fact, mark.address) for mark in text.marks(TEXT, TEXT + 0x20)] == [(Fact.JUMP_LABEL, TEXT + 0x10)]
    assert text.area(TEXT) is Area.LOADED and text.area(AREA[0]) is Area.MODULE
    assert text.spell(TEXT + 0x11) == f"{TEXT + 0x11:#x} <some:second+0x1>"


def test_where_tables_are_not_known_every_instruction_may_be_rewritten() -> None:
    memory = Pages()
    module_at(memory)
    marks = text_of(memory, typed=False).marks(TEXT, TEXT + 3)
    assert [(mark.fact, mark.address) for mark in marks] == [(Fact.UNKNOWN, at) for at in range(TEXT, TEXT + 3)]


def test_what_is_being_put_together_is_not_there() -> None:
    memory = Pages()
    module_at(memory, State.UNFORMED)
    found = reader(memory)
    assert not list(found.loaded()) and not found.strange


def _word(at: int, value: int) -> Callable[[Pages], None]:
    return lambda memory: memory.put_words(MODULE + at, value)


@pytest.mark.parametrize(
    "spoil",
    [
        _word(0x180, HEAD),  # memory that is no module's
        _word(0x180, BASE + 8),  # text that begins within a page
        _word(0x188, 0x3000 | 0x4000 << 32),  # more text than memory
        _word(0x2A0, HEAD),  # symbols elsewhere
        _word(0x2A8, 1 << 20),  # more of them than there is memory
        _word(0x2B0, 0),
        _word(0x2B8, END),
        _word(0x300, 0x1234),
        _word(0x308, 1 << 31),
        _word(0x18, 0),  # no name
        _word(0, 77),  # no state
    ],
)
def test_what_cannot_be_is_passed_over_and_told(spoil: Callable[[Pages], None]) -> None:
    memory = Pages()
    module_at(memory)
    spoil(memory)
    found = reader(memory)
    assert not list(found.loaded())
    assert len(found.strange) == 1


def test_a_list_that_leads_elsewhere_is_an_error_or_told() -> None:
    memory = Pages()
    module_at(memory)
    memory.put_words(MODULE + 8, MODULE + 8)
    with pytest.raises(OptprobeError):
        list(reader(memory).loaded())
    memory.put_words(MODULE + 8, HEAD + 0x1000)
    with pytest.raises(OptprobeError):
        list(reader(memory).loaded())


def test_which_modules_are_there_is_read_once_while_the_guest_stands() -> None:
    """And where it cannot be told, nobody is told that one has gone."""
    memory = Pages()
    module_at(memory)
    known = kernel(memory, {"modules": HEAD})
    both = LoadedText(KernelText(known, X86_64), known, AREA, lambda module: text_of(memory, typed=False))
    identity = both.identity(TEXT)
    assert identity is not None and both.staying() == {identity} and both.symbol(TEXT + 1) == "some:first+0x1"
    assert list(both.names("some")) == [("first", TEXT), ("second", TEXT + 0x10)]
    memory.put(MODULE, int(State.GOING).to_bytes(4, "little"))
    assert both.staying() == {identity}
    both.forget()
    assert both.identity(TEXT) == identity and not both.staying() and not list(both.names())
    memory.put_words(HEAD, HEAD, HEAD)
    both.forget()
    assert both.identity(TEXT) is None and both.area(TEXT) is Area.MODULE
    memory.put_words(HEAD, HEAD + 0x1000)
    both.forget()
    with pytest.raises(OptprobeError):
        both.identity(TEXT)


def test_no_bytes_are_more_than_an_error() -> None:
    """Whatever stands in its memory: no exception but ours, and nothing believed that lies outside."""
    random.seed(7)
    for _ in range(100):
        memory = Pages()
        module_at(memory)
        for _ in range(random.choice((1, 3, 20))):
            at = random.randrange(CONSTANTS, END - 8)
            memory.put(at, random.randbytes(random.choice((1, 4, 8))))
        for typed in (True, False):
            try:
                for module in reader(memory, typed).loaded():
                    symbols = ModuleSymbols(module, kernel(memory, {}), 12)
                    assert all(TEXT <= at < END for _, at in symbols.functions())
            except OptprobeError:
                continue


@pytest.mark.parametrize("name", [b"a\nb", b"\x1b[2J", b"a\xe2\x80\xaeb", b"a\\b", b"a b", b""])
def test_a_module_whose_name_is_none_is_told_by_its_address(name: bytes) -> None:
    memory = Pages()
    module_at(memory)
    memory.put(MODULE + 0x18, name + bytes(8))
    found = reader(memory)
    assert not list(found.loaded())
    assert found.strange == {f"{MODULE:#x}": "its name is not valid"}


def test_symbols_of_a_module_with_terminal_escapes_are_left_out() -> None:
    memory = Pages()
    module_at(memory)
    strings = SYMBOLS + 24 * len(ROWS)
    memory.put(strings + NAMES.index(b"second"), b"s\x1b\nnd")
    symbols = ModuleSymbols(the_module(memory), kernel(memory, {"vfs_read": HEAD}), 12)
    assert all(name.isprintable() and "nd" not in name for name, _ in symbols.functions())
