"""The text of a Linux kernel: what kind of code an address is, and the function around it, decoded once.

    _stext ─────────────────────────────────────────────────────────── _etext      _sinittext ──── _einittext
    │ text … sched … lock … kprobes … static calls │ filler │ entry │ filler │      │ init: freed after boot │
                                                            └─ __entry_text_start/end: runs on the user's page tables

noinstr and NOKPROBE functions are not refused: what forbids a kprobe there is the kprobe's own trap and handler. A
detour is a few instructions of kernel text that touch one word of kernel data; all it needs is that the kernel's page
tables are in place, which entry text alone does not promise. Alternatives were applied at boot and are not marked.

A function's parts: the compiler moves unlikely blocks to `name.cold`, reached by jumps from `name` and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import jump_tables
from gdb_optprobe.guest.linux.bug_table import BugTable
from gdb_optprobe.guest.linux.exception_table import ExceptionTable
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.jump_labels import JumpLabels
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.static_calls import StaticCalls
from gdb_optprobe.guest.text import Area, Fact, FtraceSite, Function, Jump, Mark, Whole
from gdb_optprobe.isa.base import Flow, Insn, Isa

Overlay = Callable[[int, bytes], bytes]
"""From memory's bytes at an address to the original ones: puts back what branches of ours cover."""

# Code that the kernel copies elsewhere or rewrites as a whole: copies would branch to nowhere, a rewriter compares
# (arch/x86/kernel/ftrace.c create_trampoline, kprobes/opt.c, machine_kexec_64.c); and what runs before the kernel's
# own page tables (head_64.S, wakeup_64.S).
_COPIED = ("ftrace_call", "ftrace_regs_call", "ftrace_graph_c", "ftrace_epilogue", "ftrace_stub", "optprobe_template_")
_EARLY = ("startup_64", "secondary_startup_64", "start_cpu0", "relocate_kernel", "identity_mapped", "wakeup_long64")
_THUNKS = ("__x86_indirect_", "__SCT__")
MODULES = (0xFFFFFFFFC0000000, 0xFFFFFFFFFF000000)  # arch/x86/include/asm/pgtable_64_types.h
ASSEMBLER_NEIGHBOURS = 8
LARGEST = 1 << 20


