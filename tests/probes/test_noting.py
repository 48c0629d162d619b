"""A probe in the journal: what a guest wrote there itself is refused, what we write is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gdb_optprobe.detours.journal import Journal
from gdb_optprobe.detours.left import Bounds, Left
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.objects.journal import Damaged
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.noting import note, noted
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.spec import Kind, Spec

AT = 0xFFFF_FFFF_8100_0010
SOUND = {"at": AT, "location": "vfs_read"}
LEFT = Left(bounds=Bounds((AT - 0x10, AT + 0x1000), (), (0, 0)))
SHELL = "x\nshell touch x\n#"


@pytest.mark.parametrize("field", ["home", "name", "tier", "file", "location", "if", "entry if", "kind"])
@pytest.mark.parametrize("text", [SHELL, "\x1b]0;owned\x07", "\ud800", ["a"], 7, {"a": 1}])
def test_a_journal_of_the_guests_puts_no_line_end_into_a_field(field: str, text: object) -> None:
    with pytest.raises(Damaged) as wrong:
        noted(1, SOUND | {field: text}, LEFT)
    assert str(wrong.value).isprintable()


@pytest.mark.parametrize("field", ["do", "entry do"])
@pytest.mark.parametrize("actions", [[SHELL], ["count, stop"], [""], [7], 7, "\x1b", ["count", ["stop"]]])
def test_a_journal_of_the_guests_puts_no_line_end_into_an_action(field: str, actions: object) -> None:
    with pytest.raises(Damaged) as wrong:
        noted(1, SOUND | {field: actions}, LEFT)
    assert str(wrong.value).isprintable()


@pytest.mark.parametrize("location", ['*$_shell("touch x")', "*system(1)", "$x", "f do stop", "/bin/x:main"])
@pytest.mark.parametrize("more", [{}, {"glob": True}, {"waits": True}, {"pending": True}])
def test_a_journal_of_the_guests_has_no_expression_evaluated(location: str, more: dict[str, object]) -> None:
    with pytest.raises(Damaged):
        noted(1, SOUND | {"location": location} | more, LEFT)


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
        Spec("do_exit", name="from python\n", tier=""),
    ],
    ids=lambda spec: spec.location,
)
def test_what_is_noted_is_taken(spec: Spec) -> None:
    journal = Journal()
    note(Probe(3, spec, 0x1000 if spec.in_program else AT, Handler()), journal)
    ((_, value),) = journal.state.items()
    found: Any = noted(3, json.loads(json.dumps(value)), LEFT)
    assert (found.spec.kind, found.spec.tier, found.spec.file) == (spec.kind, spec.tier, spec.file)
    evaluated = spec.location.startswith(("*(", "read_write.c"))
    assert found.spec.location == (f"*{AT:#x}" if evaluated else spec.location)
    assert found.spec.location.isprintable() and found.spec.condition.isprintable()
