"""Sourced into GDB by test_load_before.py.

    probe-behind-loads NAME…   probe what is between a load that reserves memory and its store in these functions, and
                               what follows the store; print, as JSON, for each store the probes up to it and behind it
    try-behind-load NAME…      try what depends on the place, and a count, at the first; print what is said, as JSON
"""

from __future__ import annotations

import json

import gdb

from gdb_optprobe.debugger.attach import current_session
from gdb_optprobe.detours.cfg import Cfg, CfgCache
from gdb_optprobe.detours.planner import load_before
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.text import Area
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.probes.spec import Spec
from tests.booted.staying_places import cfg_of


def stores(cfg: Cfg) -> list[tuple[list[Insn], Insn]]:
    """Return what is between each load and its store, where nothing is left out on the way, and what is behind it."""
    area, found, inside = cfg.text.area, [], list[Insn]()
    for insn in sorted(cfg.function.own.values()):
        if area(insn.address) is Area.RESERVATION:
            inside.append(insn)
            continue
        is_whole = inside and inside[-1].end == insn.address and insn.flow is Flow.BRANCH
        if is_whole and all(one.flow is Flow.NEXT for one in inside):
            found.append((inside, insn))
        inside = []
    return found


class ProbeBehindLoads(gdb.Command):
    def __init__(self) -> None:
        super().__init__("probe-behind-loads", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        session, places = current_session(), []
        for name in argument.split():
            if (cfg := cfg_of(session, name)) is None:
                continue
            for inside, behind in stores(cfg):
                added = [session.add(Spec(f"*{insn.address:#x}"))[0] for insn in (*inside, behind)]
                assert all(view.tier == "optimized" for view in added)
                places.append([view.number for view in added])
        gdb.write(json.dumps(places) + "\n")


class TryBehindLoad(gdb.Command):
    def __init__(self) -> None:
        super().__init__("try-behind-load", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        session = current_session()
        cfgs = CfgCache(session.target.guest.isa, session.target.guest.text)
        said: dict[str, str] = {}
        for name in argument.split():
            if (cfg := cfg_of(session, name)) is None or not (found := stores(cfg)):
                continue
            at = found[0][0][0].address
            register = next(name for name in session.target.guest.isa.registers if name.endswith("3"))
            load = load_before(at, cfgs)
            said = {"at": f"{at:#x}", "load": f"{load:#x}", "register": register}
            where = f"*{at:#x}"
            refused = {
                "condition": Spec(where, condition=f"${register} > 1"),
                "pc": Spec(where, condition="$pc > 1"),
                "key": Spec(where, actions=("count by $pc",)),
                "stop": Spec(where, actions=("stop",)),
            }
            for what, spec in refused.items():
                try:
                    session.add(spec)
                except OptprobeError as error:
                    said[what] = error.message
            said["added"] = gdb.execute(f"optprobe add *{at:#x} do count by $pid", to_string=True)
            said["explain"] = gdb.execute(f"optprobe explain *{at:#x}", to_string=True)
            break
        gdb.write(json.dumps(said) + "\n")


ProbeBehindLoads()
TryBehindLoad()
