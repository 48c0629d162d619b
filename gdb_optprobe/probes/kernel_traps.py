"""Traps in the kernel's text: each leads to the detour of its branch.

    probed insn: trap ──► the kernel's entry code ──► dispatcher ──► detour of the branch ──► next insn
The dispatcher and its table are in trap_dispatcher.py. This file has the part that only the kernel's traps need: a
removed trap leads nowhere (the dispatcher returns to the instruction itself), and a guest may have no way to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import PatchedText
from gdb_optprobe.detours.journal import TableKind
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.lower_traps import lower_trap_handler
from gdb_optprobe.maps.trap_table import KERNEL_KEY, Key
from gdb_optprobe.probes.trap_dispatcher import NO_CODES, Codes, Dispatch, TrapDispatcher


@dataclass
class KernelTraps:
    """The traps of a session in the kernel's text."""

    guest: Guest
    dispatcher: TrapDispatcher = field(init=False)

    def __post_init__(self) -> None:
        self.dispatcher = TrapDispatcher(self.guest, TableKind.TRAPS, KERNEL_KEY)

    @cached_property
    def missing(self) -> str:
        """Return why no trap can be handled in the guest, in words; "" where it can."""
        try:
            self.guest.trap_calls()
        except OptprobeError as error:
            return error.message
        return ""

    @property
    def trap(self) -> bytes:
        """Return the instruction that is written as a trap."""
        return self.guest.trap_calls().trap or self.guest.isa.trap

    @property
    def paths(self) -> tuple[tuple[int, int], ...]:
        """Return what TierLimits has as trap_paths."""
        if self.missing:
            return ()
        calls = self.guest.trap_calls()
        return (*calls.ways_in, *calls.readers)

    def set_detour(self, address: int, detour: int, arena: Arena) -> None:
        """Have a trap at `address`, which is about to be written, lead to `detour`. Raises Refused, OptprobeError."""
        if not self.dispatcher.is_installed:
            self._install(arena)
        self.dispatcher.set_code((address,), detour)

    def set_detours(self, detours: Mapping[int, int], arena: Arena) -> None:
        """Do so for many traps: `detours` by their addresses."""
        if not self.dispatcher.is_installed:
            self._install(arena)
        self.dispatcher.set_codes({(address,): detour for address, detour in detours.items()})

    def clear(self, address: int) -> None:
        """Record that the trap at `address` was removed, or is not written."""
        self.dispatcher.clear((address,))

    def adopt(self, texts: Sequence[PatchedText], arena: Arena) -> None:
        """Serve CPUs that have just come to traps of an earlier session, which are removed. Raises as `set_detour`."""
        if keys := self._adopted_keys(texts):
            self._install(arena, dict.fromkeys(keys))

    def check_memory(self, texts: Sequence[PatchedText], arena: Arena) -> None:
        """Raises Refused where there is no memory for what `adopt` puts in; nothing is changed."""
        if keys := self._adopted_keys(texts):
            self.dispatcher.check_memory(keys, self.guest.trap_calls().handler, arena)

    def _adopted_keys(self, texts: Sequence[PatchedText]) -> Sequence[Key]:
        """Return the keys of an earlier session's traps, to which a CPU may have come; none without its dispatcher."""
        keys = [(text.address,) for text in texts if text.is_trap(self.guest.isa)]
        if not keys or self.missing:
            return ()
        hooked = {call.address for call in self.guest.trap_calls().calls}
        return keys if not hooked.isdisjoint(text.address for text in texts) else ()

    def _install(self, arena: Arena, codes: Codes = NO_CODES) -> None:
        calls = self.guest.trap_calls()
        isa = calls.trapping
        assert isa is not None, "no plan has a trap"
        dispatch = Dispatch(calls, lambda table: lower_trap_handler(table, calls.entry, isa), removed=0)
        self.dispatcher.install(dispatch, arena, codes)
