"""The text of a ppc64le kernel. Fills guest.text.Text.

    _stext ──────────── __end_soft_masked ─────────────────────────── _etext     _sinittext ──── _einittext
    │ vectors and entry │ text                                        │          │ init: freed after boot │
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256

from gdb_optprobe.guest.linux.arch.ppc64le import areas
from gdb_optprobe.guest.linux.arch.ppc64le.barriers import Barriers
from gdb_optprobe.guest.linux.arch.ppc64le.constants import EXCEPTION_ROW
from gdb_optprobe.guest.linux.arch.ppc64le.ftrace import ENTERED, SITE
from gdb_optprobe.guest.linux.arch.ppc64le.kernel_tree import VMALLOC
from gdb_optprobe.guest.linux.arch.ppc64le.restarts import Restarts
from gdb_optprobe.guest.linux.arch.ppc64le.text_at_rest import at_rest
from gdb_optprobe.guest.linux.kernel import MASK
from gdb_optprobe.guest.linux.one_size_text import OneSizeText, instructions
from gdb_optprobe.guest.text import Area, Fact, Mark
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.direct_branches import direct_branches


class PowerText(OneSizeText):
    """Fills guest.text.Text for a kernel on ppc64le."""

    isa = PPC64LE
    modules = VMALLOC
    exception_row = EXCEPTION_ROW
    site = SITE
    entered = ENTERED
    _entry_text = staticmethod(areas.entry_text)
    _direct_branches = staticmethod(direct_branches)

    @cached_property
    def barriers(self) -> Barriers:
        return Barriers(self._kernel)

    @cached_property
    def restarts(self) -> Restarts:
        return Restarts(self._kernel)

    # --- Text --------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> Area:
        return areas.of(name)

    def _own_marks(self, start: int, end: int) -> Iterator[Mark]:
        yield from (Mark(Fact.BARRIER, at, 1) for at in self.barriers.within(start, end))
        yield from (Mark(Fact.RESTART, at, 4) for at in self.restarts.within(start, end))

    def _rewritten(self) -> Iterator[int]:
        yield from super()._rewritten()
        yield from self.barriers.within(*self._text)
        yield from self.restarts.within(*self._text)

    def _text_key(self) -> str:
        """The vectors have words that each boot fills, so the text behind them counts."""
        assert self._shelf is not None, "there is a cache"
        (_, start), (base, end) = self._entry, self._text
        found = sha256(f"{self._shelf.key}\n{start - base:x} {end - base:x}\n".encode())
        found.update(self._at_rest(self._read_all(start, end), start))
        return found.hexdigest()

    def _table_rows(self) -> Iterator[Sequence[int]]:
        yield from super()._table_rows()
        yield self.barriers.within(0, MASK)
        yield self.restarts.within(*self._text)

    def _function_lasts(self, start: int, end: int) -> bool:
        return start >= self._entry[1] and super()._function_lasts(start, end)

    def _at_rest(self, text: bytes, base: int) -> bytes:
        """Return the text at `base` without what the kernel rewrites while it runs."""
        end = base + len(text)
        symbols = self._kernel.symbols
        rooms = (symbols.function_bounds(at) for name in areas.NO_CODE for at in symbols.lookup(name))
        tracers = [at for name in areas.TRACERS for at in symbols.lookup(name)]
        sites = [*self.ftrace.within(base, end), *tracers]
        return at_rest(text, base, sites, self.jump_labels.within(base, end), filter(None, rooms))

    # --- functions ---------------------------------------------------------------------------------------------

    def _instructions(self, data: bytes, start: int) -> Mapping[int, Insn]:
        tables = PPC64LE.jump_tables(data, start)
        words = {at + 4 * number for at, targets in tables.items() for number in range(len(targets))}
        return {insn.address: insn for insn in instructions(data, start, PPC64LE) if insn.address not in words}

    def _is_compiled(self, data: bytes, start: int, code: Mapping[int, Insn]) -> bool:
        return PPC64LE.toc(start, code) is not None
