"""Sourced into GDB by tests: return probes on functions without a tracer's site.

    probe-untraced SEED N NAME…    on those of that name and on N others by chance; before each a plain one at its entry
    untraced-calls                 [name, tier, hits of the plain probe, calls of the return probe] of each; JSON
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from random import Random

import gdb

from gdb_optprobe.debugger.attach import attachments
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.symbols import FUNCTION_TYPES
from gdb_optprobe.probes import kretprobe
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Kind, Spec

ROOM = 64
"""Calls under way that each has room for."""


def untraced(session: Session, random: Random) -> Iterator[int]:
    """Entries of functions without a site whose return can be probed without a stop, in any order."""
    current = attachments.current
    assert current is not None and current.linux is not None
    linux = current.linux
    start, end = linux.kernel.range("_stext", "_etext")
    columns = linux.recovered.symbols.symbols
    named = zip(columns.addresses, columns.types, strict=True)
    starts = list(dict.fromkeys(at for at, kind in named if kind in FUNCTION_TYPES and start <= at < end))
    for at in random.sample(starts, len(starts)):
        entry = linux.entry(at)
        if linux.text.ftrace_sites(at, entry + kretprobe.NEAR):
            continue
        try:
            kretprobe.check_function(entry, session.target.guest)
            if session.optimizer.plan(entry, [Spec("", Kind.KRETPROBE)]).tier is Tier.OPTIMIZED:
                yield entry
        except OptprobeError:
            continue


class ProbeUntraced(gdb.Command):
    def __init__(self) -> None:
        super().__init__("probe-untraced", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        session = attachments.session()
        seed, count, *names = argument.split()
        found = [address for name in names for address in session.target.debugger.resolve(name, False)]
        found += islice(untraced(session, Random(int(seed))), int(count))
        for address in dict.fromkeys(found):
            session.add(Spec(f"*{address:#x}"))
            session.add(Spec(f"*{address:#x}", Kind.KRETPROBE, maxactive=ROOM))


class UntracedCalls(gdb.Command):
    def __init__(self) -> None:
        super().__init__("untraced-calls", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        views = attachments.session().views()
        plain = {view.address: view.hits for view in views if view.calls is None}
        calls = [(view.symbol, view.tier, plain[view.address], view.calls) for view in views if view.calls is not None]
        gdb.write(json.dumps([[*rest, asdict(each)] for *rest, each in calls]) + "\n")


ProbeUntraced()
UntracedCalls()
