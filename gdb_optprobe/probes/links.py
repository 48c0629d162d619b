"""Detours that lead straight into one another, where one's way on begins with another's branch.

    text        … jmp A ……… jmp B …              as it was laid out: A ──► text ──► B
    detours     A: …, jmp ──┐   ┌─► B: …         linked:             A ──────────► B
                            └───┘
A jump between text and detours costs QEMU a look-up, more than some instructions do; in a function with many probes
most exits are linked. A link is one write of a displacement while the guest is stopped: wherever a vCPU is, both exits
are right. Links are removed before their targets: a retired detour has none, though threads may still be inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.isa.base import Insn, OutOfReach
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.registry import Registry


@dataclass
class Links:
    """The links between the detours of the installed branches.

    _unsure: those that may be there or not: a write of them failed. They are looked at before the next use.
    """

    guest: Guest
    registry: Registry
    _exits: defaultdict[int, dict[int, Insn]] = field(default_factory=lambda: defaultdict(dict))
    _linked: dict[int, Patch] = field(default_factory=dict)
    _unsure: dict[int, Patch] = field(default_factory=dict)

    def add(self, branch: Branch, link: bool = True) -> None:
        """Link `branch`, which was written, with the installed branches, itself among them.

        link: else it is only known from now on, and nothing is written.
        """
        ways = branch.detour.exits
        for insn in ways:
            self._exits[insn.target or 0][insn.address] = insn
        if link:
            self._link([*ways, *self._exits_to(branch)])

    def remove(self, branch: Branch) -> None:
        """Remove the links into and out of the detour of `branch`, which is about to be removed. Raises TextChanged."""
        self._look()
        own = branch.detour.exits
        linked = {insn.address for insn in (*own, *self._exits_to(branch))} & self._linked.keys()
        links = {at: self._linked.pop(at) for at in sorted(linked)}
        try:
            patch.revert([*links.values()], self.guest.machine)
        except BaseException:  # of GDB's own errors too
            self._unsure |= links
            raise
        for insn in own:
            ways = self._exits.get(insn.target or 0, {})
            ways.pop(insn.address, None)  # it is not there if they were removed before
            if not ways:
                self._exits.pop(insn.target or 0, None)

    def is_linked(self, branch: Branch) -> bool:
        """Return whether a thread may enter the detour of `branch` without passing its head in the text."""
        self._look()
        return any(insn.address in self._linked for insn in self._exits_to(branch))

    def _exits_to(self, branch: Branch) -> Collection[Insn]:
        """Return the exits of detours that lead to the head of `branch`."""
        return self._exits[branch.plan.head].values() if branch.plan.head in self._exits else ()

    def detour_bytes(self, branch: Branch) -> bytes:
        """Return what the detour of `branch` holds now."""
        self._look()
        detour = branch.detour
        data = bytearray(detour.data)
        for insn in detour.exits:
            if insn.address in self._linked:
                at = insn.address - detour.address
                data[at : at + insn.size] = self._linked[insn.address].new
        return bytes(data)

    def _look(self) -> None:
        """Find out which links are there of those that may be. Raises what reading does."""
        for at, link in list(self._unsure.items()):
            if self.guest.machine.read(link.address, len(link.old)) != link.old:
                self._linked[at] = link
            del self._unsure[at]

    def _link(self, insns: list[Insn]) -> None:
        self._look()
        patches: dict[int, Patch] = {}
        for insn in insns:
            branch = self.registry.branch(insn.target or 0)
            if branch is None or insn.address in self._linked:
                continue
            try:
                new = self.guest.isa.redirect(insn, branch.detour.address)
            except OutOfReach:
                continue
            patches[insn.address] = Patch(insn.address, insn.data, new)
        try:
            patch.apply(list(patches.values()), self.guest.machine)
        except BaseException:  # of GDB's own errors too: the connection broke, and some may be there
            self._unsure |= patches
            raise
        self._linked |= patches
