"""Names of the kernel's data where kallsyms has none (CONFIG_KALLSYMS_ALL): from constants in functions that use them.

    search_exception_tables       __start___ex_table, __stop___ex_table
    find_bug                      __start___bug_table, __stop___bug_table
    jump_label_text_reserved      __start___jump_table, __stop___jump_table
    ftrace_location_range         ftrace_pages_start, by a load
    is_ftrace_trampoline          ftrace_ops_list, by a load, and ftrace_list_end
    find_module_all               modules, with three others that walk the list
    get_kprobe                    kprobe_table
    rcu_inkernel_boot_has_ended   rcu_boot_ended, by a load
    flags_string                  gfpflag_names, or what prints events of the allocator
    get_syscall_name              syscalls_metadata, by a load

Each is accepted only where the memory that it leads to is what it must be: a table of references to text, a list of
pages. How an ISA's code makes an address is in its folder of arch/.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from struct import Struct, iter_unpack
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import bug_table, gfp, jump_labels, kprobes
from gdb_optprobe.guest.linux.kernel import CHUNK, MASK, Located, Symbols
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.text import Overlay

LARGEST_FUNCTION = 1 << 14
LARGEST_EXIT_TEXT = 1 << 16
LARGEST_TABLE = 1 << 22
SAMPLES = 64
KERNEL_HALF = 1 << 63

PRINTS_FLAGS = ("flags_string", "trace_raw_output_mm_page_alloc", "trace_raw_output_kmalloc")


@dataclass(frozen=True, slots=True)
class Constants:
    """Addresses that a function makes (`made`) and those that it reads or writes (`used`), in order, each once."""

    made: tuple[int, ...]
    used: tuple[int, ...]


class Code(Protocol):
    """A kernel's code, of which constants are known."""

    @property
    def memory(self) -> Memory: ...

    def constants_of(self, function: str) -> Constants:
        """Return the constants of a function; none where the kernel has no such function."""

    def in_text(self, address: int) -> bool: ...

    def word(self, address: int) -> int | None:
        """Read a word; None where there is no memory."""


Derived = Mapping[str, int | None]
Source = Callable[[Code], Derived]


@dataclass
class DerivedNames(ABC):
    """`symbols`, and names of data that are found when they are first looked up. Is a kernel.Symbols and a Code."""

    symbols: Symbols
    memory: Memory
    _known: dict[str, int | None] = field(default_factory=dict)
    _original: Overlay | None = None

    @abstractmethod
    def address(self, name: str) -> int | None: ...

    @abstractmethod
    def constants_of(self, function: str) -> Constants:
        """See Code."""

    def read_through(self, original: Overlay) -> None:
        """Read what was there before the guest's own kprobes wrote. `original` may look up what is derived here."""
        self._original = original

    def forget_missing(self) -> None:
        """Look again for names that were not found: the kernel has set up more since, or more of it is known."""
        self._known = {name: at for name, at in self._known.items() if at is not None}

    def original(self, start: int, end: int) -> bytes:
        """Read code. Raises OptprobeError. The kernel has no kprobe on the code by which its kprobes are found, so that
        is read as it is.
        """
        original, self._original = self._original, None
        try:
            data = self.memory.read(start, end - start)
            return original(start, data) if original is not None else data
        finally:
            self._original = original

    def lookup(self, name: str) -> Sequence[int]:
        return self.symbols.lookup(name)

    def at(self, address: int) -> Located | None:
        return self.symbols.at(address)

    def names_at(self, addresses: Iterable[int]) -> Sequence[str]:
        return self.symbols.names_at(addresses)

    def function_bounds(self, address: int) -> tuple[int, int] | None:
        return self.symbols.function_bounds(address)

    def bounds_of(self, function: str) -> tuple[int, int] | None:
        """Return start and end of a function; None where there is no such function, or it is too long."""
        bounds = self.symbols.function_bounds(self.symbols.address(function) or 0)
        return bounds if bounds is not None and 0 < bounds[1] - bounds[0] <= LARGEST_FUNCTION else None

    def in_text(self, address: int) -> bool:
        """Return whether `address` is in text. Exit text, which is behind init text, has no name."""
        start, end = self.symbols.address("_stext") or 0, self.symbols.address("_einittext") or 0
        return start <= address < end + LARGEST_EXIT_TEXT

    def word(self, address: int) -> int | None:
        """See Code."""
        try:
            return int.from_bytes(self.memory.read(address, 8), "little")
        except OptprobeError:
            return None


