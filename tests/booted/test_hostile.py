r"""A guest that lies to its debugger: nothing that a terminal obeys, no forged row, no command that runs, no traceback.

    unprivileged    comm, file names, strings behind pointers, symbols of an ELF file
    the kernel      its symbols, a module's name, the journal of an earlier GDB
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted import answer
from tests.booted.gdb import Console

LIES = Path(__file__).with_name("guest_lies.py")
TITLE, ROW = r"\033]0;owned\007", r"dd]: 9\n  [init"
"""Comms: one sets a terminal's title, one makes a row of a report. As `printf` takes them, and as we show them."""
FILE = r"/tmp/a\033[2J\nb\302\205"
COMMANDS = ("list", "report", "list -json", "report -json", "show 1", "show 1 -json", "doctor", "doctor -json", "check")
WRITTEN = re.compile(r"# |optprobe (add|disable) |set (optprobe |\$\w+ = )")
"""How a line of a saved file may begin."""


@pytest.fixture(autouse=True)
def without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def clean(text: str) -> str:
    """What GDB has printed, in which nothing is that a terminal obeys but line ends."""
    text = text.replace("\r\n", "\n")  # the terminal's, where it came in two pieces
    bad = {each for line in text.split("\n") for each in line if not each.isprintable()}
    assert not bad, (bad, text)
    assert "Traceback" not in text and "internal error" not in text, text
    return text


def named(comm: str, does: str) -> str:
    """A guest's command line that does something by that name."""
    return f"sh -c 'printf \"{comm}\" > /proc/self/comm; {does}'"


def test_a_process_writes_neither_to_the_terminal_nor_rows_of_reports(each_linux: Guest, tmp_path: Path) -> None:
    guest = each_linux
    guest.check(f"n=$(printf '{FILE}'); echo x > \"$n\"")
    with Console(guest) as gdb:
        said = gdb("optprobe add vfs_read do count by $comm, record($comm)")
        prints = 'print("%s|%c|%.9s", str($arg2), 27, str($arg2))'
        said += gdb(f"optprobe add do_sys_openat2 do count by str($arg2), {prints}")
        said += gdb("optprobe add do_sys_poll -return do count by $comm")
        gdb.send("continue")
        for comm in (TITLE, ROW):
            guest.check(named(comm, "while read x; do :; done < /proc/version"))
        guest.check(f"n=$(printf '{FILE}'); cat \"$n\"")
        sleeps = f"{named(TITLE, 'exec 3<>/tmp/sleep; read x <&3')}"
        guest.check(f"mkfifo /tmp/sleep; ({sleeps}; rm /tmp/sleep) > /dev/null 2>&1 & sleep 1")
        gdb.interrupt()
        found = {command: clean(gdb(f"optprobe {command}")) for command in COMMANDS}
        gdb.send("continue")
        guest.check("echo > /tmp/sleep")
        gdb.interrupt()
        clean(gdb(f"optprobe save {tmp_path / 'saved'}"))
        clean(said + gdb.transcript)
    report = found["report"]
    assert re.search(rf"(?m)^        \[{re.escape(TITLE)}\]: \d+$", report), report
    assert re.search(rf"(?m)^        \[{re.escape(ROW)}\]: \d+$", report), report
    assert len(re.findall(r"(?m)^ *\[init\]: \d+$", report)) <= 2, "of two probes' counts"
    assert rf"[{FILE}]: " in report and rf": {FILE}|\033|/tmp/a\033[2" in report, report
    assert TITLE in found["list"], "its call is under way"
    values = [json.loads(line) for line in found["report -json"].splitlines()]
    keys = [entry["key"][0] for value in values if value["type"] == "map" for entry in value["entries"]]
    assert {TITLE, ROW, FILE} <= set(keys)
    assert all(WRITTEN.match(line) for line in (tmp_path / "saved").read_text().splitlines())


def test_a_program_s_file_and_symbols_have_names_that_a_terminal_obeys(linux: Guest, tmp_path: Path) -> None:
    program = answer.build(tmp_path, 64)
    data = program.read_bytes()
    program.write_bytes(data.replace(b"\0answer\0", b"\0a\x1b\ner\\\0"))
    answer.put(linux, program, "/tmp/plain")
    path, symbol = r"/tmp/e\033c\nf", r"a\033\ner\\"
    linux.check(f"n=$(printf '{path}'); cp /tmp/plain \"$n\"; \"$n\"; [ $? = 7 ]")
    with Console(linux) as gdb:
        said = gdb(f"optprobe add -user {path}:{symbol} do stack, count by $comm")
        assert rf"<e\033c\nf:{symbol}>: trapped" in said, said
        clean(gdb(f"optprobe explain -user {path}:{symbol}+1"))
        clean(gdb(f"optprobe add -user {path}:nosuch"))
        gdb.send("continue")
        linux.check(f"n=$(printf '{path}'); \"$n\"; [ $? = 7 ]")
        gdb.interrupt()
        found = [clean(gdb(f"optprobe {command}")) for command in COMMANDS]
        assert r"[e\033c\nf]: 1" in found[1] and f"e\\033c\\nf:{symbol}" in found[1], found[1]
        clean(gdb(f"optprobe save {tmp_path / 'saved'}"))
        (line,) = (line for line in (tmp_path / "saved").read_text().splitlines() if not line.startswith("#"))
        assert line == f"optprobe add {path}:{symbol} -user do stack, count by $comm"
        gdb("optprobe delete")
        assert rf"<e\033c\nf:{symbol}>: trapped" in clean(gdb(f"source {tmp_path / 'saved'}"))
        clean(gdb.transcript)


