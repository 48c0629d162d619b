from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.commands.parse import hinting_at_options, is_glob, parse_add, parse_break, parse_dprintf
from gdb_optprobe.errors import OptprobeError


def parts(text: str) -> tuple[str, str, list[str]]:
    """Location, condition, actions."""
    add = parse_add(text)
    condition = add.clause.condition.text if add.clause.condition else ""
    return add.place.locations[0].text, condition, [action.text for action in add.clause.actions]


def refused(text: str) -> tuple[str, str]:
    """The message of the error, and what its caret underlines."""
    with pytest.raises(OptprobeError) as caught:
        parse_add(text).specs()
    message, *shown = caught.value.message.split("\n")
    if not shown:
        return message, ""
    line, marks = shown
    return message, "".join(character for character, mark in zip(line, marks, strict=False) if mark != " ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vfs_read", ("vfs_read", "", [])),
        ("vfs_read do count", ("vfs_read", "", ["count"])),
        ("vfs_read if count > 4096", ("vfs_read", "count > 4096", [])),
        (
            "vfs_read if count > 4096 do count by $comm, hist(count)",
            ("vfs_read", "count > 4096", ["count by $comm", "hist(count)"]),
        ),
        ("vfs_read if(count)do count", ("vfs_read", "(count)", ["count"])),
        ('f do count by ($comm, $cpu), print("a, %d", x)', ("f", "", ["count by ($comm, $cpu)", 'print("a, %d", x)'])),
        ('f do print("if do")', ("f", "", ['print("if do")'])),
        ("fs/read_write.c:450 if x", ("fs/read_write.c:450", "x", [])),
        ("'if' do count", ("'if'", "", ["count"])),
        ("*$rip - 4", ("*$rip - 4", "", [])),
        ("*$rip -4", ("*$rip -4", "", [])),
        ("*(long)(a + b) if c", ("*(long)(a + b)", "c", [])),
        ("f if entry == 3 do count", ("f", "entry == 3", ["count"])),
        ("f if x == entry do count", ("f", "x == entry", ["count"])),
        ("f if x -json", ("f", "x -json", [])),
        ("f if done && iffy", ("f", "done && iffy", [])),
        ("f if p->dot do count", ("f", "p->dot", ["count"])),
        ("do_exit", ("do_exit", "", [])),
        ("-- -function f -line 3 if x", ("-function f -line 3", "x", [])),
        ("f -glob -- do count", ("f", "", ["count"])),
    ],
)
def test_parts(text: str, expected: tuple[str, str, list[str]]) -> None:
    assert parts(text) == expected


@pytest.mark.parametrize("text", ["-tier boosted -name n f", "f -name n -tier boosted", "-name n f -tier boosted if x"])
def test_options_stand_before_or_after_the_location(text: str) -> None:
    place = parse_add(text).place
    assert (place.locations[0].text, place.tier, place.value("-name")) == ("f", "boosted", "n")


@pytest.mark.parametrize("text", ["f -json", "-json f", "f do count -json", "f do hist(x) -json", "f -json do count"])
def test_json_stands_anywhere_outside_an_expression(text: str) -> None:
    add = parse_add(text)
    assert add.json
    assert not any("json" in action.text for action in add.clause.actions)


@pytest.mark.parametrize("text", ["f if x -json", "f do count by x -json", "f do print(x -json)"])
def test_json_inside_an_expression_is_a_variable(text: str) -> None:
    assert not parse_add(text).json


def test_entry_of_a_return_probe() -> None:
    add = parse_add("f -return entry if a do print(b), count if c do latency, hist($retval)")
    assert add.entry is not None and add.entry.condition is not None and add.clause.condition is not None
    assert (add.entry.condition.text, [action.text for action in add.entry.actions]) == ("a", ["print(b)", "count"])
    assert add.clause.condition.text == "c"
    assert [action.text for action in add.clause.actions] == ["latency", "hist($retval)"]


@pytest.mark.parametrize("text", ["f do stack", "f do count, print(x)", "f -return entry do record(x) do count"])
def test_a_ring_overwrites_where_there_is_one(text: str) -> None:
    place, rest = text[:1], text[1:]
    assert not parse_add(text).specs()[0].overwrite
    assert parse_add(f"{place} -overwrite{rest}").specs()[0].overwrite


