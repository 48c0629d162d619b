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


GRAPH = (
    "python from gdb_optprobe.debugger import attach; from tests.commands.fake_session import GRAPH; "
    "attach.session_or_none().gathered = GRAPH"
)
"""What the session has after a graph."""


def test_the_last_graph_is_exported_where_it_is_asked_for_or_no_probe_is_there(tmp_path: Path) -> None:
    exports = [f"optprobe export {words}".replace(" /", f" {tmp_path}/") for words in (
        "folded /alone", "csv /probes", "perfetto /graph -last", "uftrace /folder -last",
    )]  # fmt: skip
    ended = shared_gdb(GRAPH, exports[0], "optprobe add vfs_read", *exports[1:])
    told = [
        "Lost, as they found no room in the guest: 2 records.",
        "1 call had not returned: in the file they end where their records do.",
    ]
    assert ended.out.splitlines() == [
        f"Wrote 2 calls of graph vfs_read to '{tmp_path}/alone'.", "Left out: 2 values of calls.", *told,
        ended.out.splitlines()[4],
        f"Wrote 5 counters to '{tmp_path}/probes'.",
        f"Wrote 2 calls of graph vfs_read to '{tmp_path}/graph'.", *told,
        f"Wrote 2 calls of graph vfs_read to '{tmp_path}/folder'.", "Left out: 2 values of calls.", *told,
    ], ended.err  # fmt: skip
    assert (tmp_path / "alone").read_text() == "dd;vfs_read 1800\ndd;vfs_read;rw_verify_area 200\n"
    assert (tmp_path / "folder" / "412.dat").stat().st_size == 4 * 16


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
    ("chrome FOLDER/x -last", "nothing was gathered yet"),
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
    assert parse_export("csv a -last", FORMATS) == Export("csv", "a", Selection(), last=True)
    with pytest.raises(OptprobeError, match="-last exports no probes"):
        parse_export("csv a -last 1", FORMATS)
    with pytest.raises(OptprobeError, match="did you mean folded"):
        parse_export("fold x", FORMATS)


def test_completion(tmp_path: Path) -> None:
    (tmp_path / "reads.json").touch()
    typed = ("ch", f"csv {tmp_path}/re", "csv x r")
    ended = shared_gdb("optprobe add a -name reads", *(f"complete optprobe export {words}" for words in typed))
    assert ended.out.splitlines()[1:] == [
        "optprobe export chrome", f"optprobe export csv {tmp_path}/reads.json", "optprobe export csv x reads",
    ]  # fmt: skip
