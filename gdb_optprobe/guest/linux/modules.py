"""The modules of a running kernel: the addresses of their text and of the kernel's tables about it.

    modules ─► struct module ─► struct module ─► …             (include/linux/module.h, kernel/module/main.c)
               │ state, name            memory of its own
               │ core_layout, or ──────►┌──────┬────────┬──────┐      and for as long as its init runs, init's
               │ mem[] since 6.4        │ text │ rodata │ data │
               │                        └──────┴────────┴──────┘
               └ core_kallsyms, extable, jump_entries, static_call_sites, bug_table: all within that memory

    COMING     its tables are complete from do_init_module() on, not before
    LIVE
    GOING      its exit runs; text and symbols are there
    UNFORMED   being constructed or freed: not used

A module is used only if all of its data is consistent; else it is skipped and reported (`strange`).
Where the kernel has no types, layouts are derived from where the first module's pointers lead; tables are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from gdb_optprobe import guest_text
from gdb_optprobe.budget import OverBudget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import list_head
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel

# Limits (budget.py), and what the largest kernels of Debian's have.
MOST = 4096
"""Modules: 4,000 are built, some 200 loaded."""
LARGEST = 1 << 26
"""Bytes of one's memory: 8.6 MB (amdgpu)."""
LARGEST_STRUCT = 1 << 14
"""Bytes of a struct module: 768."""
PAGE = 4096
NAME_SIZE = 56  # MODULE_NAME_LEN
SYMBOL = 24  # sizeof(Elf64_Sym)
MEMORIES = 7  # MOD_MEM_NUM_TYPES: text, data, rodata, ro_after_init, and init's text, data, rodata
CORE_MEMORIES, INIT_TEXT = 4, 4

Range = tuple[int, int]


class State(IntEnum):
    LIVE, COMING, GOING, UNFORMED = range(4)


@dataclass(frozen=True, slots=True)
class Table:
    """`count` rows from `start` on; none at 0."""

    start: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded module.

    address:     of its struct module.
    text, init:  of its code; init's is freed when init has run, (0, 0) then.
    constants, data: what else it has in memory of its own.
    tables:      by the name of the member that points to each; None where it is not known which does.
    symbols, strings, types: its kallsyms.
    load:        differs from one load to the next: pointers to what each load allocates.
    """

    address: int
    name: str
    state: State
    text: Range
    init: Range
    constants: tuple[Range, ...]
    data: tuple[Range, ...]
    tables: Mapping[str, Table] | None
    symbols: Table
    strings: int
    types: int
    load: tuple[int, ...] = field(repr=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """A value that is the same for as long as this module stays loaded, whatever its state."""
        return self.address, self.name, self.text, self.load

    @property
    def memory(self) -> tuple[Range, ...]:
        return self.text, *self.constants, *self.data

    def holds(self, address: int, size: int = 1) -> bool:
        return any(start <= address and address + size <= end for start, end in self.memory)


# Tables by (pointer, count) of struct module, and the bytes of a row at the least.
_TABLES = {
    "extable": ("num_exentries", 8),
    "jump_entries": ("num_jump_entries", 16),
    "static_call_sites": ("num_static_call_sites", 8),
    "bug_table": ("num_bugs", 8),
    "arch.orc_unwind_ip": ("arch.num_orcs", 4),
    "arch.orc_unwind": ("arch.num_orcs", 6),
}
_LOAD = ("args", "sect_attrs", "notes_attrs", "holders_dir")


@dataclass(frozen=True, slots=True)
class Mem:
    """mem[] of struct module: offset of the first, distance to the next, and offsets of address and size in each."""

    first: int
    stride: int
    base: int
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in struct module. mem: of mem[]; None before 6.4.

    tabled: whether all tables are known.
    """

    offsets: Mapping[str, int]
    mem: Mem | None = None
    tabled: bool = True

    @property
    def size(self) -> int:
        last = self.mem.first + MEMORIES * self.mem.stride if self.mem is not None else 0
        return max(last, *self.offsets.values()) + 8

    @classmethod
    def of(cls, kernel: Kernel) -> Layout:
        """Return the layout by the kernel's types. Raises OptprobeError where it has none."""
        needed = ("state", "list", "name", "core_kallsyms.symtab", "core_kallsyms.num_symtab", "core_kallsyms.strtab")
        offsets = {name: kernel.offset("module", name) for name in needed}
        wanted = [name for pointer, (count, _) in _TABLES.items() for name in (pointer, count)]
        offsets |= _those_there(kernel, (*wanted, "core_kallsyms.typetab", *_LOAD))
        mem = _those_there(kernel, ("mem", "arch"))
        if "mem" in mem:
            stride, odd = divmod(mem["arch"] - mem["mem"], MEMORIES)
            base, size = (kernel.offset("module_memory", name) for name in ("base", "size"))
            if odd or stride < max(base + 8, size + 4):
                raise NoSuchKernel("the layout of modules' memory is not known")
            return cls(offsets, Mem(mem["mem"], stride, base, size))
        parts = [f"{layout}.{part}" for layout in ("core_layout", "init_layout") for part in _PARTS]
        offsets |= {name: kernel.offset("module", name) for name in parts}
        return cls(offsets)

    @classmethod
    def derived(cls, address: int, data: bytes) -> Layout:
        """Derive the layout from the pointers of the struct module at `address`. Raises OptprobeError.

        struct module_layout: base, four sizes of 4 bytes, and mtn.mod, which is the module; init's comes behind core's.
        struct mod_kallsyms: symtab, num_symtab, strtab, typetab, which layout_symtab() puts one right behind the other.
        """

        def word(at: int) -> int:
            return int.from_bytes(data[at : at + 8], "little")

        def size(at: int) -> int:
            return word(at) & 0xFFFF_FFFF

        layouts = [at for at in range(0, len(data) - 32, 8) if word(at + 24) == address and not word(at) % PAGE]
        core = next((at for at in layouts if 0 <= address - word(at) < size(at + 8)), None)
        init = next((at for at in layouts if core is not None and at > core), None)
        if core is None or init is None:
            raise NoSuchKernel("the layout of modules' memory is not known (no BTF)")
        start, end = word(core), word(core) + size(core + 8)
        for at in range(init, len(data) - 56, 8):
            symbols, strings, types = word(at), word(at + 16), word(at + 24)
            if start <= symbols < strings == symbols + SYMBOL * size(at + 8) < types < end:
                named = {name: at + 8 * place for place, name in enumerate(_KALLSYMS)}
                parts = {"base": 0, "size": 8, "text_size": 12, "ro_size": 16}
                layout = {f"core_layout.{part}": core + offset for part, offset in parts.items()}
                layout |= {f"init_layout.{part}": init + offset for part, offset in parts.items()}
                return cls({"state": 0, "list": LINKS, "name": NAME, **layout, **named}, tabled=False)
        raise NoSuchKernel("the layout of modules' symbols is not known (no BTF)")


