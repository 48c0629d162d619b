"""The commands in a real GDB, their session a fake: what is typed, printed, and the status at the end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.commands.in_gdb import ROOT, gdb, shared_gdb


def test_add_and_list() -> None:
    ended = shared_gdb("optprobe add vfs_read", "optprobe list", "output $optprobe")
    assert ended.status == 0, ended.err
    first, titles, row, last = ended.out.splitlines()
    assert first == ("Probe 1 at 0xffffffff8134cc50 <vfs_read>: optimized, 5 bytes patched; a hit costs 3 instructions")
    assert titles.split() == ["Num", "Tier", "Hits", "Address", "What"]
    assert row.split() == ["1", "optimized", "1000", "0xffffffff8134cc50", "vfs_read", "[FTRACE]"]
    assert last == "1"


def test_a_table_has_the_width_that_gdb_has() -> None:
    ended = gdb("set width 60", "optprobe add vfs_read", "optprobe report", "set width 0", "optprobe report 1")
    assert "Dropped" not in ended.out.splitlines()[1] and ended.out.count("Dropped") == 1, ended.out


def test_info_is_list() -> None:
    ended = shared_gdb("optprobe add vfs_read -name reads", "info optprobe reads -json")
    (listed,) = json.loads(ended.out.splitlines()[-1])
    assert listed["number"] == 1


def test_sourcing_twice_is_harmless() -> None:
    ended = gdb("set optprobe boost off", f"source {ROOT}/scripts/optprobe.py", "show optprobe boost")
    assert (ended.status, ended.out) == (0, "optprobe boost is off.\n")


COMPILED = (
    "python import sys; own = {c for m in [*sys.modules.values()] for c in vars(m).values() if isinstance(c, type) and "
    "c.__module__.startswith('gdb_optprobe') and '__dataclass_fields__' in c.__dict__}; "
    "print(len(own), sum(c.__init__.__code__.co_filename == '<string>' for c in own))"
)
"""`dataclass` compiles methods of a text that has no file."""


def test_a_start_compiles_few_methods_of_dataclasses() -> None:
    """All of them would be half of the start's work."""
    classes, compiled = map(int, gdb(COMPILED).out.split())
    assert classes > 500 and compiled < classes // 5


ERRORS = [
    ("optprobe nosuch", "no subcommand 'nosuch'"),
    ("optprobe add nosuch", "no symbol 'nosuch'"),
    ("optprobe add", "no location"),
    ("optprobe add *(1", "'(' is never closed"),
    ("optprobe add f if", "an expression is missing after 'if'"),
    ("optprobe add f do latency", "latency needs -return"),
    ("optprobe add bug", "internal error: KeyError: 'bug'; set python print-stack full shows where"),
    ("optprobe show", "show needs the number of a probe"),
    ("optprobe show 7", "no probe 7"),
    ("optprobe save", "no file to save to"),
    ("optprobe save /nowhere", "there are no probes to save"),
    ("optprobe list nosuch", "no probe named 'nosuch'"),
    ("optprobe expect 1 == 2", "expected 1 == 2"),
    ("optprobe expect $optprobe_hits(7) == 1", "no probe 7"),
    ("optprobe expect 1 +", "A syntax error in expression"),
    ("optprobe run 3", "'3' is not expected here"),
    ("set optprobe nosuch 1", "no setting named 'nosuch'"),
    ("set optprobe arena here", "not a place for detours: here"),
]


def test_every_failure_is_one_clear_line() -> None:
    ended = gdb("set optprobe exit-on-error off", *(command for command, _ in ERRORS), "echo reached\\n")
    errors = [line for line in ended.err.splitlines() if not line.startswith(("    ", "HINT: "))]
    assert len(errors) == len(ERRORS), ended.err
    for line, (_, error) in zip(errors, ERRORS, strict=True):
        assert line.startswith(f"optprobe: {error}")
    assert (ended.status, ended.out) == (0, "reached\n")


@pytest.mark.parametrize(("command", "error"), ERRORS[::5])
def test_the_first_failure_ends_a_batch(command: str, error: str) -> None:
    ended = gdb(command, "echo reached\\n")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"optprobe: {error}")


def test_the_caret_stands_below_what_is_wrong() -> None:
    ended = gdb("optprobe add vfs_read do conut")
    assert ended.err.splitlines() == [
        "optprobe: no action named 'conut'",
        "    vfs_read do conut",
        "                ^~~~~",
        "HINT: did you mean 'count'?",
    ]


