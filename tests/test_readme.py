"""README keeps up with the program."""

from __future__ import annotations

import re
from pathlib import Path

from gdb_optprobe.detours.refusal import Refusal

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_every_reason_is_listed() -> None:
    listed = set(re.findall(r"^\| `([A-Z_]+)` \|", README, re.MULTILINE))
    assert listed == {refusal.code for refusal in Refusal}


def test_every_script_is_named() -> None:
    scripts = {path.name for path in (Path(__file__).parents[1] / "scripts").iterdir() if path.suffix == ""}
    assert {name for name in scripts if f"scripts/{name}" not in README} <= {"setup"}
