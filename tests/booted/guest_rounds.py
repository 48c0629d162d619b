"""Sourced into GDB by tests: `guest-rounds COUNT SEED` adds random probes on hot functions, runs, deletes, collects.

After each round the arena is as it was before the first: nothing in use, nothing dirty, and filled with bytes that
trap, so that whoever were still inside a slot that was freed would make the guest ill. But for trampolines of calls
that have not returned, and the code that handles traps, which goes with the arena. The last line printed is JSON.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict
from random import Random

import gdb

from gdb_optprobe import kprobe, kretprobe
from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.debugger.running import run_for
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.session import Session

EACH, RETURNS = 32, 4
CHECKED = 8  # every so many rounds
HOT = "vfs_read vfs_write ksys_read do_sys_openat2 path_openat begin_new_exec kernel_clone copy_page_range do_exit "
HOT += "handle_mm_fault kmem_cache_alloc kmem_cache_free __schedule try_to_wake_up pick_next_task_fair update_curr "
HOT += "handle_softirqs __do_softirq run_timer_softirq __run_timers rcu_core"
# Calls that end soon: who waits in one keeps its trampoline.
RETURNING = ("vfs_write", "do_sys_openat2", "path_openat", "handle_mm_fault", "kmem_cache_alloc", "try_to_wake_up")
KINDS = ("", "", "", '$comm == "dd"', "$pid & 1")
TIERS = ("", "", "", "trapped")
ACTIONS = ("count", "count", "count by $comm", "hist($pid)")
TIMEOUT = 60.0


class Rounds:
    def __init__(self, session: Session, random: Random) -> None:
        self.session = session
        self.random = random
        self.told: Counter[str] = Counter()
        self.slowest = 0.0
        linux = attachments.current.linux if attachments.current is not None else None
        assert linux is not None
        known = [name for name in HOT.split() if linux.kernel.symbols.address(name) is not None]
        text = session.target.guest.text
        found = [text.function(session.target.debugger.resolve(name, False)[0]) for name in known]
        self.addresses = [insn.address for each in found if each is not None for insn in each.hot]

    def go(self) -> None:
        self._add()
        self._settled("optimize")
        run_for(self.random.uniform(0.02, 0.08))
        views = self.session.views()
        self.told.update(f"{view.kind} {view.tier}" for view in views)
        self.told["hits"] += sum(view.hits for view in views)
        if self.told["rounds"] % CHECKED == 0:
            assert self.session.check() == ()
        arena = self.session.optimizer.arena
        assert arena is not None
        high = max(slot.end for slots in arena.code.slots for slot in slots.used)
        self.session.delete()
        run_for(self.random.uniform(0.001, 0.03))
        self._settled("collect")
        self._is_as_it_was(high)
        # What was freed traps for a while before it is used again.
        run_for(self.random.uniform(0.001, 0.02))
        self.told["rounds"] += 1

    def _add(self) -> None:
        """As many probes as a round has; what would stop the guest at every hit is not among them."""
        added = 0
        for _ in range(RETURNS):
            kretprobe(self.random.choice(RETURNING), do=self.random.choice(("count", "latency")), maxactive=64)
            added += 1
        while added < EACH:
            place = f"*{self.random.choice(self.addresses):#x}"
            try:
                kind, do, tier = (self.random.choice(each) for each in (KINDS, ACTIONS, TIERS))
                probe = kprobe(place, when=kind, do=do, tier=tier)
            except OptprobeError:
                self.told["refused"] += 1
                continue
            view = probe.view
            if view.tier in ("optimized", "trapped") or view.state == "optimizing":
                added += 1
            else:
                self.told["slower"] += 1
                probe.delete()

    def _settled(self, what: str) -> None:
        begun = time.monotonic()
        self.session.commit(TIMEOUT)
        took = time.monotonic() - begun
        self.slowest = max(self.slowest, took)
        self.told[f"{what}, ms"] += int(1000 * took)

    def _is_as_it_was(self, high: int) -> None:
        arena = self.session.optimizer.arena
        assert arena is not None and arena.ranges.fill is not None
        left = {*self.session.optimizer.rethooks.retired_trampolines, *self._handler()}
        # Memory for another session that takes over from this one, or for calls of the kernel's, holds nothing.
        aside = {arena._spare} if arena._reserve is None else {arena._spare, arena._reserve[0]}
        there = [slot for slot in (*arena.dirty(), *_used(arena.code)) if slot not in aside]
        kept = [slot for slot in there if slot.address in left]
        assert len(kept) == len(there), f"not freed: {sorted(there)}"
        self.told["trampolines that calls were under way to"] += len(kept) - len(self._handler())
        start = arena.ranges.code[0][0]
        data = bytearray(self.session.target.guest.machine.read(start, high - start))
        for slot in kept:
            data[slot.address - start : slot.end - start] = bytes([arena.ranges.fill]) * slot.size
        assert set(data) <= {arena.ranges.fill}, "what was freed does not trap"


    def _handler(self) -> tuple[int, ...]:
        """Of traps, where there is one."""
        found = self.session.optimizer.traps.dispatcher._installed
        return (found.code.slot.address,) if found is not None else ()


def _used(pool: object) -> tuple[Slot, ...]:
    return tuple(slot for slots in pool.slots for slot in slots.used)  # type: ignore[attr-defined]


class GuestRounds(gdb.Command):
    """guest-rounds COUNT SEED"""

    def __init__(self) -> None:
        super().__init__("guest-rounds", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        count, seed = map(int, argument.split())
        rounds = Rounds(current_session(), Random(seed))
        begun = time.monotonic()
        for _ in range(count):
            rounds.go()
        view = rounds.session.collector()
        assert view is not None
        took = {"slowest": rounds.slowest, "seconds": time.monotonic() - begun}
        gdb.write(json.dumps({**rounds.told, **took, "collector": asdict(view)}) + "\n")


GuestRounds()