def test_a_misplaced_option_s_place_is_in_the_hint() -> None:
    ended = gdb("optprobe add vfs_read if x > 1 -overwrite")
    assert ended.err.splitlines() == [
        "optprobe: no symbol named 'overwrite'",
        "HINT: -overwrite is a subtraction here: an option comes before if and do",
    ]


def test_exit_on_error_off_goes_on() -> None:
    ended = gdb("set optprobe exit-on-error off", "optprobe nosuch", "echo reached\\n")
    assert (ended.status, ended.out) == (0, "reached\n")


def test_a_session_at_a_prompt_goes_on() -> None:
    ended = gdb(options=(), stdin="optprobe nosuch\nshow optprobe exit-on-error\nshow optprobe on-exit\n")
    assert ended.status == 0
    assert ended.err.startswith("optprobe: no subcommand 'nosuch'")
    assert "exit-on-error is off." in ended.out
    assert "on-exit is ask." in ended.out


def test_an_argument_that_reads_batch_is_no_batch_mode() -> None:
    ended = gdb("show optprobe exit-on-error", options=("-d", "-batch"), stdin="")
    assert "exit-on-error is off." in ended.out


def test_leaving_on_error_runs_the_handlers_of_gdb_exiting() -> None:
    watch = "python gdb.events.gdb_exiting.connect(lambda event: print('leaving with', event.exit_code))"
    ended = gdb(watch, "optprobe nosuch")
    assert (ended.status, ended.out) == (1, "leaving with 1\n")


def test_a_failure_in_a_sourced_script_ends_gdb(tmp_path: Path) -> None:
    script = tmp_path / "script.gdb"
    script.write_text("optprobe nosuch\necho reached\\n\n")
    ended = gdb(f"source {script}", "echo reached\\n")
    assert (ended.status, ended.out) == (1, "")


def test_expect_says_what_it_found() -> None:
    ended = gdb("optprobe add vfs_read", "optprobe expect $optprobe_hits($optprobe) == 999")
    assert "expected $optprobe_hits($optprobe) == 999, but $optprobe_hits($optprobe) is 1000" in ended.err
    assert gdb("optprobe add vfs_read", "optprobe expect $optprobe_hits(1) == 1000").status == 0


def test_expressions_have_what_actions_gathered() -> None:
    found = {
        '$optprobe_value(1, "count by $comm", "dd")': 7,
        '$optprobe_value(1, "count", "cat")': 3,
        '$optprobe_value(1, "count by $comm", "init")': 0,
        '$optprobe_value(1, "sum", "dd", 12)': 512,
        '$optprobe_value(1, "hist")': 100,
        '$optprobe_quantile(1, "hist", 50)': 63,
        '$optprobe_quantile(1, "hist(count)", 99.5)': 127,
    }
    ended = shared_gdb("optprobe add gathers", *(f"print {typed}" for typed in found))
    printed = [line.partition(" = ")[2] for line in ended.out.splitlines() if line[0] == "$"]
    assert printed == [str(value) for value in found.values()]
    failed = gdb("optprobe add gathers", 'optprobe expect $optprobe_value(1, "count", "dd") > 9')
    assert '"dd") > 9, but $optprobe_value(1, "count", "dd") is 7' in failed.err


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ('$optprobe_value(1, "max")', "'max(count)' of probe 1 has no value yet"),
        ('$optprobe_value(1, "min")', "none of the actions of probe 1 begin with 'min'"),
        ('$optprobe_value(1, "")', "4 of the actions of probe 1 begin with ''"),
        ('$optprobe_value(1, "count by")', "'count by $comm' takes one key, not 0"),
        ('$optprobe_quantile(1, "max", 50)', "'max(count)' is no histogram"),
        ('$optprobe_quantile(1, "hist", 101)', "101 is no percentage"),
        ('$optprobe_quantile(1, "hist", "x")', "the percentage is a number"),
        ('$optprobe_value("x", "hist")', "'x' is not the number of a probe"),
        ("$optprobe_value(1)", "$optprobe_value takes 2 arguments or more"),
    ],
)
def test_what_was_not_gathered_is_one_line(typed: str, error: str) -> None:
    assert error in shared_gdb("optprobe add gathers", f"print {typed}").err


