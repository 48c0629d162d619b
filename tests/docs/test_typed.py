"""Every command in docs/ and in the help texts is one that the parser takes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT
from tests.docs.test_current import ran
from tests.docs.typed import commands

FAULTS = """
import sys
from tests.docs.typed import fault
print("\\n".join(fault(line.rstrip()).partition("\\n")[0] for line in sys.stdin))
"""


def test_every_command_parses() -> None:
    done = ran("tests.docs.typed")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 150


def test_what_does_not_parse_is_found() -> None:
    wrong = {
        "optprobe ad vfs_read": "no subcommand 'ad'",
        "optprobe add vfs_read -perid 1": "no option -perid",
        "optprobe add vfs_read do histo(x)": "no action named 'histo'",
        "optprobe add vfs_read if count >": "an expression is missing",
        "optprobe add vfs_read -pid 1": "-pid needs -user",
        "optprobe add vfs_read do latency": "latency needs -return",
        "optprobe run -for ever": "'ever' is not a number of seconds",
        "set optprobe bost off": "no setting named 'bost'",
        "optprobe add f -return entry do save n = count if $retval < $saved.n": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], cwd=ROOT, input="\n".join(wrong), capture_output=True, text=True, timeout=120
    )
    for found, begins in zip(done.stdout.removesuffix("\n").split("\n"), wrong.values(), strict=True):
        assert found.startswith(begins)
        assert bool(found) == bool(begins)


@pytest.mark.parametrize("row", re.findall(r"^\| .* \|$", (ROOT / "docs" / "coming-from.md").read_text(), re.MULTILINE))
def test_a_row_has_as_many_cells_as_its_head(row: str) -> None:
    assert len(re.split(r"(?<!\\)\|", row)) in (4, 8)


def test_commands_of_a_page() -> None:
    fence = "```\n(gdb) optprobe add f\n`optprobe no`\n```\n"
    page = f"`optprobe list` and `optprobe add LOCATION`\n{fence}`set optprobe boost off`"
    assert [*commands(page)] == ["optprobe add f", "optprobe list", "set optprobe boost off"]
