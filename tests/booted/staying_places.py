"""Sourced into GDB by test_staying.py.

    probe-staying NAME…   probe what must stay in these functions, and what leads there; print where, as JSON
    staying-bytes         what is there now, by address; JSON
"""

from __future__ import annotations

import json

import gdb

from gdb_optprobe.debugger.attach import current_session
from gdb_optprobe.detours.cfg import Cfg, CfgCache
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec


def cfg_of(session: Session, name: str) -> Cfg | None:
    try:
        start, *_ = session.target.debugger.resolve(name, False)
    except OptprobeError:
        return None  # not in every kernel
    return CfgCache(session.target.guest.isa, session.target.guest.text).at(start)


def is_served(session: Session, insn: Insn, spec: Spec) -> bool:
    """Return whether a probe is where execution comes from: not where that is too short for a branch, nor at a trap."""
    try:
        return session.optimizer.plan(insn.address, [spec]).stays is not None
    except OptprobeError:
        return False


class ProbeStaying(gdb.Command):
    """Probe every instruction that must stay and has one way to it, and that way, which is found here once more."""

    def __init__(self) -> None:
        super().__init__("probe-staying", gdb.COMMAND_DATA)
        self.places: list[Insn] = []

    def invoke(self, argument: str, from_tty: bool) -> None:
        session, found = current_session(), []
        for name in argument.split():
            if (cfg := cfg_of(session, name)) is None:
                continue
            for insn in list(cfg.function.own.values()):
                way = cfg.way_to(insn)
                spec = Spec(f"*{insn.address:#x}")
                if way is None or not is_served(session, insn, spec):
                    continue
                (stays,) = session.add(spec)
                (leads,) = session.add(Spec(f"*{way.address:#x}"))
                self.places.append(insn)
                found.append([stays.number, leads.number, stays.tier, way.end == insn.address, way.flow is Flow.NEXT])
        gdb.write(json.dumps(found) + "\n")


class StayingBytes(gdb.Command):
    def __init__(self, of: ProbeStaying) -> None:
        super().__init__("staying-bytes", gdb.COMMAND_DATA)
        self.of = of

    def invoke(self, argument: str, from_tty: bool) -> None:
        read = current_session().target.guest.machine.read
        now = {f"{insn.address:#x}": [insn.data.hex(), read(insn.address, insn.size).hex()] for insn in self.of.places}
        gdb.write(json.dumps(now) + "\n")


StayingBytes(ProbeStaying())
