"""What is made of the code is current. The pages are made in a process of their own: there `gdb` is a recorder."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from gdb_optprobe.detours.refusal import Refusal
from tests.docs.blocks import ROOT, definition, listed, table

REFERENCE = ROOT / "docs" / "reference"


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_every_page_is_current() -> None:
    done = ran("tests.docs.build", "--check")
    assert done.returncode == 0, done.stderr


def test_every_refusal_is_in_a_group_of_the_page() -> None:
    found = re.findall(r"^\| `([A-Z_]+)` \|", (REFERENCE / "refusals.md").read_text(), re.MULTILINE)
    assert sorted(found) == sorted(refusal.code for refusal in Refusal)


@pytest.mark.parametrize(("cell", "shown"), [("a", "a"), ("`a|b`", "`a\\|b`")])
def test_a_bar_in_a_cell_ends_none(cell: str, shown: str) -> None:
    assert table(("x",), [(cell,)]).splitlines()[-1] == f"| {shown} |"


def test_keys_of_an_object_inside_have_its_key_before_them() -> None:
    assert "| `out[].pid` | integer or null |" in definition("calls")
    assert listed(["a", "b"]) == "`a`, `b`"
