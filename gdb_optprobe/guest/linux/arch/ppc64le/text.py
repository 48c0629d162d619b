"""The text of a ppc64le kernel. Fills guest.text.Text.

    _stext ──────────── __end_soft_masked ─────────────────────────── _etext     _sinittext ──── _einittext
    │ vectors and entry │ text                                        │          │ init: freed after boot │

Every branch is one instruction, so mid-function entries do not matter here. Known of a function are its code, where the
kernel rewrites it or knows it by its address, and where neither a stop nor a detour is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.linux.arch.ppc64le import areas
from gdb_optprobe.guest.linux.arch.ppc64le.barriers import Barriers
from gdb_optprobe.guest.linux.arch.ppc64le.constants import EXCEPTION_ROW
from gdb_optprobe.guest.linux.arch.ppc64le.ftrace import ENTERED, SITE
from gdb_optprobe.guest.linux.arch.ppc64le.kernel_tree import VMALLOC
from gdb_optprobe.guest.linux.arch.ppc64le.restarts import Restarts
from gdb_optprobe.guest.linux.arch.ppc64le.text_at_rest import at_rest
from gdb_optprobe.guest.linux.core_text import CoreText
from gdb_optprobe.guest.linux.exception_table import ExceptionTable
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import FORBIDDEN, Area, Fact, Function, IdleSites, Jump, Mark, Overlay, Whole
from gdb_optprobe.isa.base import Flow, Hazard, Insn
from gdb_optprobe.isa.ppc64le import PPC64LE


@dataclass(frozen=True, slots=True)
class _ReadOnly:
    """`machine.Memory` for what only reads."""

    read: Callable[[int, int], bytes]

    def write(self, address: int, data: bytes) -> None:
        raise Unreadable(address, len(data))


class PowerText(CoreText):
    """Fills guest.text.Text for a kernel on ppc64le."""

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
        found, self._entry = originals or OriginalText(kernel, PPC64LE, overlay), areas.entry_text(kernel)
        super().__init__(kernel, found, FtraceSites(kernel, SITE), self._entry, VMALLOC, shelf)
        self._never: dict[int, Mapping[int, Hazard]] = {}

    def through(self, read: Callable[[int, int], bytes]) -> PowerText:
        """Return the same text through another reader: for the unwinder, which must not send packets of its own."""
        kernel = replace(self._kernel, memory=_ReadOnly(read))
        self.originals.find()  # derive it now: `read` cannot be used for that
        return PowerText(kernel, originals=self.originals.through(kernel))

    @cached_property
    def exceptions(self) -> ExceptionTable:
        return ExceptionTable(self._kernel, EXCEPTION_ROW)

    @cached_property
    def barriers(self) -> Barriers:
        return Barriers(self._kernel)

    @cached_property
    def restarts(self) -> Restarts:
        return Restarts(self._kernel)

    def forget(self) -> None:
        super().forget()
        self._never.clear()

    # --- Text --------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> Area:
        return areas.of(name)

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
            self._never[function.start] = PPC64LE.forbidden(function.own)
        return self._never[function.start]

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        found = [*super().marks(start, end)]
        found += [Mark(Fact.BARRIER, at, 1) for at in self.barriers.within(start, end)]
        found += [Mark(Fact.RESTART, at, 4) for at in self.restarts.within(start, end)]
        found += [Mark(Fact.BUG, at, 4) for at in range(start, end, 4) if self.bugs.has(at)]
        return found

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        """See guest.Guest.idle_sites. Functions are entered at the instruction before the tracer's site, if any is."""
        if self.originals.missing or self.bugs.addresses is None:
            return IdleSites()
        start, end = self._text
        sites = frozenset(self.ftrace.addresses)
        before = [at for at in sorted(addresses) if start <= at < end and at + len(ENTERED) in sites]
        found = super().idle_sites(addresses, kept_off), self._untouched(before, ENTERED)
        return max(found, key=lambda sites: len(sites.addresses))

    def _rewritten(self) -> Iterator[int]:
        yield from super()._rewritten()
        yield from self.barriers.within(*self._text)
        yield from self.restarts.within(*self._text)
        yield from self.bugs.addresses or ()

    def _text_key(self) -> str:
        """The vectors have words that each boot fills, so the text behind them counts."""
        assert self._shelf is not None, "there is a cache"
        (_, start), (base, end) = self._entry, self._text
        found = sha256(f"{self._shelf.key}\n{start - base:x} {end - base:x}\n".encode())
        found.update(self._at_rest(self.originals.read(start, end), start))
        return found.hexdigest()

    def _table_rows(self) -> Iterator[Sequence[int]]:
        yield from super()._table_rows()
        yield self.barriers.within(0, MASK)
        yield self.restarts.within(*self._text)

    def _lasts(self, address: int) -> bool:
        return address >= self._entry[1] and super()._lasts(address)

    def _at_rest(self, text: bytes, base: int) -> bytes:
        """Return the text at `base` without what the kernel rewrites while it runs."""
        end = base + len(text)
        symbols = self._kernel.symbols
        rooms = (symbols.function_bounds(at) for name in areas.NO_CODE for at in symbols.lookup(name))
        tracers = [at for name in areas.TRACERS for at in symbols.lookup(name)]
        sites = [*self.ftrace.within(base, end), *tracers]
        return at_rest(text, base, sites, self.jump_labels.within(base, end), filter(None, rooms))

    # --- functions ---------------------------------------------------------------------------------------------

    def _decode(self, start: int, end: int) -> Function:
        # Single functions are read by themselves, as for a backtrace.
        data = self._read(start, end) if self._pieces else self.originals(start, self._kernel.read(start, end))
        tables = PPC64LE.jump_tables(data, start)
        words = {at + 4 * number for at, targets in tables.items() for number in range(len(targets))}
        code = {insn.address: insn for insn in instructions(data, start) if insn.address not in words}
        return Function(
            name=self._name(start),
            start=start,
            end=end,
            own=code,
            look=lambda: self._whole(start, end, code),
            compiled=PPC64LE.toc(start, code) is not None,
        )

    def _whole(self, start: int, end: int, code: Mapping[int, Insn]) -> Whole:
        """Return the jumps inside the function. Entries from elsewhere are not needed to move one instruction."""
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
    """Yield all instructions; a word that is none (a table, padding) is skipped."""
    at = 0
    while at < len(data):
        found = PPC64LE.decode(data[at:], address + at)
        yield from found
        at = found[-1].end - address if found else at + PPC64LE.alignment