def test_python_has_maps_and_records() -> None:
    script = "from gdb_optprobe.debugger.api import Handle; from gdb_optprobe.debugger import attach; "
    script += "p = Handle(attach.current_session(), 1); m = p.maps; print(m['count by $comm'], m['max(count)'], "
    script += "m['sum(count) by ($comm, $pid)'], len(m['hist(count)']), p.records[0].text)"
    ended = shared_gdb("optprobe add gathers", f"python {script}")
    assert ended.out.splitlines()[-1] == "{'dd': 7, 'cat': 3} None {('dd', 12): 512} 8 dd 12", ended


def test_names_and_ranges_choose_probes() -> None:
    ended = shared_gdb(
        "optprobe add a -name x",
        "optprobe add b -name x",
        "optprobe add c",
        "optprobe disable x",
        "optprobe enable 2-3",
        "optprobe delete",
    )
    assert [line for line in ended.out.splitlines() if line.startswith("fake:")] == [
        "fake: disable [1, 2]",
        "fake: enable [2, 3]",
        "fake: delete [1, 2, 3]",
    ]


def test_a_count_is_kept_until_the_report_is_printed() -> None:
    ended = shared_gdb("optprobe add vfs_read", "optprobe report 1 -clear -json", "optprobe report 1 -json")
    before, _, after, _ = (json.loads(line) for line in ended.out.splitlines()[1:])
    assert (before["type"], before["hits"], after["hits"]) == ("probe", 1000, 0)


def test_a_report_has_the_first_probes_of_its_order() -> None:
    sorted_by = ("optprobe report -sort number -top 2 -json", "optprobe report -top 1 -json")
    adds = ("optprobe add a", "optprobe add b", "optprobe add c", "optprobe report 1 -clear")
    lines = [json.loads(line) for line in shared_gdb(*adds, *sorted_by).out.splitlines() if line.startswith("{")]
    assert [line["number"] for line in lines if line["type"] == "probe"] == [1, 2, 2]


def test_a_report_of_some_tells_what_else_it_clears() -> None:
    adds = ("optprobe add a", "optprobe add b", "optprobe add c")
    reports = ("optprobe report -top 1 -clear", "optprobe report 1 2 -top 1 -clear -json", "optprobe list")
    ended = shared_gdb(*adds, *reports)
    assert ended.out.count("that -top left out, too") == 1 and "cleared 2 probes that" in ended.out
    assert "1000" not in ended.out.splitlines()[-1]


def test_the_guests_traces_and_the_collector_are_told_behind_all_probes() -> None:
    commands = ("optprobe report", "optprobe add vfs_read", "optprobe report -json", "optprobe commit -timeout 3")
    ended, behind = shared_gdb(*commands), ("guest_trace", "collector")
    assert [json.loads(line)["type"] for line in ended.out.splitlines()[2:6]] == ["probe", "cost", *behind]
    assert ended.out.splitlines()[6:] == ["fake: 2 wait", "fake: commit 3"]


def test_save_writes_over_and_says_what_it_could_not(tmp_path: Path) -> None:
    file = tmp_path / "some probes.gdb"
    file.write_text("old\n" * 100)
    ended = shared_gdb(
        "set $limit = 7", "optprobe add a", f"optprobe save {file}", "optprobe add b", f"optprobe save {file}"
    )
    assert ended.out.splitlines()[1:] == [
        f"Saved 1 probe to '{file}'.",
        "Probe 2 at 0xffffffff8134cc50 <vfs_read>: optimized, 5 bytes patched; a hit costs 3 instructions",
        f"Saved 2 probes to '{file}'.",
        "Only as comments, for their handlers are Python's: 7.",
    ]
    assert file.read_text().splitlines() == [
        "# head",
        "set $limit = 7",
        "optprobe add a if count == $limit",
        "optprobe add b if count == $limit",
    ]


def test_save_where_nothing_can_be_written(tmp_path: Path) -> None:
    ended = gdb("optprobe add a", f"optprobe save {tmp_path}/no/file")
    assert ended.err == f"optprobe: '{tmp_path}/no/file' cannot be written: No such file or directory\n"


def test_help_has_examples() -> None:
    words = ("add", "break", "dprintf", "list", "show", "explain", "report", "enable", "run", "save", "commit")
    words += ("expect",)
    ended = shared_gdb(*(f"help optprobe {word}" for word in words))
    for word in words:
        assert f"\noptprobe {word}" in ended.out
    assert ended.out.count("\nExamples:\n") == len(words)


