"""The routines that blocks with a condition call (routine.py): made, kept while a detour calls them, adopted.

    block of detours ──call──► routine ──► maps of the blocks of one `add`    (shared_maps.py)
A member that has left its block calls it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.block import WORD
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.handlers.lower_routine import Callers
from gdb_optprobe.isa.base import Code, Dead
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.journal_records import ProbeRecord, fingerprint
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.routine import Routine, install_routine, is_same_everywhere, may_be_called, routine_code
from gdb_optprobe.probes.settings import Settings, with_sizes
from gdb_optprobe.probes.shared_maps import SharedMaps
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target

Compile = Callable[[Spec, Plan, Settings, SharedMaps | None, int | None], Handler]
INLINE = 16
"""Actions are called by many functions, not inlined, where they would fill more than one in so many bytes of code."""


@dataclass(frozen=True, slots=True)
class _BlockSpace:
    """See shared_maps.Space: for maps of many functions, beside `taken` bytes that the functions need themselves.

    may_lend: whether the kernel is asked for more where maps of the usual size need more.
    """

    arena: Arena
    taken: int
    may_lend: bool

    @property
    def free(self) -> int:
        return max(0, self.arena.data.largest - self.taken)

    @property
    def lent(self) -> int:
        lender = self.arena.lender if self.may_lend else None
        return lender.most(0, 1 << 64) if lender is not None and not lender.why_not() else 0


@dataclass(frozen=True)
class BlockRoutines:
    """compile: see Kprobes.compile. placed: in the guest, those of blocks that are gone too, while a detour calls them.
    """

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]
    compile: Compile
    placed: list[Routine] = field(default_factory=list)

    def may_share(self, spec: Spec) -> bool:
        """Return whether a hit may do the same at each function, by what was typed."""
        if spec.is_return or spec.is_plain_count or spec.is_recorded:
            return True
        try:
            return is_same_everywhere(spec)
        except OptprobeError:  # one by one it is said where in the line
            return False

    def common_handler(
        self, spec: Spec, sample: Callable[[], Plan | None], functions: int, may_lend: bool
    ) -> Handler | None:
        """Return what a hit does at each function, where it may be shared; None where it is another, or is inlined.

        sample: returns the plan of one of them. functions: how many they are. may_lend: see _BlockSpace.
        """
        if spec.is_return or spec.is_plain_count:
            return Handler()
        settings = self.settings()
        try:
            if (plan := sample()) is None:
                return None
            has_maps = not (spec.counts_hits or spec.is_recorded)
            maps = self._maps(functions, may_lend) if has_maps else None
            found = self.compile(spec, plan, settings, maps, 0).made_bare()
            if found is None or not may_be_called(found, plan.dead, self.target.guest.isa):
                return None
            return found if not has_maps or not self._fits_inline(found, plan, functions) else None
        except (Unreadable, Unreachable):
            raise
        except OptprobeError:  # one by one it is said of which functions, and where in the line
            return None

    def _maps(self, functions: int, may_lend: bool) -> SharedMaps:
        """Return maps for the blocks of one `add`. A function has a word of its own besides. Raises Refused."""
        space = _BlockSpace(self.optimizer.find_arena(), functions * WORD, may_lend)
        return SharedMaps(self.settings().table_keys, functions, space, cells=True)

    def _fits_inline(self, handler: Handler, plan: Plan, functions: int) -> bool:
        """Return whether each function has the actions in its detour: there a hit costs less. Raises OptprobeError."""
        at, code = plan.address, self.optimizer.find_arena().code
        try:
            inlined = handler.code(self.target.guest.isa, plan, plan.dead, at, None)(at)
        except NotLowered:  # one by one it is said of what
            return True
        return len(inlined) * functions * INLINE <= code.largest

    def install(self, block: CountBlock, arena: Arena) -> bool:
        """Write the routine that a block needs, and its maps; return whether it has them now, or needs none.

        Raises OptprobeError.
        """
        if block.handler.is_plain:
            return True
        guest, maps = self.target.guest, block.handler.shared
        try:
            if maps is not None:
                maps.reserve_block(block.code.address, block.sites[0], guest.isa.data_reach, arena, guest.machine)
            block.routine = install_routine(self._code(block), block.code, block.calls, guest, arena)
        except (Refused, NotLowered):
            return False
        self.placed.append(block.routine)
        return True

    def _code(self, block: CountBlock) -> Code:
        """Return the code of a block's routine. Raises NotLowered."""
        callers = Callers(block.code.address + block.offset, block.step, block.before)
        return routine_code(block.handler, callers, block.data.address, block.dead, block.isa)

    def forget(self, block: CountBlock, arena: Arena) -> None:
        """Give back what a block had in maps, and its routine: it is not in the guest after all. Raises OptprobeError.

        Others of the same `add` may have theirs, and are not registered yet: `tidy` would release them too.
        """
        if block.handler.shared is not None:
            block.handler.shared.release_block(block.code.address, arena)
        if block.routine is not None:
            self._release(block.routine, arena)

    def tidy(self) -> None:
        """Release the routines that no detour calls any more which something leads to. Raises OptprobeError."""
        arena = self.optimizer.arena
        used = {id(block.routine) for block in self.registry.blocks}
        for routine in list(self.placed):
            callers = routine.callers
            detours = (one.detour.address for one in (*self.registry.branches(), *self.optimizer.lost_branches()))
            if arena is None or id(routine) in used or any(callers.address <= at < callers.end for at in detours):
                continue
            self._release(routine, arena)

    def _release(self, routine: Routine, arena: Arena) -> None:
        self.placed.remove(routine)
        routine.release(self.target.guest, arena)

    def at(self, pc: int) -> Routine | None:
        """Return the routine that `pc` is in."""
        return next((routine for routine in self.placed if routine.has(pc)), None)

    def problems(self) -> list[str]:
        """Return where memory does not hold what was written, in words."""
        machine, found = self.target.guest.machine, []
        for detour in (routine.installed.detour for routine in self.placed):
            if machine.read(detour.address, detour.size) != detour.data:
                found.append(f"the program at {detour.address:#x} that many detours call was changed")
        return found

    def handler_again(self, record: ProbeRecord, plan: Plan, dead: Dead, maps: SharedMaps | None) -> Handler:
        """Return what a hit of an earlier GDB's block does. dead: at every member. maps: that it shares.

        Raises OptprobeError where it would be something else.
        """
        if record.spec.is_return or record.spec.is_plain_count:
            return Handler()
        settings = with_sizes(self.settings(), record.sizes)
        function = record.maps.function if record.maps is not None else None
        found = self.compile(record.spec, plan, settings, maps, function).made_bare()
        if found is None or record.routine is None or fingerprint(found) != record.program:
            raise OptprobeError("it would not do here what it did there")
        if not is_same_everywhere(record.spec) or not may_be_called(found, dead, self.target.guest.isa):
            raise OptprobeError("its functions cannot be probed together any more")
        return found

    def adopt(self, block: CountBlock, address: int, arena: Arena) -> None:
        """Take over the routine of an earlier GDB's block. Raises OptprobeError where it is not what it would be."""
        wanted = self._code(block)(address)
        found = arena.reuse(lambda one: (one.address, one.head, one.data) == (address, address, wanted))
        if found is None:
            raise OptprobeError("its code is not what this version would write")
        block.routine = Routine(InstalledDetour(*found), block.code, block.calls)
        self.placed.append(block.routine)