def test_a_kernel_whose_symbols_have_line_ends_runs_no_command(
    linux: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTPROBE_CACHE", str(tmp_path / "cache"))
    linux.check("insmod /lib/modules/dummy.ko")
    saved = tmp_path / "saved"
    try:
        with Console(linux) as gdb:
            gdb(f"source {LIES}")
            gdb("optprobe explain vfs_read")
            honest = gdb.value("&blk_mq_init_queue")
            assert gdb("guest-lies symbols") + gdb("guest-lies module dummy") == ""
            monkeypatch.setenv("OPTPROBE_CACHE", str(tmp_path / "another"))
            with_lies = gdb("info symbol vfs_read")
        with Console(linux) as gdb:
            said = gdb(f"optprobe add *{honest:#x}")
            assert r"<blk_m\n_init_" in said, said + with_lies
            for command in ("explain *", "add *"):
                clean(gdb(f"optprobe {command}{honest:#x}+4"))
            clean(gdb("optprobe add vfs_read do stack"))
            clean(gdb("optprobe add dummy:dummy_xmit") + gdb("optprobe add dummy_xmit"))
            clean(gdb("complete optprobe add blk_m"))
            clean(gdb("complete optprobe add re"))
            clean((gdb(f"info symbol {honest:#x}") + gdb(f"x/2i {honest:#x}") + gdb("bt")).expandtabs())
            found = {command: clean(gdb(f"optprobe {command}")) for command in COMMANDS}
            assert r"blk_m\n_init_" in found["list"]
            clean(gdb(f"optprobe save {saved}"))
            lines = saved.read_text().splitlines()
            assert all(WRITTEN.match(line) for line in lines) and "optprobe add *_stext+0x" in saved.read_text(), lines
            clean(gdb("optprobe delete"))
            assert r"blk_m\n_init_" in clean(gdb(f"source {saved}", timeout=90))
            clean(gdb.transcript.expandtabs())
    finally:
        linux.reset()


LIE = {
    "name": "x\nshell touch SAVED\n#",
    "location": '*$_shell("touch SAVED")',
    "home": "x:y\nshell touch SAVED\n#",
    "tier": "\x1b]0;owned\x07",
    "file": "/x\nshell touch SAVED\n#",
    "do": ["count\nshell touch SAVED"],
    "glob": True,
}


def test_a_journal_that_the_guest_has_written_runs_no_command(linux: Guest, tmp_path: Path) -> None:
    """What cannot be is refused; a format that a terminal would obey is not printed so."""
    touched, saved = tmp_path / "touched", tmp_path / "saved"
    with Console(linux) as gdb:
        gdb("set optprobe guardian off")
        gdb(r'optprobe add vfs_read do print("\033]0;owned\007\n  [init]: 9")')
        gdb.kill()
    linux.check("cat /proc/version")
    with Console(linux) as gdb:
        gdb("set optprobe guardian off")
        assert "optimized" in clean(gdb("optprobe recover"))
        report = clean(gdb("optprobe report"))
        found = r"(?m)^    \[ *\d+\.\d{6}\] \[\d\]: \\033\]0;owned\\007\n        \|   \[init\]: 9$"
        assert re.search(found, report), report
        clean(gdb(f"optprobe save {saved}"))
        assert all(WRITTEN.match(line) for line in saved.read_text().splitlines())
        gdb(f"source {LIES}")
        said = gdb(f"guest-lies probe {json.dumps(LIE).replace('SAVED', str(touched))}")
        assert "Error" not in said, said
        gdb.kill()
    with Console(linux) as gdb:
        for command in ("recover", "add vfs_write", "explain vfs_write", "recover -remove", "list", "report", "doctor"):
            said = clean(gdb(f"optprobe {command}"))
            assert "damaged" in said or command not in ("recover", "recover -remove"), said
        clean(gdb(f"optprobe save {saved}"))
        clean(gdb.transcript)
    linux.reset()
    assert not touched.exists()


LOOKS = ("list", "report", "report -json", "show 1", "explain vfs_write+4", "doctor", "check", "commit -timeout 1")


def test_tables_and_lists_that_change_between_two_reads(linux: Guest) -> None:
    """Each answer is an error of one line, or counts that are the guest's; nothing hangs."""
    linux.check("insmod /lib/modules/dummy.ko")
    try:
        with Console(linux) as gdb:
            gdb(f"source {LIES}")
            does = 'count by $comm, hist(count), record($comm), print("%s", $comm), stack'
            assert "optimized" in gdb(f"optprobe add vfs_read do {does}")
            for lie in (*(f"gathered {fill}" for fill in ("ff", "80", "1b0a")), "modules", "tasks"):
                gdb.send("continue")
                linux.check("dd if=/dev/zero of=/dev/null bs=1 count=700 2>/dev/null")
                gdb.interrupt()
                clean(gdb("optprobe report"))
                assert gdb(f"guest-lies {lie}") == ""
                for command in LOOKS:
                    clean(gdb(f"optprobe {command}", timeout=90))
                assert gdb("guest-lies no-more") == ""
            gdb("optprobe delete")
            clean(gdb.transcript)
    finally:
        linux.reset()
