"""README and CONTRIBUTING keep up with the program."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_script_is_named() -> None:
    pages = "".join((ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md"))
    scripts = {path.name for path in (ROOT / "scripts").iterdir() if path.suffix == ""}
    assert {name for name in scripts if f"scripts/{name}" not in pages} == set()
