"""The text of a Linux kernel: the kind of code at an address, and the function around it, decoded once.

    _stext ─────────────────────────────────────────────────────────── _etext      _sinittext ──── _einittext
    │ text … sched … lock … kprobes … static calls │ filler │ entry │ filler │      │ init: freed after boot │
                                                            └─ __entry_text_start/end: runs on the user's page tables

noinstr and NOKPROBE functions are not refused: what forbids a kprobe there is the kprobe's own trap and handler. A
detour is a few instructions of kernel text that touch one word of kernel data; all it needs is that the kernel's page
tables are in place, which entry text alone does not promise. Alternatives were applied at boot and are not marked.

A function's parts: the compiler moves unlikely blocks to `name.cold`, reached by jumps from `name` and back.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.linux.arch.x86_64 import areas, jump_tables, mid_function_entries, nops
from gdb_optprobe.guest.linux.arch.x86_64.mid_function_entries import KernelEntries, MidFunctionEntries, foreign
from gdb_optprobe.guest.linux.arch.x86_64.smp_locks import SmpLocks
from gdb_optprobe.guest.linux.arch.x86_64.static_calls import StaticCalls
from gdb_optprobe.guest.linux.arch.x86_64.text_at_rest import Rewritten, at_rest
from gdb_optprobe.guest.linux.core_text import REMEMBERED, CoreText
from gdb_optprobe.guest.linux.exception_table import ExceptionTable
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.kprobes import Kprobe
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import JUMP_LABEL, Area, Fact, Foreign, Function, Jump, Mark, Overlay, Whole
from gdb_optprobe.interrupts import interruptible
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.record import Isa

_THUNKS = ("__x86_indirect_",)
# arch/x86/include/asm/pgtable_64_types.h: behind KERNEL_IMAGE_SIZE, which is 512 MiB, or 1 GiB where KASLR moves it.
MODULES = (0xFFFFFFFFA0000000, 0xFFFFFFFFFF000000)
_CLONE = re.compile(r"\.(constprop|isra|part|cold)\b")  # names that GCC and clang give to what they make of a function
# Opcodes of branches with one byte of displacement, and the breakpoint that may replace one.
_SHORT = frozenset((*range(0x70, 0x80), *range(0xE0, 0xE4), 0xEB, 0xCC))
REACH = 129  # of a branch with one byte of displacement, its own two bytes included
TRACERS = ("ftrace_call", "ftrace_regs_call", "ftrace_graph_call")
"""Where the kernel's callers of a tracer call it (arch/x86/kernel/ftrace_64.S): rewritten as tracers come and go."""
SEVERAL, MOST_CONSTANTS = 64, 1 << 25
"""Reads for jump tables in one stop, from which on all constants are read, if they are no more bytes than this: 9 MB at
once take the time of 100 reads.
"""
CONSTANTS = ("dentry_hashtable", "names_cachep")
"""Pointers that the kernel has in its text, too (fs/dcache.c, fs/namei.c)."""


def modules_area(kernel: Kernel) -> tuple[int, int]:
    """Return start and end of the memory for modules: behind the image, wherever the image is."""
    return max(MODULES[0], kernel.symbols.address("_end") or 0), MODULES[1]