# struct mod_kallsyms, and behind it what every load allocates (include/linux/module.h).
_KALLSYMS = (
    *("core_kallsyms.symtab", "core_kallsyms.num_symtab", "core_kallsyms.strtab", "core_kallsyms.typetab"),
    *("sect_attrs", "notes_attrs", "args"),
)
LINKS, NAME = 8, 24
SPAN = 0x500
"""Bytes of a struct module that are looked at."""
_PARTS = ("base", "size", "text_size", "ro_size")


def _those_there(kernel: Kernel, members: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for name in members:
        try:
            found[name] = kernel.offset("module", name)
        except OptprobeError:
            continue
    return found


def _by_types(kernel: Kernel) -> Layout | None:
    """Return the layout by the kernel's types; None where they do not have it."""
    try:
        return Layout.of(kernel)
    except OptprobeError:
        return None


class Modules:
    """Reads the list of modules."""

    def __init__(self, kernel: Kernel, area: Range) -> None:
        """Derive the layouts. area: of modules' text. Raises OptprobeError where modules cannot be read."""
        self._kernel = kernel
        self._area = area
        self._head = kernel.address("modules")
        self._layout = _by_types(kernel)
        self.strange: dict[str, str] = {}

    def loaded(self) -> Iterator[Module]:
        """Yield the loaded modules, except UNFORMED ones. Raises OptprobeError where the list is broken."""
        self.strange = {}
        links = self._layout.offsets["list"] if self._layout is not None else LINKS
        for number, address in enumerate(list_head.members(self._kernel, self._head, links)):
            if number == MOST:
                raise OverBudget("the kernel's list of modules", MOST, "members")
            if self._layout is None:
                self._layout = Layout.derived(address, self._kernel.memory.read(address, SPAN))
            module = self._read(address, self._layout)
            if module is not None:
                yield module

    def _read(self, address: int, layout: Layout) -> Module | None:
        if layout.size > LARGEST_STRUCT:
            raise OverBudget("a struct module", LARGEST_STRUCT, "bytes")
        if not self._area[0] <= address < self._area[1]:
            self.strange[f"{address:#x}"] = "it is not in memory for modules"
            return None
        words = _Words(self._kernel.memory.read(address, layout.size), layout)
        name = words.name()
        try:
            return self._module(address, name, words, layout.tabled)
        except (OptprobeError, ValueError) as wrong:
            self.strange[name or f"{address:#x}"] = str(wrong)
            return None

    def _module(self, address: int, name: str, words: _Words, tabled: bool) -> Module | None:
        state = State(words.number("state", 4))
        if state is State.UNFORMED:
            return None
        if not name:
            raise NoSuchKernel("its name is not valid")
        text, init, constants, data = words.ranges()
        for start, end in (text, init, *constants, *data):
            if start and not (self._area[0] <= start <= end <= self._area[1] and end - start <= LARGEST):
                raise NoSuchKernel(f"its memory {start:#x}-{end:#x} is not in memory for modules")
        if text[0] % PAGE or not text[0] < text[1]:
            raise NoSuchKernel(f"its text {text[0]:#x}-{text[1]:#x} is none")
        tables = {pointer: words.table(pointer, count) for pointer, (count, _) in _TABLES.items()}
        symbols = words.table("core_kallsyms.symtab", "core_kallsyms.num_symtab")
        strings, types = words.number("core_kallsyms.strtab"), words.number("core_kallsyms.typetab")
        load = tuple(words.number(member) for member in _LOAD)
        known = tables if tabled else None
        module = Module(address, name, state, text, init, constants, data, known, symbols, strings, types, load)
        sizes = {pointer: size for pointer, (_, size) in _TABLES.items()}
        for pointer, table in tables.items():
            _check(module, pointer, table, sizes[pointer])
        _check(module, "symtab", symbols, SYMBOL)
        _check(module, "strtab", Table(strings, 1), 1)
        _check(module, "typetab", Table(types, symbols.count) if types else Table(), 1)
        return module


def _check(module: Module, what: str, table: Table, size: int) -> None:
    if table.count and not module.holds(table.start, table.count * size):
        raise NoSuchKernel(f"its {what} of {table.count} rows at {table.start:#x} is not in its own memory")


class _Words:
    """One struct module."""

    def __init__(self, data: bytes, layout: Layout) -> None:
        self._data = data
        self._layout = layout

    def number(self, member: str, size: int = 8) -> int:
        """Return a member; 0 where this kernel does not have it."""
        offset = self._layout.offsets.get(member)
        return self._at(offset, size) if offset is not None else 0

    def name(self) -> str:
        """Return the name; "" where it is not a valid one."""
        at = self._layout.offsets["name"]
        return guest_text.name(self._data[at : at + NAME_SIZE].partition(b"\0")[0])

    def table(self, pointer: str, count: str) -> Table:
        start, rows = self.number(pointer), self.number(count, 4)
        return Table(start, rows) if start and rows else Table()

    def ranges(self) -> tuple[Range, Range, tuple[Range, ...], tuple[Range, ...]]:
        """Return text, init's text, constants, data."""
        if self._layout.mem is not None:
            mem = self._layout.mem
            starts = [mem.first + mem.stride * number for number in range(MEMORIES)]
            bases = [self._at(start + mem.base, 8) for start in starts]
            sizes = [self._at(start + mem.size, 4) for start in starts]
            found = [(base, base + size) for base, size in zip(bases, sizes, strict=True)]
            text, data, constants, after_init = found[:CORE_MEMORIES]
            return text, found[INIT_TEXT], (constants,), (data, after_init)
        base, size, text_size, constant = (self._part("core_layout", part) for part in _PARTS)
        if not 0 < text_size <= constant <= size:
            raise NoSuchKernel(f"its memory of {size} bytes has {text_size} of text and {constant} that are constant")
        init, _, init_size, _ = (self._part("init_layout", part) for part in _PARTS)
        text = (base, base + text_size)
        return text, (init, init + init_size) if init else (0, 0), ((text[1], base + constant),), (
            (base + constant, base + size),
        )

    def _part(self, layout: str, part: str) -> int:
        return self.number(f"{layout}.{part}", 8 if part == "base" else 4)

    def _at(self, offset: int, size: int) -> int:
        return int.from_bytes(self._data[offset : offset + size], "little")