def test_the_prefix_alone_prints_help() -> None:
    assert "optprobe add -- Put a probe at LOCATION" in shared_gdb("optprobe").out


COMPLETIONS = [
    ("optprobe add -ti", ["-tier"]),
    ("optprobe add vfs_read -tier b", ["boosted", "breakpoint"]),
    ("optprobe add -pending vfs_re", ["vfs_read", "vfs_readv"]),
    ("optprobe add vfs_write,vfs_re", ["vfs_read", "vfs_readv"]),
    ("optprobe explain vfs_write, vfs_w", ["vfs_write"]),
    ("optprobe delete ", ["1", "reads"]),
    ("optprobe list -", ["-json"]),
    ("optprobe report -sort s", ["stops", "symbol"]),
    ("optprobe run -un", ["-until-hits"]),
    ("set optprobe on-exit ", ["ask", "keep", "remove"]),
]


CLAUSES = [
    ("optprobe add vfs_read if $p", ["$pc", "$percpu(", "$pid"]),
    ("optprobe add vfs_read do c", ["count"]),
    ("optprobe add vfs_read do l", ["lhist"]),
    ("optprobe add vfs_read -return do l", ["latency", "lhist"]),
    ("optprobe add vfs_read if $r", []),
    ("optprobe add vfs_read -return if $r", ["$retval"]),
    ("optprobe add vfs_read if f", ["file"]),
    ("optprobe add vfs_read do hist(co", ["hist(count"]),
    ("optprobe add vfs_read if file->f_p", ["file->f_path"]),
    ("optprobe add vfs_read if file->f_path.d", ["file->f_path.dentry"]),
    ("optprobe add vfs_read -return entry do save n = count do hist($saved.", ["hist($saved.n"]),
    ("optprobe add -name n vfs_read -json if file->f_p", ["file->f_path"]),
    ("optprobe add -user /bin/busybox:main if f", []),
    ("optprobe explain vfs_read do hist(s", ["hist(sizeof(", "hist(str("]),
]


def test_completion_after_if_and_do() -> None:
    ended = shared_gdb(*(f"complete {typed}" for typed, _ in CLAUSES))
    expected = [f"{typed.rpartition(' ')[0]} {word}" for typed, words in CLAUSES for word in words]
    assert ended.out.splitlines() == expected, ended.err


def test_completion() -> None:
    ended = gdb("optprobe add vfs_read -name reads", *(f"complete {typed}" for typed, _ in COMPLETIONS))
    expected = []
    for typed, completed in COMPLETIONS:
        start = typed[: len(typed.rstrip("-abcdefghijklmnopqrstuvwxyz_"))]
        expected += [start + word for word in completed]
    assert ended.out.splitlines()[1:] == expected


def test_top_prints_a_block_each_time_and_one_in_the_end() -> None:
    ended = shared_gdb("optprobe add vfs_read", "optprobe add gathers", "optprobe top -every 0.5 -for 3 vfs_*")
    lines = ended.out.splitlines()
    blocks = [number for number, line in enumerate(lines) if re.search(r"\d\.\d s: [\d,]+/s, ", line)]
    assert [re.sub(r".* s: [\d,]+/s, ", "", lines[number]) for number in blocks] == [
        "4,000 hits, 7 lost",
        "6,000 hits, 7 lost",
        "8,000 hits, 7 lost",
    ]
    assert lines[blocks[2]].startswith("in all ") and lines[-1] == "fake: watch None 0.5 3.0 None"
    last = lines[blocks[2] + 1 : -1]
    assert [line.split()[-1] for line in last[1:3]] == ["vfs_read", "vfs_read"]
    assert "  vfs_read count by $comm: 2 keys" in last and "  vfs_read newest: dd 12" in last
    assert last[-1] == "  @[dd]: 5"


def test_top_needs_a_probe_and_takes_one_glob() -> None:
    ended = gdb(
        "set optprobe exit-on-error off",
        "optprobe top",
        "optprobe add vfs_read",
        "optprobe top ext4_*",
        "optprobe top a b",
        "optprobe top -every 0.01",
    )
    for said in (
        "optprobe: no probes\nHINT: optprobe add LOCATION",
        "no probe is on a function, or has a name, that ext4_* matches",
        "'b' is not expected here",
        "-every takes 0.05 seconds at least",
    ):
        assert said in ended.err