def test_entry_alone_belongs_to_the_entry() -> None:
    add = parse_add("f -return entry do print(x)")
    assert add.entry is not None and [action.text for action in add.entry.actions] == ["print(x)"]
    assert add.clause.actions == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("no location", "")),
        ("if x", ("no location before 'if'", "if")),
        ("-json", ("no location", "")),
        ("*(1", ("'(' is never closed", "(")),
        ("f)", ("')' closes nothing", ")")),
        ('f do print("a', ('" is never closed', '"')),
        ("f -pendign", ("no option -pendign", "-pendign")),
        ("f -tier", ("-tier needs a value", "-tier")),
        ("f -tier best", ("no tier named 'best'", "best")),
        ("f -tier boosted -tier boosted", ("-tier is given twice", "-tier")),
        ("f -name 1", ("'1' cannot be a name", "1")),
        ("f -maxactive x -return", ("-maxactive takes a number from 1 on", "x")),
        ("f -maxactive 0 -return", ("-maxactive takes a number from 1 on", "0")),
        ("f -pending g", ("'g' is neither an option nor part of the location", "g")),
        ("f if", ("an expression is missing after 'if'", "if")),
        ("f if do count", ("an expression is missing after 'if'", "if")),
        ("f do", ("an action is missing after 'do'", "do")),
        ("f do count,,count", ("an action is missing here", ",")),
        ('f -name "a b"', ("'a b' cannot be a name", '"a b"')),
        ('""', ("the location is empty", '""')),
        ("'' do count", ("the location is empty", "''")),
        ("f do record(x) -overwrite", ("'-overwrite' comes too late", "-overwrite")),
        ("f do count -name reads", ("'-name' comes too late", "-name")),
        ("f do count, stack -pending", ("'-pending' comes too late", "-pending")),
        ("f do hist(x) by y -name reads", ("'-name' comes too late", "-name")),
        ("f if x > 1 -tier boosted", ("'-tier' comes too late", "-tier")),
        ("f if x > 1 -teir boosted", ("no option -teir", "-teir")),
        ("f do sum(x) by y -nmae reads", ("no option -nmae", "-nmae")),
        ("f -return entry do save a = b -maxactive 3 do count", ("'-maxactive' comes too late", "-maxactive")),
        ("f do { @ = count(); } -name reads", ("'-name' comes too late", "-name")),
        ("f do count if x", ("'if' comes too late", "if")),
        ("f if a if b", ("a second 'if'", "if")),
        ("f do count do count", ("a second 'do'", "do")),
        ("f entry do count", ("'entry' needs -return", "entry")),
        ("f -maxactive 3", ("-maxactive needs -return", "-maxactive")),
        ("f -overwrite do count", ("-overwrite needs record, print or stack", "-overwrite")),
        ("f -return -overwrite entry do max(x)", ("-overwrite needs record, print or stack", "-overwrite")),
        ("f -pid 3", ("-pid needs -user", "-pid")),
        ("f -file x", ("-file needs -user", "-file")),
        ("f do conut", ("no action named 'conut'", "conut")),
        ("f do latency", ("latency needs -return", "latency")),
        ("f\tdo\tconut", ("no action named 'conut'", "conut")),
    ],
)
def test_errors_point(text: str, expected: tuple[str, str]) -> None:
    assert refused(text) == expected


@pytest.mark.parametrize("text", ["f if x -sizeof y", "f if x -y / z", "f do sum(x) by y -z", "f do { @ = x -y z; }"])
def test_differences_are_no_options(text: str) -> None:
    parse_add(text).specs()


@pytest.mark.parametrize("text", ["f -name _read", "f -name __f.1-a"])
def test_names_as_the_hint_has_them(text: str) -> None:
    assert parse_add(text).specs()[0].name == text.split()[-1]
    with pytest.raises(OptprobeError) as caught:
        parse_add("f -name 1").specs()
    assert "a letter or '_'" in caught.value.hint


BEFORE = "is a subtraction here: an option comes before if and do"


@pytest.mark.parametrize(
    ("text", "name", "hint", "expected"),
    [
        ("f if x > 1 -overwrite", "overwrite", "f has: x", f"-overwrite {BEFORE}"),
        ("f if x > 1 -foo", "foo", "f has: x", f"f has: x; -foo {BEFORE}"),
        ("f if x > 1 -foo", "foo", "", f"-foo {BEFORE}"),
        ("f -return entry if x > 1 -pending do count", "pending", "", f"-pending {BEFORE}"),
        ("f do sum(x) by y -glob", "glob", "", f"-glob {BEFORE}"),
        ("f if x > 1 - overwrite", "overwrite", "f has: x", "f has: x"),
        ("f if x > 1 -foo", "x", "f has: y", "f has: y"),
    ],
)
def test_a_name_behind_a_dash_may_have_been_an_option(text: str, name: str, hint: str, expected: str) -> None:
    with pytest.raises(OptprobeError) as caught, hinting_at_options(parse_add(text)):
        raise OptprobeError(f"no parameter or symbol named '{name}'", hint)
    assert caught.value.hint == expected


def test_spec() -> None:
    spec = parse_add("vfs_* -tier optimized -name reads -pending do count").specs()[0]
    assert (spec.location, spec.tier, spec.name, spec.pending, spec.glob) == ("vfs_*", "optimized", "reads", True, True)
    assert (spec.actions, spec.condition) == (("count",), "")
    assert parse_add("vfs_read").specs()[0].actions == ("count",)
    assert parse_add("vfs_read").specs()[0].is_plain_count and not parse_add(
        "vfs_read do hist(count)"
    ).specs()[0].is_plain_count


