"""Registers that probes read: no branch of the same function overwrites them, whatever the code has them for.

    vfs_read      ── branch: count           r11 is dead here, and so free for the count
    vfs_read+0x40 ── branch: sum($r11)       unless this is enabled: then both keep r11
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.probes import branch_patch
from gdb_optprobe.probes.branch import Branch, PreservedRegisters
from gdb_optprobe.probes.registry import Registry


@dataclass(frozen=True)
class ReadRegisters:
    """What the enabled probes of each function read."""

    guest: Guest
    registry: Registry
    cfgs: CfgCache

    def in_function_of(self, address: int) -> PreservedRegisters:
        """Return what those of the function around `address` read."""
        found: Counter[str] = Counter()
        for probe in self.registry.readers(*self._function(address)) if self.registry.has_readers else ():
            found.update(self.guest.isa.registers if probe.read_registers is None else probe.read_registers)
        return PreservedRegisters(frozenset(found), frozenset(name for name, readers in found.items() if readers > 1))

    def functions(self) -> set[tuple[int, int]]:
        """Return the functions, as (start, end), that have probes which read registers."""
        return {self._function(address) for address in self.registry.reading()}

    def is_preserved(self, branch: Branch) -> bool:
        """Return whether what is read around `branch` is left alone by it."""
        read = self.in_function_of(branch.plan.head)
        if read <= branch.preserved:
            return True
        sites = (self.registry.site(address) for address in branch.addresses)
        return not any(site and branch_patch.overwrites(site, self.guest, branch.preserved, read) for site in sites)

    def overwritten(self, addresses: Iterable[int]) -> Iterator[int]:
        """Yield the sites of branches that overwrite what probes at `addresses` read."""
        readers = (address for address in addresses if any(self.registry.readers(address, address + 1)))
        for function in {self._function(address) for address in readers}:
            for branch in self.registry.branches_within(*function):
                if not self.is_preserved(branch):
                    yield from branch.addresses

    def _function(self, address: int) -> tuple[int, int]:
        cfg = self.cfgs.at(address)
        return (cfg.function.start, cfg.function.end) if cfg is not None else (address, address + 1)
