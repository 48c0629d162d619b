"""A function that threads run on a real decoder of x86, and a user that probes it.

    threads ──step──► text, branches, detours (Unicorn)      each instruction that is executed, wherever its copy
    a user ──add, delete, disable, enable──► Session           is, goes to the oracle, which counts by hand
"""

from __future__ import annotations

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from tests.detours.fakes import code
from tests.fake_guest import CODE, DATA, FILL, JOURNAL, PC, PLAIN_LISTING, SP, STACKS, START, Body, FakeGuest

__all__ = ["CODE", "DATA", "LISTING", "PC", "STACKS", "START", "World"]

LISTING = PLAIN_LISTING.replace("c3                      ret", "eb da                   jmp START")
"""Instructions of 1 to 7 bytes, each of which changes what the next ones make of it; flags live across some."""


class World:
    """names: what names mean, where not only registers do."""

    def __init__(self, names: NamesAt | None = None) -> None:
        body = Body("victim", START, code(LISTING))
        insns = X86_64.decode(body.data, START)
        self.insns = {insn.address: insn for insn in insns}
        self.addresses = sorted(self.insns)
        self.arena = Arena(Ranges(((CODE, JOURNAL),), ((DATA, DATA + 0x1000),), FILL))
        settings = Settings(emulation=False)
        self.guest = FakeGuest((body,), arena=self.arena, names=names, settings=settings)
        self.alone = FakeGuest((body,))
        for guest in (self.guest, self.alone):
            guest.start_threads(START)
        self.session = self.guest.session()
        self.detours: dict[Detour, frozenset[int]] = {}
        self.expected: dict[int, int] = {}

    def command(self, what: str, where: int) -> None:
        probes = self.session.registry.probes()
        if what in ("add", "boost"):
            spec = Spec(f"*{self.addresses[where % len(self.addresses)]:#x}", tier="boosted" if what == "boost" else "")
            (view,) = self.session.add(spec)
            self.expected[view.number] = 0
        elif probes:
            number = probes[where % len(probes)].number
            getattr(self.session, what)([number])
        self.session.optimizer.retry()
        self._remember()
        assert self.session.check() == ()

    def _remember(self) -> None:
        for site in self.session.registry.sites():
            new = site.detour
            if new is None or site.installed_plan is None:
                continue
            for old in [old for old in self.detours if old.address < new.end and new.address < old.end]:
                del self.detours[old]
            self.detours[new] = frozenset(insn.address for insn in site.installed_plan.displaced)

    def original(self, pc: int) -> int | None:
        """Return the instruction that is at `pc`, or of which a copy is."""
        if pc in self.insns:
            heads = (branch.patch.address for branch in self.session.registry.branches())
            return None if pc in heads else pc
        for detour, copied in self.detours.items():
            if detour.address <= pc < detour.end:
                ends = {original: end for _, end, original in detour.programs}
                return {ends.get(old, at): old for at, old in detour.origins if old in copied}.get(pc)
        raise AssertionError(f"a thread is lost at {pc:#x}")

    def run(self, number: int, steps: int) -> None:
        for _ in range(steps):
            original = self.original(self.guest.machine.threads[number][PC])
            self.guest.step(number)
            if original is None:
                continue
            for probe in self.session.registry.probes():
                self.expected[probe.number] += probe.enabled and probe.address == original
            self.alone.step(number)
            here, there = self.guest.machine.threads[number], self.alone.machine.threads[number]
            assert here[SP] == there[SP] and here[:2] == there[:2], "the threads compute something else"

    def leave_detours(self) -> None:
        for number in range(len(self.guest.machine.threads)):
            while self.guest.machine.threads[number][PC] not in self.insns:
                self.run(number, 1)

    def end(self) -> None:
        self.session.delete()
        assert self.guest.read_text() == self.alone.read_text()
        for number in range(len(self.guest.machine.threads)):
            self.run(number, 60)
        self.session.commit(0)
        assert set(self.guest.machine.read(CODE, DATA - CODE)) == {FILL}