class KernelText(CoreText):
    """Fills guest.text.Text for a kernel on x86-64."""

    def __init__(
        self,
        kernel: Kernel,
        isa: Isa,
        overlay: Overlay | None = None,
        shelf: Shelf | None = None,
        say: Callable[[str], None] = lambda _: None,
        originals: OriginalText | None = None,
    ) -> None:
        """Take the text of `kernel`.
        shelf: caches what is found in this kernel's text. say: announces work that takes seconds.
        originals: of a text that this one is beside, in place of an overlay.
        """
        entry = kernel.range("__entry_text_start", "__entry_text_end")
        sites = FtraceSites(kernel, nops.SITE, nop=lambda: nops.traced_place(kernel))
        read = originals or OriginalText(kernel, isa, overlay)
        super().__init__(kernel, read, sites, entry, modules_area(kernel), shelf)
        self._isa = isa
        self._parts: dict[int, Part] = {}
        self._say = say
        self._landings: MidFunctionEntries | None = None
        self._entries: KernelEntries | None = None
        self._by_data: set[int] = set()
        self._constants = kernel.range("__start_rodata", "__end_rodata")
        self._constants_read, self._all_constants = 0, b""

    @cached_property
    def exceptions(self) -> ExceptionTable:
        return ExceptionTable(self._kernel)

    @cached_property
    def static_calls(self) -> StaticCalls:
        return StaticCalls(self._kernel)

    @cached_property
    def smp_locks(self) -> SmpLocks:
        return SmpLocks(self._kernel)

    def forget(self) -> None:
        super().forget()
        self._parts.clear()
        self._constants_read, self._all_constants = 0, b""

    # --- Text --------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> Area:
        return areas.of(name)

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        found = [*super().marks(start, end)]
        found += [Mark(Fact.STATIC_CALL, at, 1) for at in self.static_calls.within(start, end)]
        found += [Mark(Fact.LOCK_PREFIX, at, 1) for at in self.smp_locks.within(start, end)]
        if (function := self.function(start)) is not None:
            traps = (insn.address for insn in function.hot if insn.flow is Flow.TRAP and insn.size > 1)
            found += [Mark(Fact.BUG, at, 2) for at in traps if start <= at < end and self.bugs.has(at)]
            if areas.is_dispatcher(function.name) and start < function.start + areas.DISPATCH:
                found.append(Mark(Fact.STATIC_CALL, start, function.start + areas.DISPATCH - start))
        return found

    def _rewritten(self) -> Iterator[int]:
        yield from super()._rewritten()
        yield from self.static_calls.sites
        yield from self.smp_locks.within(*self._text)

    def _compares_entry(self, name: str) -> bool:
        return areas.is_dispatcher(name)

    # --- functions ---------------------------------------------------------------------------------------------

    def _part(self, start: int, end: int) -> Part:
        if start not in self._parts:
            if len(self._parts) >= REMEMBERED:
                self._parts.clear()
            data = self._read(start, end)
            listed = not self.originals.missing
            self._parts[start] = part_of(self._isa.decode(data, start), start, end, self._isa.breakpoint, listed)
        return self._parts[start]

    def _decode(self, start: int, end: int) -> Function:
        own = self._part(start, end)
        return Function(
            name=self._name(start),
            start=start,
            end=end,
            own={insn.address: insn for insn in own.insns},
            look=lambda: self._whole(start, end),
            compiled=self._compiled([(start, end)]) or self._compiled(self._family(start, end)),
            search=lambda: self._foreign(self._part(start, end)),
            gather=lambda: _code(self._part(*part) for part in self._family(start, end)),
        )

    def _foreign(self, part: Part) -> Foreign | None:
        """Return the first patch in `part` that nothing explains, or a kprobe that is not at an instruction of it."""
        starts = {insn.address for insn in part.insns}
        found = [] if part.hidden is None else [Foreign(part.hidden, is_jump=False)]
        found += [Foreign(jump.source, is_jump=True) for jump in part.leaving if self._is_astray(jump)]
        if part.insns:
            probes = self.originals.kprobes(part.insns[0].address, part.insns[-1].end)
            ends = starts | {part.insns[-1].end}
            astray = (probe for probe in probes if probe.address not in starts or not self._ends(probe, ends))
            found += [Foreign(probe.address, probe.jumps) for probe in astray]
        first = min(found, key=lambda each: each.address, default=None)
        return replace(first, why=self.originals.missing) if first is not None else None

    def _ends(self, probe: Kprobe, ends: set[int]) -> bool:
        """Return whether the kprobe replaces whole instructions, or less than one."""
        return probe.end in ends or probe.size < self._isa.branch_size

    def _compiled(self, parts: Iterable[tuple[int, int]]) -> bool:
        """Return whether a compiler gave one of the parts a tracer's site, or a name that says how it was made."""
        return any(self.ftrace.within(first, first + 16) or _CLONE.search(self._name(first)) for first, _ in parts)

    def _whole(self, start: int, end: int) -> Whole:
        bounds = self._family(start, end)
        parts = [self._part(*part) for part in bounds]
        around = {near: self._part(*near) for near in self._around(start, end)}
        landed, missing = self._entries_within(start, end)
        jumps = list(parts[0].jumps)
        hidden = {near for near, part in around.items() if part.hidden is not None}
        leaving = [self._may_leave(*near) if near in hidden else part.leaving for near, part in around.items()]
        into = [jump for those in leaving for jump in those if start < jump.target < end]
        into += landed or ()
        jumps += dict.fromkeys(into)
        jumps += self._by_table(start, end, bounds)
        blind, tables = self._indirect(parts, bounds)
        if any(self._is_indirect(insn) for part in parts for insn in part.ways_out):
            self._by_data.add(start)
        return Whole(
            code=_code(parts),
            complete=landed is not None
            and all(part.clear and self._foreign(part) is None for part in parts)
            and all(part.clear or near in hidden for near, part in around.items()),
            jumps=(*jumps, *tables),
            blind_jumps=blind,
            missing=missing,
        )

    def all_entries(self) -> MidFunctionEntries:
        """Return all mid-function entries. Raises OptprobeError where they cannot be found now."""
        if self._landings is None:
            decode = self._isa.decode
            with interruptible():
                self._entries = mid_function_entries.of_kernel(
                    self._kernel, decode, self.originals, self._shelf, self._say, self._at_rest, self._read_all
                )
            self._landings = self._entries.landings
        return self._landings

    def _text_key(self) -> str:
        if self.own_kprobes():
            return ""  # which bytes a jump of one hides from another function is not known
        self.all_entries()
        return self._entries.key if self._entries is not None else ""

    def _table_rows(self) -> Iterator[Sequence[int]]:
        yield from super()._table_rows()
        yield sorted(self.static_calls.sites)
        yield list(self.static_calls.trampolines)
        yield self.smp_locks.within(0, MASK)

    def _function_lasts(self, start: int, end: int) -> bool:
        """See CoreText. A pointer into the function is in data, and so is the table of an indirect jump."""
        if start in self._by_data or not super()._function_lasts(start, end):
            return False
        assert self._entries is not None
        pointed, place = self._entries.pointed, bisect_right(self._entries.pointed, start)
        return place == len(pointed) or pointed[place] >= end

    def _at_rest(self, text: bytes, base: int) -> bytes:
        symbols = self._kernel.symbols

        def is_entry(address: int) -> bool:
            bounds = symbols.function_bounds(address)
            return bounds is not None and bounds[0] == address

        end = base + len(text)
        tracers = [at for name in TRACERS if (at := symbols.address(name)) is not None]
        rewritten = Rewritten(
            self.ftrace.within(base, end),
            self.jump_labels.within(base, end),
            [*self.static_calls.sites, *filter(is_entry, self.static_calls.trampolines), *tracers],
            self.smp_locks.within(base, end),
            self.ftrace.idle,
            [self._kernel.word(at) for name in CONSTANTS if (at := symbols.address(name)) is not None],
        )
        return at_rest(text, base, rewritten, is_entry)

    def _entries_within(self, start: int, end: int) -> tuple[list[Jump] | None, str]:
        """Return the entries in [start, end); None where they cannot be found, and why."""
        try:
            return self.all_entries().within(start, end), ""
        except OptprobeError as error:
            return None, error.message

    def _around(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the functions from which a short branch reaches [start, end)."""
        at = start - 1
        while at >= start - REACH and (bounds := self._bounds(at)) is not None:
            yield bounds
            at = bounds[0] - 1
        at = end
        while at < end + REACH and (bounds := self._bounds(at)) is not None:
            yield bounds
            at = bounds[1]

    def _may_leave(self, start: int, end: int) -> Iterator[Jump]:
        """Yield all that looks like a short branch, in a function where another's breakpoint hides which bytes are one.
        """
        data = self._read(start, end)
        for at, opcode in enumerate(data[:-1], start):
            if opcode in _SHORT:
                offset = data[at - start + 1]
                yield Jump(at, at + 2 + (offset ^ 0x80) - 0x80, Flow.BRANCH.value)

    def _by_table(self, start: int, end: int, parts: Sequence[tuple[int, int]]) -> Iterator[Jump]:
        """Yield what the kernel's tables have: jump labels and fixups, of any part and into this one."""
        rows: set[Jump] = set()
        for kind, (by_source, by_target) in self._tabled:
            for first, last in parts:
                rows.update(Jump(*row, kind) for row in _between(by_source, first, last))
            rows.update(Jump(source, target, kind) for target, source in _between(by_target, start, end))
        return iter(sorted(rows, key=lambda jump: (jump.source, jump.target)))

    @cached_property
    def _tabled(self) -> tuple[tuple[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]], ...]:
        labels = self.jump_labels.within(0, MASK)
        fixups = self.exceptions.fixups(0, MASK)
        return tuple(
            (kind, (sorted(rows), sorted((target, source) for source, target in rows)))
            for kind, rows in ((JUMP_LABEL, labels), ("fixup of a fault", fixups))
        )

    def _is_astray(self, jump: Jump) -> bool:
        """Return whether `jump` is another's and covers instructions: beyond it the code cannot be decoded."""
        known = self.ftrace.within, self.static_calls.within
        return (
            jump.kind == Flow.JUMP.value
            and self._leads_astray(jump.target)
            and not any(within(jump.source, jump.source + 1) for within in known)
        )

    def _leads_astray(self, target: int) -> bool:
        """Return whether `target` is in no code that the compiler made."""
        return not self._init[0] <= target < self._init[1] and self._bounds(target) is None

    def _family(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the function at `start` with the parts that belong to the same source function, itself first."""
        stem = self._name(start).split(".cold")[0]
        members = {start: (start, end)}
        for name in (stem, f"{stem}.cold"):
            for address in self._kernel.symbols.lookup(name):
                bounds = self._bounds(address)
                if bounds is not None and bounds[0] == address:
                    members.setdefault(address, bounds)
        # Parts of older compilers are called name.cold.12: found by the jumps that lead there.
        for part in list(members.values()):
            for jump in self._part(*part).leaving:
                bounds = self._bounds(jump.target)
                if bounds is not None and bounds[0] not in members and self._name(bounds[0]).startswith(f"{stem}.cold"):
                    members[bounds[0]] = bounds
        return list(members.values())

    def _indirect(
        self, parts: Sequence[Part], bounds: Sequence[tuple[int, int]]
    ) -> tuple[tuple[int, ...], list[Jump]]:
        """Return the indirect jumps that may lead anywhere in the function, and the jumps of tables that were found.
        A compiler jumps indirectly for three reasons: a switch, by a table that is found; a computed goto, by addresses
        that
        are kept somewhere, which are mid-function entries; a tail call, which leads to where a function starts.
        Assembler
        code may compute its targets, so there every indirect jump is blind. noinstr code is C for the most part, but
        neither
        section nor symbol says which part: it counts as assembler.
        """
        blind: list[int] = []
        jumps: list[Jump] = []
        compiled = self._compiled(bounds)
        for part in parts:
            sources = [insn.address for insn in part.ways_out if self._is_indirect(insn)]
            if not sources:
                continue
            code = b"".join(insn.data for insn in part.insns)
            found = self._tables(part.insns[0].address, code, bounds)
            jumps += [Jump(sources[0], target, "jump table") for target in found]
            if not compiled:
                blind += sources
        return tuple(blind), jumps

    def _is_indirect(self, insn: Insn) -> bool:
        if insn.flow is Flow.INDIRECT_JUMP:
            return True
        if insn.target is None:
            return False
        found = self._kernel.symbols.at(insn.target)
        return found is not None and found.name.startswith(_THUNKS)

    def _tables(self, start: int, code: bytes, parts: Sequence[tuple[int, int]]) -> frozenset[int]:
        try:
            return jump_tables.targets(start, code, self._constants, self._constant, parts)
        except OptprobeError:
            return frozenset()

    def _constant(self, address: int, size: int) -> bytes:
        """Read constants: all of them at once, where those of many functions are asked for in one stop."""
        start, end = self._constants
        self._constants_read += 1
        if self._constants_read == SEVERAL and end - start <= MOST_CONSTANTS:
            with suppress(OptprobeError):
                self._all_constants = self._kernel.read(start, end)
        if not self._all_constants:
            return self._kernel.memory.read(address, size)
        return self._all_constants[address - start : address - start + size]


@dataclass(frozen=True, slots=True)
class Part:
    """A run of code between two symbols, decoded.

    clear:    it decodes from end to end.
    hidden:   where a breakpoint that nothing explains hides an instruction.
    jumps:    its direct jumps, branches and calls.
    leaving:  those that lead out of it and are no calls.
    ways_out: its jumps that may be indirect: through a register, or a direct one to a thunk.
    """

    insns: tuple[Insn, ...]
    clear: bool
    hidden: int | None
    jumps: tuple[Jump, ...]
    leaving: tuple[Jump, ...]
    ways_out: tuple[Insn, ...]


def part_of(insns: Sequence[Insn], start: int, end: int, breakpoint: bytes, listed: bool = True) -> Part:
    """Decode a part. A call into the middle of a function counts as a jump. listed: see `mid_function_entries.foreign`.
    """
    direct = [insn for insn in insns if insn.target is not None]
    jumps = tuple(Jump(insn.address, insn.target, insn.flow.value) for insn in direct if insn.target is not None)
    return Part(
        insns=tuple(insns),
        clear=bool(insns) and insns[-1].end == end,
        hidden=foreign(insns, breakpoint, listed),
        jumps=jumps,
        leaving=tuple(j for j in jumps if not start <= j.target < end and j.kind != Flow.CALL.value),
        ways_out=tuple(
            insn
            for insn in insns
            if insn.flow is Flow.INDIRECT_JUMP
            or (insn.flow is Flow.JUMP and insn.target is not None and not start <= insn.target < end)
        ),
    )


def _code(parts: Iterable[Part]) -> dict[int, Insn]:
    return {insn.address: insn for part in parts for insn in part.insns}


def _between(rows: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return the `rows` (sorted) with a first number in [start, end)."""
    return rows[bisect_left(rows, (start, 0)) : bisect_left(rows, (end, 0))]
