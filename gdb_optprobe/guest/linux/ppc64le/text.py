"""The text of a ppc64le kernel. Fills guest.text.Text.

    _stext ──────────── __end_soft_masked ─────────────────────────── _etext     _sinittext ──── _einittext
    │ vectors and entry │ text                                        │          │ init: freed after boot │

Every branch is one instruction, so nothing is asked here about what lands among several. What is told of a function:
its code, where the kernel rewrites it or knows it by its address, and where nothing may stop at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.bug_table import BugTable
from gdb_optprobe.guest.linux.exception_table import ExceptionTable
from gdb_optprobe.guest.linux.ftrace_sites import POWER, FtraceSites
from gdb_optprobe.guest.linux.jump_labels import JumpLabels
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.port import Overlay
from gdb_optprobe.guest.linux.ppc64le import areas
from gdb_optprobe.guest.linux.ppc64le.barriers import Barriers
from gdb_optprobe.guest.linux.ppc64le.constants import EXCEPTION_ROW
from gdb_optprobe.guest.text import Area, Fact, FtraceSite, Function, Jump, Mark, Whole
from gdb_optprobe.isa.base import Flow, Hazard, Insn
from gdb_optprobe.isa.ppc64le import PPC64LE

VMALLOC = (0xC008_0000_0000_0000, 0xC00A_0000_0000_0000)
"""Where modules are, with radix page tables (asm/book3s/64/radix.h, hash.h)."""
LARGEST = 1 << 20
REMEMBERED = 1024  # functions kept decoded


@dataclass(frozen=True, slots=True)
class _ReadOnly:
    """`machine.Memory` for what only reads."""

    read: Callable[[int, int], bytes]

    def write(self, address: int, data: bytes) -> None:
        raise Unreadable(address, len(data))


class PowerText:
    """`forget` after the guest has run: it rewrites its own text."""

    def __init__(self, kernel: Kernel, overlay: Overlay | None = None) -> None:
        self._kernel = kernel
        self._overlay = overlay or (lambda _, data: data)
        self._functions: dict[int, Function] = {}
        self._never: dict[int, Mapping[int, Area]] = {}
        self.ftrace = FtraceSites(kernel, POWER)
        self._text = kernel.range("_stext", "_etext")
        self._entry = areas.entry_text(kernel)
        self._init = kernel.range("_sinittext", "_einittext")

    def through(self, read: Callable[[int, int], bytes]) -> PowerText:
        """The same text, read in another way: for the unwinder, which must not send packets of its own."""
        return PowerText(replace(self._kernel, memory=_ReadOnly(read)), self._overlay)

    @cached_property
    def exceptions(self) -> ExceptionTable:
        return ExceptionTable(self._kernel, EXCEPTION_ROW)

    @cached_property
    def jump_labels(self) -> JumpLabels:
        return JumpLabels(self._kernel)

    @cached_property
    def barriers(self) -> Barriers:
        return Barriers(self._kernel)

    @cached_property
    def bugs(self) -> BugTable:
        return BugTable(self._kernel)

    def forget(self) -> None:
        """The guest has run, or a branch of ours has come or gone."""
        self._functions.clear()
        self._never.clear()

    # --- Text --------------------------------------------------------------------------------------------------

    def area(self, address: int) -> Area:
        for (start, end), area in (
            (self._entry, Area.ENTRY),
            (self._text, Area.TEXT),
            (self._init, Area.INIT),
            (VMALLOC, Area.MODULE),
        ):
            if start <= address < end:
                return self._core(address) if area is Area.TEXT else area
        return Area.NOT_TEXT

    def _core(self, address: int) -> Area:
        found = self._kernel.symbols.at(address)
        area = areas.of(found.name) if found is not None else Area.TEXT
        return area if area is not Area.TEXT else self._forbidden(address).get(address, Area.TEXT)

    def _forbidden(self, address: int) -> Mapping[int, Area]:
        """Where in the function around `address` nothing may stop and nothing may run."""
        function = self.function(address)
        if function is None:
            return {}
        if function.start not in self._never:
            found = dict.fromkeys(PPC64LE.reserved(function.own), Area.RESERVATION)
            hazards = {Hazard.TRAP: Area.TRAP, Hazard.SYSTEM: Area.SYSTEM}
            for insn in function.own.values():
                hazard = PPC64LE.hazard(insn)
                if hazard in hazards and insn.data != PPC64LE.breakpoint:
                    found[insn.address] = hazards[hazard]
            self._never[function.start] = found
        return self._never[function.start]

    def function(self, address: int) -> Function | None:
        bounds = self._kernel.symbols.function_bounds(address)
        if bounds is None or not self._text[0] <= bounds[0] < self._text[1] or bounds[1] - bounds[0] > LARGEST:
            return None
        start, end = bounds
        if start not in self._functions:
            if len(self._functions) >= REMEMBERED:
                self._functions.clear()
            self._functions[start] = self._decode(start, end)
        return self._functions[start]

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        found = [Mark(Fact.EXCEPTION, at, 1) for at in self.exceptions.faulting(start, end)]
        found += [Mark(Fact.JUMP_LABEL, at, 1) for at, _ in self.jump_labels.within(start, end)]
        found += [Mark(Fact.BARRIER, at, 1) for at in self.barriers.within(start, end)]
        found += [Mark(Fact.BUG, at, 4) for at in range(start, end, 4) if self.bugs.has(at)]
        return found

    def ftrace_sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        return self.ftrace.sites(start, end)

    def spell(self, address: int) -> str:
        found = self._kernel.symbols.at(address)
        if found is None:
            return f"{address:#x}"
        return f"{address:#x} <{found.name}+{found.offset}>" if found.offset else f"{address:#x} <{found.name}>"

    # --- functions ---------------------------------------------------------------------------------------------

    def _decode(self, start: int, end: int) -> Function:
        data = self._overlay(start, self._kernel.read(start, end))
        tables = PPC64LE.jump_tables(data, start)
        words = {at + 4 * number for at, targets in tables.items() for number in range(len(targets))}
        code = {insn.address: insn for insn in instructions(data, start) if insn.address not in words}
        found = self._kernel.symbols.at(start)
        return Function(
            name=found.name if found is not None else f"{start:#x}",
            start=start,
            end=end,
            own=code,
            look=lambda: self._whole(start, end, code),
            compiled=PPC64LE.toc(start, code) is not None,
        )

    def _whole(self, start: int, end: int, code: Mapping[int, Insn]) -> Whole:
        """What leads into it from elsewhere is not known, and nobody has to know it before one instruction is moved."""
        jumps = [Jump(i.address, i.target, i.flow.value) for i in code.values() if i.target is not None]
        jumps += [Jump(source, target, "jump label") for source, target in self.jump_labels.within(start, end)]
        jumps += [Jump(*row, "fixup of a fault") for row in self.exceptions.leading_from(start, end)]
        return Whole(
            code=code,
            complete=False,
            jumps=tuple(jumps),
            blind_jumps=tuple(insn.address for insn in code.values() if insn.flow is Flow.INDIRECT_JUMP),
        )


def instructions(data: bytes, address: int) -> Iterator[Insn]:
    """All of them; a word that is none (a table, padding) is passed over."""
    at = 0
    while at < len(data):
        found = PPC64LE.decode(data[at:], address + at)
        yield from found
        at = found[-1].end - address if found else at + PPC64LE.alignment


