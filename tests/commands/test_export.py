"""`optprobe export` in GDB: its arguments, its file, what it says. The formats have tests of their own."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from gdb_optprobe.commands.options import Export, Selection, parse_export
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.exports import formats
from tests.commands.in_gdb import shared_gdb

FORMATS = ("chrome", "csv", "folded")


def test_a_file_is_written_as_a_whole_and_what_is_in_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "what probes have.json"
    file.write_text("old\n" * 1000)
    exports = (f'optprobe export chrome "{file}"', f"optprobe export csv {tmp_path}/1 1")
    ended = shared_gdb("optprobe add vfs_read", "optprobe add gathers", *exports)
    assert ended.out.splitlines()[2:] == [
        f"Wrote 10 counters to '{file}'.",
        "Left out: 1 event without a time and 4 numbers of tables.",
        f"Wrote 5 counters to '{tmp_path}/1'.",
    ], ended.err
    assert len(json.loads(file.read_text())["traceEvents"]) == 10
    assert (tmp_path / "1").read_text().splitlines()[1].startswith("hits,1,vfs_read,")
    assert stat.S_IMODE((tmp_path / "1").stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["1", file.name], "nothing is left aside"


ERRORS = (
    ("csv FOLDER/x", "there are no probes to export"),
    ("chrome FOLDER/no/file", "'FOLDER/no/file' cannot be written: No such file or directory"),
    ("chrome FOLDER", "'FOLDER' is no file that can be replaced"),
    ("folded FOLDER/x", "there is nothing to export: the format holds stacks and calls"),
    ("folded FOLDER/x 7", "no probe 7"),
    ("chrme FOLDER/x", "no format 'chrme'"),
    ("chrome", "no file to export to"),
    ("", "no format; there are chrome, "),
    ("chrome FOLDER/x -json", "no option -json"),
)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    typed = [f"optprobe export {words.replace('FOLDER', str(tmp_path))}" for words, _ in ERRORS]
    first, *others = typed
    ended = shared_gdb("set optprobe exit-on-error off", first, "optprobe add vfs_read", *others)
    errors = [line for line in ended.err.splitlines() if line.startswith("optprobe: ")]
    for line, (_, said) in zip(errors, ERRORS, strict=True):
        assert line.startswith(f"optprobe: {said.replace('FOLDER', str(tmp_path))}")
    assert not [*tmp_path.iterdir()]


def test_help_has_each_format() -> None:
    said = shared_gdb("help optprobe export").out
    assert re.findall(r"^ {2}(\S+) {2,}\S", said, re.MULTILINE) == [*formats.FORMATS]


def test_arguments() -> None:
    assert parse_export(" csv 'a b'  1 2-3 name", FORMATS) == Export("csv", "a b", Selection((1, 2, 3, "name")))
    with pytest.raises(OptprobeError, match="did you mean folded"):
        parse_export("fold x", FORMATS)


def test_completion(tmp_path: Path) -> None:
    (tmp_path / "reads.json").touch()
    typed = ("ch", f"csv {tmp_path}/re", "csv x r")
    ended = shared_gdb("optprobe add a -name reads", *(f"complete optprobe export {words}" for words in typed))
    assert ended.out.splitlines()[1:] == [
        "optprobe export chrome", f"optprobe export csv {tmp_path}/reads.json", "optprobe export csv x reads",
    ]  # fmt: skip
