"""The text of a kernel where all instructions, and so branches to detours, have one size.

Every branch is one instruction, so mid-function entries matter only before an instruction that must stay. Known of a
function are its code, where the kernel rewrites it or knows it by its address, and where neither a stop nor a detour is
allowed. Functions are entered at the instruction before the tracer's site, if any is.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from struct import Struct
from typing import Self

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.linux.bug_table import row_size
from gdb_optprobe.guest.linux.core_text import CoreText
from gdb_optprobe.guest.linux.exception_table import ExceptionTable
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites, Shape
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.module_symbols import ModuleNames, ModuleSymbols
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import FORBIDDEN, JUMP_LABEL, Area, Fact, Function, IdleSites, Jump, Mark, Overlay, Whole
from gdb_optprobe.interrupts import interruptible
from gdb_optprobe.isa.base import Flow, Hazard, Insn
from gdb_optprobe.isa.record import Isa


@dataclass(frozen=True, slots=True)
class _ReadOnly:
    """`machine.Memory` for what only reads."""

    read: Callable[[int, int], bytes]

    def write(self, address: int, data: bytes) -> None:
        raise Unreadable(address, len(data))


class Targets:
    """Addresses that jumps lead to, each as often as jumps do."""

    def __init__(self, targets: Iterable[int]) -> None:
        self._ascending = array("Q", sorted(targets))

    def within(self, start: int, end: int) -> Sequence[int]:
        """Return those from `start` to before `end`."""
        return self._ascending[bisect_left(self._ascending, start) : bisect_left(self._ascending, end)]


class OneSizeText(CoreText):
    """Fills guest.text.Text for a kernel.

    isa:           of its instructions. modules: start and end of the text of modules.
    exception_row: of the kernel's table of faults.
    site, entered: the tracer's site while no tracer is on, and the instruction before it.
    """

    isa: Isa
    modules: tuple[int, int]
    exception_row: Struct
    site: Shape
    entered: bytes

    def __init__(
        self,
        kernel: Kernel,
        overlay: Overlay | None = None,
        originals: OriginalText | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        """Take the text of `kernel`. originals: of a text that this one is beside, in place of an overlay.
        shelf: caches what is found in this kernel's text.
        """
        self._entry = self._entry_text(kernel)
        found = originals or OriginalText(kernel, self.isa, overlay)
        super().__init__(kernel, found, FtraceSites(kernel, self.site), self._entry, self.modules, shelf)
        self._never: dict[int, Mapping[int, Hazard]] = {}

    @staticmethod
    @abstractmethod
    def _entry_text(kernel: Kernel) -> tuple[int, int]:
        """Return start and end of the vectors and the code that they lead to."""

    @abstractmethod
    def _instructions(self, data: bytes, start: int) -> Mapping[int, Insn]:
        """Return the instructions of a function, by address."""

    @staticmethod
    @abstractmethod
    def _direct_branches(code: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Yield address and target of what may be a direct branch or call."""

    @abstractmethod
    def _is_compiled(self, data: bytes, start: int, code: Mapping[int, Insn]) -> bool:
        """Return whether a compiler has made the function."""

    def through(self, read: Callable[[int, int], bytes]) -> Self:
        """Return the same text through another reader: for the unwinder, which must not send packets of its own."""
        kernel = replace(self._kernel, memory=_ReadOnly(read))
        self.originals.find()  # derive it now: `read` cannot be used for that
        return type(self)(kernel, originals=self.originals.through(kernel))

    @cached_property
    def exceptions(self) -> ExceptionTable:
        return ExceptionTable(self._kernel, self.exception_row)

    def forget(self) -> None:
        super().forget()
        self._never.clear()

    # --- Text --------------------------------------------------------------------------------------------------

    def _core(self, address: int) -> Area:
        area = super()._core(address)
        hazard = self._forbidden(address).get(address) if area is Area.TEXT else None
        return FORBIDDEN[hazard] if hazard is not None else area

    def _forbidden(self, address: int) -> Mapping[int, Hazard]:
        """Return the addresses, in the function around `address`, at which no stop and no detour is allowed."""
        function = self.function(address)
        if function is None:
            return {}
        if function.start not in self._never:
            self._never[function.start] = self.isa.forbidden(function.own)
        return self._never[function.start]

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        size = self.isa.alignment
        bugs = [Mark(Fact.BUG, at, size) for at in range(start, end, size) if self.bugs.has(at)]
        return [*super().marks(start, end), *self._own_marks(start, end), *bugs]

    def _own_marks(self, start: int, end: int) -> Iterator[Mark]:
        """Yield marks that kernels of this ISA alone have."""
        return iter(())

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        """See guest.Guest.idle_sites."""
        if self.originals.missing or self.bugs.addresses is None:
            return IdleSites()
        start, end = self._text
        is_site, size = self.ftrace.is_site, len(self.entered)
        before = [at for at in sorted(addresses) if start <= at < end and is_site(at + size)]
        found = super().idle_sites(addresses, kept_off), self._untouched(before, self.entered)
        return max(found, key=lambda sites: len(sites.addresses))

    def _rewritten(self) -> Iterator[int]:
        yield from super()._rewritten()
        yield from self.bugs.addresses or ()

    # --- functions ---------------------------------------------------------------------------------------------

    def _decode(self, start: int, end: int) -> Function:
        # Single functions are read by themselves, as for a backtrace.
        data = self._read(start, end) if self._pieces else self.originals(start, self._kernel.read(start, end))
        code = self._instructions(data, start)
        is_compiled = self._is_compiled(data, start, code)
        return Function(
            name=self._name(start),
            start=start,
            end=end,
            own=code,
            look=lambda: self._whole(start, end, code),
            compiled=is_compiled,
            entries=lambda: self._entries(start, end, code) if is_compiled else None,
        )

    def _whole(self, start: int, end: int, code: Mapping[int, Insn]) -> Whole:
        """Return the jumps inside the function. Entries from elsewhere are not needed to move one instruction."""
        jumps = [Jump(i.address, i.target, i.flow.value) for i in code.values() if i.target is not None]
        jumps += [Jump(source, target, JUMP_LABEL) for source, target in self.jump_labels.within(start, end)]
        jumps += [Jump(*row, "fixup of a fault") for row in self.exceptions.leading_from(start, end)]
        return Whole(
            code=code,
            complete=False,
            jumps=tuple(jumps),
            blind_jumps=tuple(insn.address for insn in code.values() if insn.flow is Flow.INDIRECT_JUMP),
        )

    def _entries(self, start: int, end: int, code: Mapping[int, Insn]) -> Sequence[int] | None:
        """Return where execution may come to in a function that a compiler made, otherwise than from the instruction
        before, as often as there are ways; None where that is not known: a jump through a register may lead anywhere in
        it.
        """
        cold = (self._instructions(self._read(*part), part[0]) for part in self._cold_parts(start))
        jumps = (insn for part in (code, *cold) for insn in part.values() if insn.flow is Flow.INDIRECT_JUMP)
        if self.originals.missing or end > self._code_end or next(jumps, None) is not None:
            return None
        fixups = (fixup for _, fixup in self.exceptions.fixups(start, end))
        return [*self._branch_targets.within(start, end), *self._label_targets.within(start, end), *fixups]

    def _cold_parts(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield what a compiler put elsewhere of all functions with the name of the one at `start`."""
        for address in self._kernel.symbols.lookup(f"{self._name(start)}.cold"):
            bounds = self._bounds(address)
            if bounds is not None and bounds[0] == address:
                yield bounds

    @cached_property
    def _branch_targets(self) -> Targets:
        """Return where the direct branches of all the text lead. What the kernel rewrites later is in its tables."""
        start = self._text[0]
        with interruptible():
            code = self._read_all(start, self._code_end)
            return Targets(target for _, target in self._direct_branches(code, start))

    @property
    def _code_end(self) -> int:
        """Return where the kernel's own code ends: what is behind it in the text leads nowhere of the kernel's."""
        return self._text[1]

    @cached_property
    def _label_targets(self) -> Targets:
        return Targets(target for _, target in self.jump_labels.within(0, MASK))


class OneSizeModuleText(ModuleNames, OneSizeText):
    """Fills guest.text.Text for one module: too far from the kernel's text, for the most part, for a branch to a
    detour.
    """

    def __init__(self, module: Module, kernel: Kernel, originals: OriginalText) -> None:
        """Read the module. Raises OptprobeError."""
        self.module = module
        self.symbols = ModuleSymbols(module, kernel, row_size(kernel), self.exception_row.size)
        super().__init__(replace(kernel, symbols=self.symbols), originals=originals)
        self.renew(module)

    @property
    def _code_end(self) -> int:
        return self._text[1]

    def renew(self, module: Module) -> None:
        """Take the module as it is after the guest has run."""
        self.module = module
        self.forget()
        self.ftrace = FtraceSites(self._kernel, self.site, of=module.text)

    def area(self, address: int) -> Area:
        found = super().area(address)
        return Area.LOADED if found is Area.TEXT else found


def instructions(data: bytes, address: int, isa: Isa) -> Iterator[Insn]:
    """Yield all instructions; a word that is none (a table, padding) is skipped."""
    at = 0
    while at < len(data):
        found = isa.decode(data[at:], address + at)
        yield from found
        at = found[-1].end - address if found else at + isa.alignment
