"""A probe in the journal: what a guest wrote there itself is refused, what we write is taken."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gdb_optprobe.detours.arena_contents import ArenaContents, Bounds
from gdb_optprobe.detours.journal import Journal
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.probes import fields
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.journal_records import read_probe, write_probe
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.spec import Kind, Spec

AT = 0xFFFF_FFFF_8100_0010
SOUND = {"at": AT, "location": "vfs_read"}
LEFT = ArenaContents(bounds=Bounds((AT - 0x10, AT + 0x1000), (), (0, 0)))
SHELL = "x\nshell touch x\n#"


@pytest.mark.parametrize("field", ["home", "name", "tier", "file", "location", "if", "entry if", "kind"])
@pytest.mark.parametrize("text", [SHELL, "\x1b]0;owned\x07", "\ud800", ["a"], 7, {"a": 1}])
def test_a_journal_of_the_guests_puts_no_line_end_into_a_field(field: str, text: object) -> None:
    with pytest.raises(Damaged) as wrong:
        read_probe(1, SOUND | {field: text}, LEFT)
    assert str(wrong.value).isprintable()


@pytest.mark.parametrize("field", ["do", "entry do"])
@pytest.mark.parametrize("actions", [[SHELL], ["count, stop"], [""], [7], 7, "\x1b", ["count", ["stop"]]])
def test_a_journal_of_the_guests_puts_no_line_end_into_an_action(field: str, actions: object) -> None:
    with pytest.raises(Damaged) as wrong:
        read_probe(1, SOUND | {field: actions}, LEFT)
    assert str(wrong.value).isprintable()


@pytest.mark.parametrize("location", ['*$_shell("touch x")', "*system(1)", "$x", "f do stop", "/bin/x:main"])
@pytest.mark.parametrize("more", [{}, {"glob": True}, {"waits": True}, {"pending": True}])
def test_a_journal_of_the_guests_has_no_expression_evaluated(location: str, more: dict[str, object]) -> None:
    with pytest.raises(Damaged):
        read_probe(1, SOUND | {"location": location} | more, LEFT)


@pytest.mark.parametrize(
    "spec",
    [
        Spec("vfs_read"),
        Spec("*(long)&vfs_read+5", tier="breakpoint", name="five"),
        Spec("read_write.c:450", condition='$comm\n== "a\tb\x1b"', actions=("hist(count)", 'print("x\ny")')),
        Spec("vfs_*", glob=True),
        Spec("e1000:e1000_clean", pending=True),
        Spec("/tmp/a b:main+4", kind=Kind.UPROBE, file="/tmp/x y", pid=3),
        Spec("ksys_read", kind=Kind.KRETPROBE, entry_condition=Fragment.whole("fd > 2"), maxactive=9),
        Spec("vfs_open", actions=("stack",), overwrite=True),
        Spec("do_exit", name="from python\n", tier=""),
    ],
    ids=lambda spec: spec.location,
)
def test_what_is_noted_is_taken(spec: Spec) -> None:
    journal = Journal()
    write_probe(Probe(3, spec, 0x1000 if spec.in_program else AT, Handler()), journal)
    ((_, value),) = journal.state.items()
    found: Any = read_probe(3, json.loads(json.dumps(value)), LEFT)
    assert (found.spec.kind, found.spec.tier, found.spec.file) == (spec.kind, spec.tier, spec.file)
    assert found.spec.overwrite == spec.overwrite
    evaluated = spec.location.startswith(("*(", "read_write.c"))
    assert found.spec.location == (f"*{AT:#x}" if evaluated else spec.location)
    assert found.spec.location.isprintable() and found.spec.condition.isprintable()


@pytest.mark.parametrize("path", ["/opt/it's/bin:main", "/opt/x -b/bin:main", "bin/x:main", "/a\u202eb:main"])
def test_a_program_that_no_journal_can_name_is_lost_alone(path: str) -> None:
    journal = Journal()
    write_probe(Probe(3, Spec(path, kind=Kind.UPROBE), 0x4A2B0, Handler()), journal)
    ((_, value),) = journal.state.items()
    assert read_probe(3, json.loads(json.dumps(value)), LEFT).lost


def test_a_probe_on_a_function_of_gos_is_taken() -> None:
    journal, location = Journal(), "/usr/bin/dockerd:net/http.HandlerFunc.ServeHTTP"
    write_probe(Probe(3, Spec(location, kind=Kind.UPROBE), 0x4A2B0, Handler()), journal)
    ((_, value),) = journal.state.items()
    found = read_probe(3, json.loads(json.dumps(value)), LEFT)
    assert found.spec.location == location and not found.lost


@pytest.mark.parametrize(("words", "actions", "lost"), [(5010, 20, False), (70000, 1, True), (1, 1100, True)])
def test_what_is_seen_or_done_without_end_loses_no_other_probe(words: int, actions: int, lost: bool) -> None:
    """Five linear histograms have some 5,010 words."""
    journal = Journal()
    probe = Probe(3, Spec("vfs_read", actions=("count",) * actions, condition="x" * 9), AT, Handler())
    probe.seen = replace(probe.seen, head=(1,) * words)
    write_probe(probe, journal)
    ((_, value),) = journal.state.items()
    found = read_probe(3, json.loads(json.dumps(value)), LEFT)
    assert (found.lost, found.number, found.address) == (lost, 3, AT)
    assert lost or len(found.seen) == words


def test_a_condition_too_long_for_a_journal_loses_its_probe_alone() -> None:
    journal = Journal()
    write_probe(Probe(3, Spec("vfs_read", condition=f"pos{' ' * fields.LONGEST}> 1"), AT, Handler()), journal)
    ((_, value),) = journal.state.items()
    assert read_probe(3, json.loads(json.dumps(value)), LEFT).lost
