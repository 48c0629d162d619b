"""The return probes of one `add` as a block: stubs that share one return hook (shared_rethook.py).

A member that is asked for by itself keeps its stub until its site is settled anew: then it gets a hook of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.isa.return_codegen import EntryStubs
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.shared_rethook import SharedRethook, entry_stubs


@dataclass(kw_only=True)
class ReturnBlock(CountBlock):
    """rethook: of all members. Their hits are the returns that it counts."""

    rethook: SharedRethook

    @property
    def _stubs(self) -> EntryStubs:
        found = entry_stubs(self.isa)
        assert found is not None, "there would be no block"
        return found

    def detour(self, index: int) -> Detour:
        site, at = self.sites[index], self.slot(index).address
        data = self._stubs.encode(at, self._stubs.size, self.rethook.entry, [site + len(self.original)], index)
        # Nothing in a stub is behind its program: it goes on in the shared code, and from there in the text.
        return Detour(at, data, site, ((at, site),), ((at, at, site),))

    def detours(self) -> bytes:
        """Return what `code` holds as it was written. Raises OutOfReach."""
        ends = [site + len(self.original) for site in self.sites]
        return self._stubs.encode(self.code.address, self.step, self.rethook.entry, ends)
