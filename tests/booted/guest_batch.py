"""Sourced into GDB by batch_kills.py, for guests with probes on thousands of functions.

    batch-keep FILE    keep the kernel's text and the flags of its tracer's sites there; the guest has no probes
    batch-diff FILE    what differs from that now, in words; JSON. Memory for detours is given back before
    batch-state        hits by the number of the probe, and whether all are enabled, or none; JSON
    hits-of NAME…      hits at the entry of each of these functions, and how many probes there are; JSON
    counted-by-key     of all functions, with `count by` first: their hits, those by key, and those without room; JSON
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.probes.views import ProbeView
from tests.booted import hot_code

MARK = "@@batch "
DIFFERENCES = 20


def flags() -> dict[int, int]:
    """The flags of each site of the guest's tracer, by its address."""
    assert attachments.current is not None and attachments.current.linux is not None
    sites = attachments.current.linux.text.ftrace
    return sites.flags(sites.addresses)


def _used() -> str:
    """What the arena holds, in words."""
    arena = current_session().optimizer.arena
    assert arena is not None
    pools = ("code", arena.code), ("data", arena.data)
    found = [
        f"{name} {slot.address:#x}+{slot.size} {kind}"
        for name, pool in pools
        for slots in pool.slots
        for kind, some in (("used", slots.used), ("left", slots.dirty))
        for slot in some
    ]
    return f"{len(found)}: {', '.join(found[:DIFFERENCES])}"


def tell(what: object) -> None:
    gdb.write(MARK + json.dumps(what) + "\n")


class Keep(gdb.Command):
    """batch-keep FILE"""

    def __init__(self) -> None:
        super().__init__("batch-keep", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        current_session().optimizer.release_arena()
        Path(argument).write_bytes(pickle.dumps((hot_code.whole_text(), flags())))


class Diff(gdb.Command):
    """batch-diff FILE"""

    def __init__(self) -> None:
        super().__init__("batch-diff", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        (start, text), records = pickle.loads(Path(argument).read_bytes())
        is_free = current_session().optimizer.release_arena()
        spell = current_session().target.guest.text.spell
        places = [start + at for at in hot_code.differing(text, hot_code.whole_text()[1])]
        found = [] if is_free else [f"memory for detours is in use: {_used()}"]
        found += [f"text at {spell(place)}" for place in places[:DIFFERENCES]]
        now = flags()
        changed = [at for at in records if now.get(at) != records[at]]
        found += [f"flags of {spell(at)}: {records[at]:#x}, {now.get(at)}" for at in changed[:DIFFERENCES]]
        tell(found)


class State(gdb.Command):
    """batch-state"""

    def __init__(self) -> None:
        super().__init__("batch-state", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        views: list[ProbeView] = list(current_session().views())
        tell(
            {
                "hits": {view.number: view.hits for view in views},
                "disabled": [view.number for view in views if not view.enabled],
                "blocks": [len(block) for block in current_session().registry.blocks],
            }
        )


class HitsOf(gdb.Command):
    """hits-of NAME…"""

    def __init__(self) -> None:
        super().__init__("hits-of", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        views: list[ProbeView] = list(current_session().views())
        hits = {view.address: view.hits for view in views}
        found = {name: hits[hot_code.entry(hot_code.function(name).start)] for name in argument.split()}
        tell({**found, "probes": len(views)})


class CountedByKey(gdb.Command):
    """counted-by-key"""

    def __init__(self) -> None:
        super().__init__("counted-by-key", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        views = [view for view in current_session().reports() if view.objects]
        objects = [view.objects[0] for view in views]
        tell(
            {
                "functions": len(views),
                "hits": sum(view.hits for view in views),
                "by key": sum(row.words[0] for found in objects for row in found.rows),
                "lost": sum(found.lost or 0 for found in objects) + max(found.lost_together for found in objects),
            }
        )


for command in (Keep, Diff, State, HitsOf, CountedByKey):
    command()