def test_a_spec_knows_where_its_parts_were_typed() -> None:
    spec = parse_add("vfs_read if count > 1 do sum(count) by $pid, max(count)").specs()[0]
    assert spec.condition_part is not None
    assert (spec.condition_part.text, spec.condition_part.line[spec.condition_part.start]) == ("count > 1", "c")
    assert [part.text for part in spec.action_parts] == ["sum(count) by $pid", "max(count)"]


@pytest.mark.parametrize("location", ["vfs_*", "vfs_rea?", "vfs_[rw]*"])
def test_globs(location: str) -> None:
    assert is_glob(location)


@pytest.mark.parametrize("location", ["*0xff", "*&a[2]", "vfs_read", "vfs_read+4", "'a*b'", "*$rip * 2"])
def test_no_globs(location: str) -> None:
    assert not is_glob(location)


def test_glob_by_option() -> None:
    assert parse_add("-glob vfs_read").place.glob


def test_break_is_add_do_stop() -> None:
    add = parse_break("kfree -json if object == $obj")
    assert add.clause.condition is not None
    assert (add.place.locations[0].text, add.clause.condition.text, add.json) == ("kfree", "object == $obj", True)
    assert [action.text for action in add.clause.actions] == ["stop"]
    done = parse_break("kfree do count, print(\"%d\", object)").clause.actions
    assert [action.text for action in done] == ["count", 'print("%d", object)', "stop"]


def test_dprintf_is_add_do_print() -> None:
    add = parse_dprintf('vfs_read,"%d, %s",count, f(a, b)')
    assert add.place.locations[0].text == "vfs_read"
    assert [action.text for action in add.clause.actions] == ['print("%d, %s", count, f(a, b))']


@pytest.mark.parametrize("text", ["vfs_read", "vfs_read,count", 'vfs_read,"%d",'])
def test_dprintf_refuses(text: str) -> None:
    with pytest.raises(OptprobeError, match="is missing"):
        parse_dprintf(text)


def test_what_add_and_explain_take() -> None:
    add = parse_add("-json *0xff + 3")
    assert (add.place.locations[0].text, add.json) == ("*0xff + 3", True)
    program = parse_add("-user /bin/busybox:main -file /tmp/busybox").specs()[0]
    assert (program.in_program, program.location, program.file) == (True, "/bin/busybox:main", "/tmp/busybox")
    with pytest.raises(OptprobeError, match="-file needs -user"):
        parse_add("vfs_read -file /tmp/busybox").specs()[0]


@pytest.mark.parametrize(
    ("text", "locations"),
    [
        ("vfs_read,vfs_write", ["vfs_read", "vfs_write"]),
        ("vfs_read , vfs_write do count", ["vfs_read", "vfs_write"]),
        ("-name n vfs_*,ksys_read+4,*0xff -tier boosted if a", ["vfs_*", "ksys_read+4", "*0xff"]),
        ("*f(a, b)[0],g", ["*f(a, b)[0]", "g"]),
        ("'f(int, int)',g", ["'f(int, int)'", "g"]),
        ("-user /bin/a:f,/bin/b:g+4", ["/bin/a:f", "/bin/b:g+4"]),
        ("-user /tmp/a,b:f,/tmp/c:g", ["/tmp/a,b:f", "/tmp/c:g"]),
    ],
)
def test_commas_separate_locations(text: str, locations: list[str]) -> None:
    specs = parse_add(text).specs()
    assert [spec.location for spec in specs] == locations
    assert len({replace(spec, location="", glob=False) for spec in specs}) == 1
    assert [spec.location for spec in parse_break(text).specs()] == locations


def test_each_location_is_a_glob_or_not() -> None:
    add = parse_add("vfs_read,vfs_w*")
    assert [spec.glob for spec in add.specs()] == [False, True] and add.place.glob
    assert [spec.glob for spec in parse_add("-glob vfs_read,vfs_write").specs()] == [True, True]


@pytest.mark.parametrize("text", ["vfs_read,", ",vfs_read", "f,,g", "f, if a", "f, do count"])
def test_a_comma_needs_a_location_on_either_side(text: str) -> None:
    with pytest.raises(OptprobeError, match="a location is missing here"):
        parse_add(text)


def test_explain_takes_several_locations() -> None:
    assert [spec.location for spec in parse_add("vfs_read,*0xff -json").specs()] == ["vfs_read", "*0xff"]


def test_dprintf_keeps_its_own_commas() -> None:
    (spec,) = parse_dprintf('vfs_read,"%d %d",count, *pos').specs()
    assert (spec.location, spec.actions) == ("vfs_read", ('print("%d %d", count, *pos)',))


@pytest.mark.parametrize(
    "text", ["f if x -pid > 1", "f do sum(x -name)", "f do max(x) by x -pid", 'f do print("-name x")', "f if x -tier"]
)
def test_a_difference_is_no_option(text: str) -> None:
    parse_add(text).specs()
