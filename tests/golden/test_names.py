"""Words that programs read or write: kinds, tiers, actions, options, settings, facilities, codes of refusals.

One that is added gets a line in names.txt; none may go, or be spelled in another way.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.commands import graph_arguments, options, recipe_arguments
from gdb_optprobe.commands.parse import ADD_OPTIONS
from gdb_optprobe.detours.refusal import Refusal
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.exports.formats import FORMATS
from gdb_optprobe.guest.scope import OURS
from gdb_optprobe.handlers.clauses import ACTIONS
from gdb_optprobe.probes.collector import Trigger
from gdb_optprobe.probes.facilities import NAMES
from gdb_optprobe.probes.settings import ON_EXIT, SIZES, Settings, sizes_of
from gdb_optprobe.probes.spec import Kind
from tests.golden import golden

OPTIONS = {
    "add": ADD_OPTIONS,
    "list": options.LIST_OPTIONS,
    "report": options.REPORT_OPTIONS,
    "run": options.RUN_OPTIONS,
    "commit": options.COMMIT_OPTIONS,
    "doctor": options.DOCTOR_OPTIONS,
    "recover": options.RECOVER_OPTIONS,
    "offcpu": recipe_arguments.OFFCPU_OPTIONS,
    "profile": recipe_arguments.PROFILE_OPTIONS,
    "latency": recipe_arguments.LATENCY_OPTIONS,
    "calls": recipe_arguments.CALLS_OPTIONS,
    "graph": graph_arguments.OPTIONS,
}


def names() -> Iterator[str]:
    for kind in Kind:
        yield f"kind {kind.value}"
    for tier in Tier:
        yield f"tier {tier.value}"
    for name in ACTIONS:
        yield f"action {name}"
    for name in sorted(OURS):
        yield f"variable ${name}"
    for command, known in OPTIONS.items():
        for name, value in known.items():
            yield f"option {command} {name} {value}".rstrip()
    for name in FORMATS:
        yield f"export {name}"
    for name in ON_EXIT:
        yield f"on-exit {name}"
    for name, size in SIZES.items():
        yield f"size {name}: {size.default}, {size.least} to {size.most}"
    for name in sizes_of(Settings()):
        yield f"size in the journal {name}"
    for why in Trigger:
        yield f"run of the collector {why.value}"
    for name in NAMES:
        yield f"facility {name}"
    for refusal in Refusal:
        yield f"refusal {refusal.because().code}"


def test_names() -> None:
    assert [*names()] == golden("names.txt").splitlines()
