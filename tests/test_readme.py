"""README and CONTRIBUTING keep up with the program."""

from __future__ import annotations

import re
from pathlib import Path

from qemu.fitting_gdb import OLDEST_GDB, OLDEST_PYTHON

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_it_is_one_page() -> None:
    assert len(README.splitlines()) <= 150


def test_versions_are_those_that_are_asked_for() -> None:
    python = ".".join(map(str, OLDEST_PYTHON))
    doctor = (ROOT / "gdb_optprobe" / "debugger" / "doctor.py").read_text()
    qemu = ".".join(re.findall(r"^OLDEST_QEMU = \((\d+), (\d+)\)", doctor, re.MULTILINE)[0])
    assert f"GDB {OLDEST_GDB} and later with Python {python} or later, QEMU {qemu} and later" in README


def test_figures_are_those_of_their_page() -> None:
    figures = (ROOT / "docs" / "internals" / "figures.md").read_text()
    ours, linux = re.findall(r"^all core text .*  ([\d.]+) % +([\d.]+) %$", figures, re.MULTILINE)[0]
    assert f"[{float(ours):.1f} %]" in README
    assert f"| {float(linux):.0f} %, by Linux's own rule |" in README


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_script_is_named() -> None:
    pages = "".join((ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md"))
    scripts = {path.name for path in (ROOT / "scripts").iterdir() if path.suffix == ""}
    assert {name for name in scripts if f"scripts/{name}" not in pages} == set()