def test_settings() -> None:
    ended = shared_gdb("set optprobe arena code=0x1000-0x2000  data=0x3000-0x4000", "show optprobe")
    assert ended.out.splitlines() == [
        "optprobe optimization is on.",
        "optprobe boost is on.",
        "optprobe emulation is on.",
        "optprobe trap is on.",
        "optprobe arena is code=0x1000-0x2000 data=0x3000-0x4000.",
        "optprobe on-exit is remove.",
        "optprobe exit-on-error is on.",
        "optprobe max-probes is 4096.",
        "optprobe max-memory is 16.",
        "optprobe guardian is on.",
        "optprobe load-symbols is on.",
        "optprobe live is auto.",
        "optprobe qmp-socket is none.",
        "optprobe table-keys is 512.",
        "optprobe ring-records is 512.",
        "optprobe string-length is 64.",
        "optprobe stack-size is 512.",
    ]


def test_sizes_are_rounded_up_and_bounded() -> None:
    ended = gdb(
        "set optprobe exit-on-error off",
        "set optprobe table-keys 1000",
        "set optprobe ring-records 70000",
        "set optprobe string-length 20",
        "set optprobe stack-size 1",
        *(f"show optprobe {name}" for name in ("table-keys", "ring-records", "string-length", "stack-size")),
    )
    values = {"table-keys": 1024, "ring-records": 512, "string-length": 24, "stack-size": 512}
    assert ended.out.splitlines() == [f"optprobe {name} is {value}." for name, value in values.items()]
    assert "optprobe: ring-records cannot be 70000" in ended.err and "from 2 to 65536" in ended.err


def test_a_refused_arena_leaves_the_old_one() -> None:
    ended = gdb(
        "set optprobe exit-on-error off",
        "set optprobe arena code=1-2 data=3-4",
        "set optprobe arena nonsense",
        "show optprobe arena",
    )
    assert ended.out == "optprobe arena is code=0x1-0x2 data=0x3-0x4.\n"


def test_a_change_is_told() -> None:
    ended = gdb(
        "python from gdb_optprobe.debugger.parameters import on_change, current_settings",
        "python on_change(lambda name: print(name, current_settings().boost, current_settings().max_probes))",
        "set optprobe boost off",
        "set optprobe max-probes 7",
    )
    assert ended.out.splitlines() == ["boost False 4096", "max-probes False 7"]


def test_without_a_guest_the_doctor_tells_what_it_can_and_fails_not() -> None:
    ended = shared_gdb("optprobe doctor", "optprobe doctor -json", "optprobe version")
    assert (ended.status, ended.err) == (0, "")
    *told, json_line, version = ended.out.splitlines()
    assert told[0].startswith(f"{version}, a target without a QEMU version; ")
    assert "symbols         refused: the guest cannot be asked: no guest is connected (GUEST_MISSING)" in told
    assert "                HINT: target remote PATH-OF-THE-GDB-SOCKET (or :PORT)" in told
    assert "modules         refused: as symbols (GUEST_MISSING)" in told
    found = json.loads(json_line)
    assert {one["name"]: one["state"] for one in found["facilities"]}["gdb"] == "works"
    assert re.fullmatch(r"optprobe \S+, GDB \S+ with Python 3\.\S+", version)


def test_help_and_completion_of_the_doctor() -> None:
    ended = gdb("help optprobe doctor", "complete optprobe doc", "complete optprobe doctor -", "optprobe doctor now")
    assert "optprobe doctor [-json]" in ended.out
    assert "optprobe doctor\n" in ended.out and "optprobe doctor -json\n" in ended.out
    assert ended.err.startswith("optprobe: 'now' is not expected here")


def test_several_locations_of_one_add_and_of_one_kprobe() -> None:
    python = "python from gdb_optprobe import kprobe; print(kprobe('ksys_read, ksys_write').number)"
    lists = ("optprobe list both -json", "optprobe list -json")
    ended = shared_gdb("optprobe add vfs_read,vfs_write -name both", python, *lists)
    assert ended.status == 0 and ended.err == ""
    *_, number, both, everything = ended.out.splitlines()
    assert number == "3" and [probe["location"] for probe in json.loads(both)] == ["vfs_read", "vfs_write"]
    assert [probe["location"] for probe in json.loads(everything)][2:] == ["ksys_read", "ksys_write"]
