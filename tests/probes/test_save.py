"""The file that `optprobe save` writes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from gdb_optprobe.commands.parse import parse_add
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.save import add_command, commands, comment, with_variables
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import SavedProbes


def test_variables_that_probes_name() -> None:
    """GDB has a `$retval` of its own once a return has stopped the guest: here it is ours."""
    lines = ("# head", "optprobe add f -return if $retval == $wanted && $pid == 1")
    values = {"retval": 777, "wanted": 5}
    assert with_variables(lines, values.get) == (lines[0], "set $wanted = 5", lines[1])


def test_a_probe_on_a_program() -> None:
    does = {"condition": "$rdi == 1", "actions": ("count by $pid",)}
    spec = Spec("/bin/x:main+4", kind=Kind.UPROBE, file="/tmp/x", pid=3, **does)  # type: ignore[arg-type]
    words = "optprobe add /bin/x:main+4 -user -file /tmp/x -pid 3 if $rdi == 1 do count by $pid"
    assert add_command(spec, spec.location) == words
    assert replace(parse_add(words.removeprefix("optprobe add ")).specs()[0], condition_at=None, actions_at=()) == spec


# what the guest says of itself ----------------------------------------------------------------------------------------

AT = 0xFFFF_FFFF_8100_0010
STARTS = 0xFFFF_FFFF_8100_0000


class Guest:
    """A guest whose symbol at AT has any name. resolved: what was looked up."""

    def __init__(self, symbol: str) -> None:
        self._symbol = symbol
        self.resolved: list[str] = []

    def symbol(self, address: int) -> str:
        return self._symbol

    def resolve(self, location: str, glob: bool) -> tuple[int, ...]:
        self.resolved.append(location)
        return (STARTS,) if location.startswith("*_stext") else (AT,)


def file_of(guest: Guest, *probes: Probe) -> SavedProbes:
    target = cast(Target, SimpleNamespace(guest=guest, debugger=guest))
    return commands(probes, Settings(), target, lambda spec, address: True, lambda probe: True)


def probe(number: int = 1, **typed: object) -> Probe:
    return Probe(number, Spec(**{"location": f"*{AT:#x}"} | typed), AT, Handler())  # type: ignore[arg-type]


def test_a_symbol_with_a_line_end_writes_no_line_of_a_saved_file() -> None:
    guest = Guest("vfs_read\nshell touch x\n#")
    lines = file_of(guest, probe()).lines
    assert lines[1:] == ("optprobe add *_stext+0x10",)
    assert guest.resolved == ["*_stext+0"]


@pytest.mark.parametrize("symbol", ['*$_shell("touch x")', "$x", "f -tier breakpoint", "f do stop", "", "a,b", "f\\"])
def test_a_symbol_that_is_an_expression_is_not_evaluated_to_save_a_probe(symbol: str) -> None:
    guest = Guest(symbol)
    assert file_of(guest, probe()).lines[1:] == ("optprobe add *_stext+0x10",)
    assert guest.resolved == ["*_stext+0"]


def test_a_symbol_that_is_a_name_is_saved() -> None:
    assert file_of(Guest("vfs_read+0x10"), probe()).lines[1:] == ("optprobe add vfs_read+0x10",)


@pytest.mark.parametrize(
    "typed",
    [
        {"name": "a\nshell touch x"},
        {"name": "a -user"},
        {"tier": "bogus\nshell touch x"},
        {"file": "/x\nshell touch x", "kind": Kind.UPROBE},
        {"condition": "1) do stop"},
        {"condition": "1 \\"},
        {"actions": ("count, stop",)},
        {"entry_condition": Fragment.whole("1 do stop"), "kind": Kind.KRETPROBE},
    ],
)
def test_a_field_that_cannot_be_written_makes_a_comment(typed: dict[str, object]) -> None:
    found = file_of(Guest("vfs_read+0x10"), probe(7, **typed), probe(8))
    _, why, other = found.lines
    assert why.startswith("# probe 7: ") and other == "optprobe add vfs_read+0x10"
    assert (found.count, found.left_out) == (1, (7,))
    assert all(line.isprintable() for line in found.lines)


def test_line_ends_and_controls_in_typed_text_are_written_as_c_writes_them() -> None:
    typed = probe(condition='$comm\n== "a\tb\x1b"', actions=('print("x\ny\\n")',))
    (line,) = file_of(Guest("vfs_read+0x10"), typed).lines[1:]
    assert line == r'optprobe add vfs_read+0x10 if $comm == "a\tb\033" do print("x\ny\n")'


def test_a_path_is_quoted_where_it_has_to_be() -> None:
    for path, word in {"/tmp/x": "/tmp/x", "/tmp/a b": '"/tmp/a b"', '/tmp/a "b"': "'/tmp/a \"b\"'"}.items():
        line = add_command(Spec("/bin/x:main", kind=Kind.UPROBE, file=path), "/bin/x:main")
        assert line == f"optprobe add /bin/x:main -user -file {word}"
        assert parse_add(line.removeprefix("optprobe add ")).specs()[0].file == path
    with pytest.raises(OptprobeError, match="cannot be quoted"):
        add_command(Spec("/bin/x:main", kind=Kind.UPROBE, file="/tmp/'\""), "/bin/x:main")


def test_a_comment_ends_at_its_line() -> None:
    assert comment("a\nshell touch x\\\\") == r"# a\nshell touch x"