def table(first: str, last: str, function: str, row: Struct, columns: int) -> Source:
    """Return how to derive a table. Each of its rows begins with `columns` references to text, relative to themselves.
    """

    def derive(code: Code) -> Derived:
        for start, end in permutations(code.constants_of(function).made, 2):
            if 0 < end - start <= LARGEST_TABLE and not (end - start) % row.size and holds(code, start, end):
                return {first: start, last: end}
        return {first: None, last: None}

    def holds(code: Code, start: int, end: int) -> bool:
        """Return whether the first and the last rows have references to text."""
        for at in {start, max(start, end - SAMPLES * row.size)}:
            size = min(SAMPLES * row.size, end - at, CHUNK)
            try:
                rows = row.iter_unpack(code.memory.read(at, size))
            except OptprobeError:
                return False
            for number, values in enumerate(rows):
                here = at + number * row.size
                if not all(code.in_text(here + 4 * n + values[n] & MASK) for n in range(columns)):
                    return False
        return True

    return derive


def ftrace_pages(code: Code) -> Derived:
    """Derive the variable that leads to a page of records, the first of which has an address of text."""
    for variable in code.constants_of("ftrace_location_range").used:
        page = code.word(variable)
        records = code.word(page + 8) if page is not None else None
        first = code.word(records) if records is not None else None
        if first is not None and code.in_text(first):
            return {"ftrace_pages_start": variable}
    return {"ftrace_pages_start": None}


def ftrace_ops(code: Code) -> Derived:
    """Derive the head of the list, and the member by which every list ends: its `next` is null."""
    found = code.constants_of("is_ftrace_trampoline")
    for variable in found.used:
        for end in found.made:
            at: int | None = code.word(variable)
            for _ in range(LARGEST_FUNCTION):
                if at == end:
                    return {"ftrace_ops_list": variable, "ftrace_list_end": end}
                at = code.word(at + 8) if at else None
                if at is None:
                    break
    return {"ftrace_ops_list": None, "ftrace_list_end": None}


def modules(code: Code) -> Derived:
    """Derive the head of the list of modules: the one that all functions that walk it begin with."""
    walkers = ("find_module_all", "module_get_kallsym", "module_kallsyms_lookup_name", "print_modules")
    used = [found.used for name in walkers if (found := code.constants_of(name)).used]
    common = set.intersection(*map(set, used)) if len(used) > 1 else set()
    heads = []
    for head in common:
        following, last = code.word(head), code.word(head + 8)
        if following and last and code.word(following + 8) == head == code.word(last):
            heads.append(head)
    return {"modules": heads[0] if len(heads) == 1 else None}


def boot_ended(code: Code) -> Derived:
    """Derive the only variable that the function reads: a bool."""
    used = code.constants_of("rcu_inkernel_boot_has_ended").used
    plausible = len(used) == 1 and (word := code.word(used[0])) is not None and word & 0xFF in (0, 1)
    return {"rcu_boot_ended": used[0] if plausible else None}


def flags(code: Code) -> Derived:
    """Derive the table of the page allocator's flags; events have tables of their own with the same rows."""
    made = (at for name in PRINTS_FLAGS for at in code.constants_of(name).made)
    return {gfp.TABLE: next((at for at in made if gfp.is_table(code.memory, at)), None)}


def syscalls_metadata(code: Code) -> Derived:
    """Derive the only variable that the function reads: the address of a table. What the table lists is checked."""
    used = code.constants_of("get_syscall_name").used
    return {"syscalls_metadata": used[0] if len(used) == 1 else None}


def kprobe_list(code: Code) -> Derived:
    """Derive the array of lists: each is empty or leads to kernel memory. The lists of kprobes are verified at each
    read.
    """
    size = 8 << kprobes.BITS
    for start in code.constants_of("get_kprobe").made:
        try:
            heads = [head for (head,) in iter_unpack("<Q", code.memory.read(start, size))]
        except OptprobeError:
            continue
        if all(not head or (head >= KERNEL_HALF and not head & 7) for head in heads):
            return {"kprobe_table": start}
    return {"kprobe_table": None}


def sources(exception_row: Struct) -> Mapping[str, Source]:
    """Return what derives each name. exception_row: two references, and what else an ISA has there."""
    exceptions = table("__start___ex_table", "__stop___ex_table", "search_exception_tables", exception_row, 2)
    bugs = table("__start___bug_table", "__stop___bug_table", "find_bug", bug_table.VERBOSE, 1)
    jumps = table("__start___jump_table", "__stop___jump_table", "jump_label_text_reserved", jump_labels.ROW, 2)
    return {
        "__start___ex_table": exceptions,
        "__stop___ex_table": exceptions,
        "__start___bug_table": bugs,
        "__stop___bug_table": bugs,
        "__start___jump_table": jumps,
        "__stop___jump_table": jumps,
        "ftrace_pages_start": ftrace_pages,
        "ftrace_ops_list": ftrace_ops,
        "ftrace_list_end": ftrace_ops,
        "modules": modules,
        "kprobe_table": kprobe_list,
        "rcu_boot_ended": boot_ended,
        gfp.TABLE: flags,
        "syscalls_metadata": syscalls_metadata,
    }
