"""What the installed program tells GDB for a script."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from qemu import script_program
from qemu.guest import GuestError
from qemu.script_program import gdb_lines


def script_line(*words: str) -> list[str]:
    return shlex.split(gdb_lines(words)[-1])


def test_words_reach_the_command_as_they_are() -> None:
    program = "kprobe:f /comm == \"it's\"/ {\n  @ = 1\n}"
    assert script_line("--target", ":1234", "-e", program, "a b") == ["optprobe", "script", "-e", program, "a b"]
    assert "'socket': ':1234'" in gdb_lines(["--target", ":1234", "x.bt"])[-2]


def test_the_guest_is_named_or_the_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(script_program, "guests_directory", lambda: tmp_path)
    monkeypatch.setenv("OPTPROBE_TARGET", "/run/guest.sock")
    assert "'socket': '/run/guest.sock'" in gdb_lines(["x.bt"])[-2]
    monkeypatch.delenv("OPTPROBE_TARGET")
    for words in (["x.bt"], ["--name", "other", "x.bt"]):
        with pytest.raises(GuestError, match=f"no guest runs in {tmp_path}/{'other' if len(words) > 1 else 'default'}"):
            gdb_lines(words)
    with pytest.raises(ValueError, match="not a name for a guest"):
        gdb_lines(["--name", "../x", "x.bt"])
    with pytest.raises(ValueError, match="-keep is for a GDB that stays"):
        gdb_lines(["--target", ":1", "-keep", "x.bt"])
    with pytest.raises(ValueError, match="--target takes a value"):
        gdb_lines(["--target"])
