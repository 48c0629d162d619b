"""What a journal that an attacker wrote may say of a probe, and what a saved file may hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gdb_optprobe.commands.parse import parse_add
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.probes import fields
from gdb_optprobe.probes.save import add_command
from gdb_optprobe.probes.spec import Kind, Spec

SHELL = "vfs_read\nshell touch x\n#"
EVERYWHERE = (SHELL, "a\x1b]0;x\x07", "a\u202eb", "a\ud800", "a" * (fields.LONGEST + 1))
CHECKS: tuple[Callable[[str], str], ...] = (
    fields.function,
    fields.home,
    fields.place,
    fields.name,
    fields.tier,
    fields.file,
    fields.condition,
    fields.action,
    lambda text: fields.place(text, program=True),
    lambda text: fields.place(text, glob=True),
)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("text", EVERYWHERE)
def test_line_ends_and_controls_stand_in_no_field(check: Callable[[str], str], text: str) -> None:
    with pytest.raises(fields.NotAField) as wrong:
        check(text)
    assert str(wrong.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        '*$_shell("touch x")',
        "*(long)system(1)",
        "*$pc",
        "*a=1",
        '$_shell("touch x")',
        "vfs_read do stop",
        "vfs_read -user",
        "file.c:12 ; x",
        "vfs_read, vfs_write",
        "",
        "*",
        "vfs_read+$x",
    ],
)
def test_a_location_of_a_journal_evaluates_nothing(text: str) -> None:
    for glob in (False, True):
        with pytest.raises(fields.NotAField):
            fields.place(text, glob=glob)
    assert fields.kept(text, 0xFFFF_FFFF_8100_0000) == "*0xffffffff81000000"


@pytest.mark.parametrize(
    "text",
    [
        "vfs_read",
        "vfs_read+0x5",
        "vfs_read + 5",
        "e1000:e1000_clean",
        "nf_x:f.cold+1",
        "*0xffffffff81000000",
        "*vfs_read+5",
        "*(vfs_read + 5)",
        "*_stext+0x1234",
    ],
)
def test_places_are_locations(text: str) -> None:
    assert fields.place(text) == text == fields.kept(text, 0)


def test_globs_and_programs() -> None:
    assert fields.place("vfs_[rw]*", glob=True) == "vfs_[rw]*"
    assert fields.place("ext4:ext4_*", glob=True) == "ext4:ext4_*"
    gos = ("/bin/d:net/http.HandlerFunc.ServeHTTP", "/a:b/c.(*T[x,y]).F+4")
    for text in ("/bin/busybox:0x7b6f0", "/tmp/a, b:main+4", "/lib/x (1).so:f", *gos):
        assert fields.place(text, program=True) == text
    more = ("/bin/x:main -pid 3", "/bin/x:main if 1", "/a:b,/c:d", "/a:b ")
    for text in ("bin/x:main", "/bin/x", "/a -- b:c", "/bin/(x:y", *more):
        with pytest.raises(fields.NotAField):
            fields.place(text, program=True)


@pytest.mark.parametrize("text", ["a do stop", "a) if (b", "(a", '"a', "do", " "])
def test_a_condition_ends_at_its_end(text: str) -> None:
    with pytest.raises(fields.NotAField):
        fields.condition(text)


@pytest.mark.parametrize("text", ["count, stop", "count if 1", "print(1", "", " "])
def test_an_action_is_one(text: str) -> None:
    with pytest.raises(fields.NotAField):
        fields.action(text)


@pytest.mark.parametrize("value", [True, -7, 1 << 80, "1", 1.5, None, []])
def test_numbers_are_whole_and_in_range(value: object) -> None:
    with pytest.raises(fields.NotAField):
        fields.number(value, 1 << 64)


def test_typed_text_becomes_one_line_that_means_the_same() -> None:
    assert fields.tidy(' a\t== \n"x\ty\x1b" ') == r'a ==  "x\ty\033"'
    assert fields.tidy(r'$comm == "a\"b"') == r'$comm == "a\"b"'


PARTS = ["", "a", "a b", "if", "-pid 3", '"', "x)", "\n", "do stop", "(a, b)", "count", "sum(a)", "\\", "-- ", "*$x"]
PLACES = [*PARTS, "/b.(*T).F", ":c", ",/a:b"]
TEXTS = some.sampled_from(PARTS)
PLACED = some.sampled_from(PLACES)


@given(some.builds("".join, some.lists(PLACED, max_size=3)), TEXTS, TEXTS, TEXTS, some.sampled_from(Kind))
def test_what_passes_is_parsed_to_the_same_probe(location: str, name: str, when: str, does: str, kind: Kind) -> None:
    """Whatever an attacker puts together, a command that is written makes the probe that it was written for."""
    program = kind in (Kind.UPROBE, Kind.URETPROBE)
    try:
        spec = Spec(
            fields.place(f"/{location}:a" if program else location or "f", program),
            kind=kind,
            condition=fields.condition(when),
            actions=(fields.action(does),),
            name=fields.name(name),
            file=fields.file(name) if program else "",
            entry_condition=Fragment.whole(fields.condition(when)) if spec_returns(kind) and when else None,
        )
        fields.checked(spec, spec.location)
        line = add_command(spec, spec.location)
    except (fields.NotAField, OptprobeError):
        return
    parsed = parse_add(line.removeprefix("optprobe add "))
    if does.split("(")[0] not in ("count", "sum"):
        return  # no action of that name
    (again,) = parsed.specs()
    seen = [(each.location, each.kind, each.condition, each.actions, each.name, each.file) for each in (spec, again)]
    assert seen[0] == seen[1]


def spec_returns(kind: Kind) -> bool:
    return kind in (Kind.KRETPROBE, Kind.URETPROBE)


QUOTED = ["/opt/it's/bin:main", "/opt/x -b/bin:main"]
TYPED = [*PLACES, *QUOTED, "/usr/bin/d:net/http.F", "bin/x:main", "f.c:3", "\x1b", "a" * 70000]


@given(some.lists(some.sampled_from(TYPED) | some.text(max_size=6), min_size=1, max_size=4), some.booleans())
def test_whatever_location_is_accepted_the_journal_of_it_is_read(parts: list[str], user: bool) -> None:
    text = "".join(parts)
    specs = [Spec(text, kind=Kind.UPROBE if user else Kind.KPROBE)]
    for before in ("-user ", "-user -- ") if user else ("", "-- "):
        try:
            specs += parse_add(before + text).specs()
        except OptprobeError:
            continue
    for spec in specs:
        kept = fields.kept(spec.location, 0x4A2B0, spec.in_program, spec.glob)
        assert fields.place(kept, spec.in_program, spec.glob) == kept
