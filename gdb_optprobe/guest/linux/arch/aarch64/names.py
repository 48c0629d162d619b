"""Names of the kernel's data where kallsyms has none (CONFIG_KALLSYMS_ALL).

    exported to modules   the kernel's own tables: init_task, nr_cpu_ids, __per_cpu_offset, …
    per-CPU               BTF has them all, from the section's start on: where two exported ones agree that it is
    others                from the constants of functions that use them: guest/linux/derived_data.py, derived_events.py
    __start_BTF           btf_parse_vmlinux loads it, and __stop_BTF, from the linker's table of weak symbols

    find_symbol: adrp, add ─► start, stop of a table, twice     (kernel/module/main.c, struct symsearch)
                              ┌───────────┬──────────┬────────────────┐
                              │ value s32 │ name s32 │ namespace s32  │ relative to themselves, sorted by name
                              └───────────┴──────────┴────────────────┘   (include/linux/export.h)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import Struct

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.btf import HEADER, MAGIC
from gdb_optprobe.guest.linux import derived_data, derived_events
from gdb_optprobe.guest.linux.arch.aarch64.constants import constants
from gdb_optprobe.guest.linux.derived_data import Constants, Derived, DerivedNames, Source
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.structures import KernelStructures
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Insn

EXCEPTION_ROW = Struct("<iihh")
"""arch/arm64/include/asm/extable.h: insn and fixup, each relative to itself, type and data."""
EXPORT_ROW = Struct("<iii")
MOST_EXPORTS = 1 << 16
LONGEST_NAME = 512
PER_CPU = ".data..percpu"
PER_CPU_EXPORTED = ("cpu_number", "kernel_cpustat", "kstat")
LARGEST_TYPES = 1 << 26
EVERYWHERE = "init_task"
TIMER = "arch_timer_rate"
RATES = range(1_000_000, 10_000_000_000)


@dataclass
class KernelNames(DerivedNames):
    """Finds what is in its kernel's tables of exports and in BTF, too; `types`: where BTF is, once that is known."""

    types: KernelStructures | None = None

    def address(self, name: str) -> int | None:
        found = self.symbols.address(name)
        if found is not None or self.symbols.address(EVERYWHERE) is not None:
            return found
        if name not in self._known:
            self._known[name] = None  # while it is looked for
            try:
                self._known.update(self._derived(name))
            except BaseException:
                del self._known[name]
                raise
        return self._known[name]

    def _derived(self, name: str) -> Derived:
        if (source := _SOURCES.get(name)) is not None:
            return source(self)
        if derived_events.derives(name):
            return derived_events.derive(self, Kernel(self.memory, self, self.types), name, lambda: self._events)
        return {name: self._exported(name) or self._per_cpu(name)}

    def forget_missing(self) -> None:
        super().forget_missing()
        for found_once in ("_events", "_exports", "_section"):
            self.__dict__.pop(found_once, None)

    def constant(self, name: str) -> int | None:
        """Return the value of an enumerator; None where none is known of that name. Raises OptprobeError."""
        return self.types.btf.constant(name) if self.types is not None else None

    # --- derived_data.Code -------------------------------------------------------------------------------------------

    def constants_of(self, function: str) -> Constants:
        """Return the constants of a function; none where there is no such function."""
        return constants(self.code(function))

    def code(self, function: str) -> Sequence[Insn]:
        """Return the instructions of a function; none where there is no such function, or it is too long."""
        if (bounds := self.bounds_of(function)) is None:
            return ()
        try:
            return AARCH64.decode(self.original(*bounds), bounds[0])
        except OptprobeError:
            return ()

    @cached_property
    def _events(self) -> Mapping[int, int]:
        return derived_events.events(Kernel(self.memory, self, self.types))

    # --- exported ----------------------------------------------------------------------------------------------------

    def _exported(self, name: str) -> int | None:
        """Return a symbol that modules may use, by bisection, as the kernel does it."""
        wanted = name.encode()
        for start, end in self._exports:
            low, high = 0, (end - start) // EXPORT_ROW.size
            while low < high:
                middle = (low + high) // 2
                at = start + middle * EXPORT_ROW.size
                if (row := self._export(at)) is None:
                    break
                value, found = row
                if found == wanted:
                    return value
                low, high = (middle + 1, high) if found < wanted else (low, middle)
        return None

    @cached_property
    def _exports(self) -> Sequence[tuple[int, int]]:
        """Return the tables, of symbols for all modules and of those for GPL ones."""
        found = []
        for place in self.constants_of("find_symbol").made:
            start, end = self.word(place), self.word(place + 8)
            if start is None or end is None or not 0 < end - start <= MOST_EXPORTS * EXPORT_ROW.size:
                continue
            if (end - start) % EXPORT_ROW.size:
                continue
            first, last = self._export(start), self._export(end - EXPORT_ROW.size)
            if first is not None and last is not None and first[1] < last[1]:
                found.append((start, end))
        return found

    def _export(self, at: int) -> tuple[int, bytes] | None:
        """Return the value and the name of a row; None where it is none."""
        try:
            value, name, _ = EXPORT_ROW.unpack(self.memory.read(at, EXPORT_ROW.size))
            text, end, _ = self.memory.read(at + 4 + name & MASK, 64).partition(b"\0")
            if not end:
                text, end, _ = self.memory.read(at + 4 + name & MASK, LONGEST_NAME).partition(b"\0")
        except OptprobeError:
            return None
        return (at + value & MASK, text) if text and end else None

    # --- per-CPU -----------------------------------------------------------------------------------------------------

    def _per_cpu(self, name: str) -> int | None:
        """Return a per-CPU variable's address, by its place in the section."""
        offset, start = self._in_section(name), self._section
        return start + offset & MASK if offset is not None and start is not None else None

    @cached_property
    def _section(self) -> int | None:
        """Return where per-CPU variables begin, as at least two of them say."""
        starts = []
        for name in PER_CPU_EXPORTED:
            address, offset = self._exported(name), self._in_section(name)
            if address is not None and offset is not None:
                starts.append(address - offset & MASK)
        return starts[0] if len(starts) > 1 and len(set(starts)) == 1 else None

    def _in_section(self, name: str) -> int | None:
        try:
            return self.types.btf.placed(PER_CPU, name) if self.types is not None else None
        except OptprobeError:
            return None


def _types(code: derived_data.Code) -> Derived:
    """Derive the two values that the function loads from its table, between which are types, to the last byte."""
    names = ("__start_BTF", "__stop_BTF")
    values = [value for at in code.constants_of("btf_parse_vmlinux").used if (value := code.word(at))]
    for start in values:
        try:
            magic, _, _, header, _, _, strings, size = HEADER.unpack(code.memory.read(start, HEADER.size))
        except OptprobeError:
            continue
        end = start + header + strings + size
        if magic == MAGIC and end in values and end - start <= LARGEST_TYPES:
            return dict(zip(names, (start, end), strict=True))
    return dict.fromkeys(names)


def _timer(code: derived_data.Code) -> Derived:
    """Derive the only variable that the function reads: the rate of the counter."""
    used = code.constants_of("arch_timer_get_rate").used
    word = code.word(used[0]) if len(used) == 1 else None
    return {TIMER: used[0] if word is not None and word & 0xFFFF_FFFF in RATES else None}


_SOURCES: Mapping[str, Source] = {
    **derived_data.sources(EXCEPTION_ROW),
    TIMER: _timer,
    "__start_BTF": _types,
    "__stop_BTF": _types,
}
