"""The file that `optprobe save` writes."""

from __future__ import annotations

from dataclasses import replace

from gdb_optprobe.commands.parse import parse_add
from gdb_optprobe.probes.saving import add, with_variables
from gdb_optprobe.probes.spec import Kind, Spec


def test_variables_that_probes_name() -> None:
    """GDB has a `$retval` of its own once a return has stopped the guest: here it is ours."""
    lines = ("# head", "optprobe add f -return if $retval == $wanted && $pid == 1")
    values = {"retval": 777, "wanted": 5}
    assert with_variables(lines, values.get) == (lines[0], "set $wanted = 5", lines[1])


def test_a_probe_on_a_program() -> None:
    does = {"condition": "$rdi == 1", "actions": ("count by $pid",)}
    spec = Spec("/bin/x:main+4", kind=Kind.UPROBE, file="/tmp/x", pid=3, **does)  # type: ignore[arg-type]
    words = "optprobe add /bin/x:main+4 -user -file /tmp/x -pid 3 if $rdi == 1 do count by $pid"
    assert add(spec, spec.location) == words
    assert replace(parse_add(words.removeprefix("optprobe add ")).specs()[0], condition_at=None, actions_at=()) == spec