class KernelText:
    """Fills guest.text.Text for a kernel. `forget` after the guest has run: it rewrites its own text."""

    def __init__(self, kernel: Kernel, isa: Isa, overlay: Overlay | None = None) -> None:
        self._kernel = kernel
        self._isa = isa
        self._overlay = overlay or (lambda _, data: data)
        self._functions: dict[int, Function] = {}
        self._parts: dict[int, tuple[Insn, ...]] = {}
        self.ftrace = FtraceSites(kernel)
        self._text = kernel.range("_stext", "_etext")
        self._init = kernel.range("_sinittext", "_einittext")
        self._entry = kernel.range("__entry_text_start", "__entry_text_end")
        self._constants = kernel.range("__start_rodata", "__end_rodata")

    @cached_property
    def exceptions(self) -> ExceptionTable:
        return ExceptionTable(self._kernel)

    @cached_property
    def jump_labels(self) -> JumpLabels:
        return JumpLabels(self._kernel)

    @cached_property
    def static_calls(self) -> StaticCalls:
        return StaticCalls(self._kernel)

    @cached_property
    def bugs(self) -> BugTable:
        return BugTable(self._kernel)

    def forget(self) -> None:
        """The guest has run, or a branch of ours has come or gone."""
        self._functions.clear()
        self._parts.clear()

    # --- Text --------------------------------------------------------------------------------------------------

    def area(self, address: int) -> Area:
        for (start, end), area in (
            (self._entry, Area.ENTRY),
            (self._text, Area.TEXT),
            (self._init, Area.INIT),
            (MODULES, Area.MODULE),
        ):
            if start <= address < end:
                return self._core(address) if area is Area.TEXT else area
        return Area.NOT_TEXT

    def _core(self, address: int) -> Area:
        found = self._kernel.symbols.at(address)
        if found is not None and found.name.startswith(_COPIED):
            return Area.COPIED
        return Area.EARLY if found is not None and found.name.startswith(_EARLY) else Area.TEXT

    def function(self, address: int) -> Function | None:
        bounds = self._bounds(address)
        if bounds is None:
            return None
        start, _ = bounds
        if start not in self._functions:
            self._functions[start] = self._decode(*bounds)
        return self._functions[start]

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        found = [Mark(Fact.EXCEPTION, at, 1) for at in self.exceptions.faulting(start, end)]
        found += [Mark(Fact.JUMP_LABEL, at, 1) for at, _ in self.jump_labels.within(start, end)]
        found += [Mark(Fact.STATIC_CALL, at, 1) for at in self.static_calls.within(start, end)]
        if (function := self.function(start)) is not None:
            traps = (i.address for i in function.run(start, end - start) if i.flow is Flow.TRAP and i.size > 1)
            found += [Mark(Fact.BUG, at, 2) for at in traps if self.bugs.has(at)]
        return found

    def ftrace_sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        return self.ftrace.sites(start, end)

    def spell(self, address: int) -> str:
        found = self._kernel.symbols.at(address)
        if found is None:
            return f"{address:#x}"
        return f"{address:#x} <{found.name}+{found.offset}>" if found.offset else f"{address:#x} <{found.name}>"

    # --- functions ---------------------------------------------------------------------------------------------

    def _bounds(self, address: int) -> tuple[int, int] | None:
        bounds = self._kernel.symbols.function_bounds(address)
        if bounds is None or not self._text[0] <= bounds[0] < self._text[1] or bounds[1] - bounds[0] > LARGEST:
            return None
        return bounds

    def _part(self, start: int, end: int) -> tuple[Insn, ...]:
        if start not in self._parts:
            data = self._overlay(start, self._kernel.read(start, end))
            self._parts[start] = tuple(self._isa.decode(data, start))
        return self._parts[start]

    def _decode(self, start: int, end: int) -> Function:
        own = self._part(start, end)
        return Function(
            name=self._name(start),
            start=start,
            end=end,
            own={insn.address: insn for insn in own},
            look=lambda: self._whole(start, end),
            compiled=self._compiled([(start, end)]) or self._compiled(self._family(start, end)),
        )

    def _compiled(self, parts: Iterable[tuple[int, int]]) -> bool:
        """The compiler gave one of the parts a tracer's site."""
        return any(self.ftrace.within(first, first + 16) for first, _ in parts)

    def _whole(self, start: int, end: int) -> Whole:
        parts = self._family(start, end)
        pieces = [self._part(*part) for part in parts]
        compiled = self._compiled(parts)
        jumps = [jump for piece in pieces for jump in _direct(piece)]
        if not compiled:
            jumps += self._from_neighbours(start, end)
        for part in parts:
            jumps += [Jump(at, target, "jump label") for at, target in self.jump_labels.within(*part)]
        jumps += [Jump(insn, fixup, "fixup of a fault") for insn, fixup in self.exceptions.fixups(start, end)]
        blind, tables = self._indirect(pieces, compiled)
        decoded = all(piece and piece[-1].end == last for piece, (_, last) in zip(pieces, parts, strict=True))
        return Whole(
            code={insn.address: insn for piece in pieces for insn in piece},
            complete=decoded and not any(_foreign(piece, self._isa.breakpoint) for piece in pieces),
            jumps=(*jumps, *tables),
            blind_jumps=blind,
        )

    def _name(self, address: int) -> str:
        found = self._kernel.symbols.at(address)
        return found.name if found is not None else f"{address:#x}"

    def _family(self, start: int, end: int) -> list[tuple[int, int]]:
        """The function at `start` with the parts that belong to the same source function, itself first."""
        stem = self._name(start).split(".cold")[0]
        names = (stem, f"{stem}.cold")
        members = {start: (start, end)}
        for name in names:
            for address in self._kernel.symbols.lookup(name):
                bounds = self._bounds(address)
                if bounds is not None and bounds[0] == address:
                    members.setdefault(address, bounds)
        # Parts of older compilers are called name.cold.12: found by the jumps that lead there.
        for part in list(members.values()):
            for jump in _direct(self._part(*part)):
                bounds = self._bounds(jump.target)
                if bounds is not None and bounds[0] not in members and self._name(bounds[0]).startswith(f"{stem}.cold"):
                    members[bounds[0]] = bounds
        return list(members.values())

    def _from_neighbours(self, start: int, end: int) -> list[Jump]:
        """Jumps from the functions around: assembler code shares its tails."""
        found: list[Jump] = []
        for step in (-1, 1):
            at = start - 1 if step < 0 else end
            for _ in range(ASSEMBLER_NEIGHBOURS):
                bounds = self._bounds(at)
                if bounds is None or bounds[0] == start:
                    break
                found += [jump for jump in _direct(self._part(*bounds)) if start <= jump.target < end]
                at = bounds[0] - 1 if step < 0 else bounds[1]
        return found

    def _indirect(
        self, pieces: Sequence[tuple[Insn, ...]], compiled: bool
    ) -> tuple[tuple[int, ...], list[Jump]]:
        """(indirect jumps that may land anywhere in the function, jumps of tables that were found).

        A compiler jumps indirectly for two reasons: a switch, whose table is found, and a tail call, which leaves for
        the start of a function. Assembler code may do what it likes.
        """
        blind: list[int] = []
        jumps: list[Jump] = []
        for piece in pieces:
            sources = [insn.address for insn in piece if self._is_indirect(insn)]
            if not sources:
                continue
            code = b"".join(insn.data for insn in piece)
            found = self._tables(piece[0].address, code)
            jumps += [Jump(sources[0], target, "jump table") for target in found]
            if not found and not compiled:
                blind += sources
        return tuple(blind), jumps

    def _is_indirect(self, insn: Insn) -> bool:
        if insn.flow is Flow.INDIRECT_JUMP:
            return True
        if insn.flow is not Flow.JUMP or insn.target is None:
            return False
        found = self._kernel.symbols.at(insn.target)
        return found is not None and found.name.startswith(_THUNKS)

    def _tables(self, start: int, code: bytes) -> frozenset[int]:
        try:
            return jump_tables.targets(start, code, self._constants, self._kernel.memory.read)
        except OptprobeError:
            return frozenset()


def _direct(insns: Iterable[Insn]) -> list[Jump]:
    """Jumps and calls with a target; a call into the middle of a function is a jump as far as it is concerned."""
    flows = (Flow.JUMP, Flow.BRANCH, Flow.CALL)
    return [Jump(i.address, i.target, i.flow.value) for i in insns if i.target is not None and i.flow in flows]


def _foreign(insns: Sequence[Insn], breakpoint: bytes) -> bool:
    """Whether a breakpoint instruction stands where code runs into it, with more code behind: not the compiler's.

    What a breakpoint covers cannot be decoded, so the rest of the function is not to be trusted.
    """
    end = len(insns)
    while end and insns[end - 1].data == breakpoint:
        end -= 1
    if end and insns[0].data == breakpoint:
        return True
    into = (Flow.NEXT, Flow.BRANCH)
    return any(insn.data == breakpoint and before.flow in into for before, insn in pairwise(insns[:end]))
