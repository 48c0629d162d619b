"""A machine that has seen no kernel before: what a person is told to wait for; a program reads JSON alone."""

from __future__ import annotations

from pathlib import Path

from qemu.guest import Guest
from tests.booted.batch import MARK, batch
from tests.booted.progress import WAITS

INSIDE = "*vfs_read+5"
EARLIER = "Probes of an earlier GDB"


def gathered(name: str, line: str) -> str:
    """A line that keeps a command's JSON as a program does that GDB runs."""
    return f'python said = gdb.execute("{line} -json", to_string=True); print("{MARK}{name}"); print(said)'


def test_a_person_is_told_what_takes_a_while(linux: Guest, tmp_path: Path) -> None:
    finished = batch(linux, [f"optprobe explain {INSIDE}"], OPTPROBE_CACHE=str(tmp_path))
    assert finished.status == 0, finished.output
    assert all(words in finished.output for words in WAITS)


def test_notes_stand_beside_the_json(linux: Guest, tmp_path: Path) -> None:
    left = batch(linux, ["set optprobe on-exit keep", "optprobe add vfs_read"])
    assert left.status == 0, left.output
    script = [gathered("list", "optprobe list"), gathered("explain", f"optprobe explain {INSIDE}")]
    finished = batch(linux, [*script, "optprobe recover -remove"], OPTPROBE_CACHE=str(tmp_path))
    assert finished.status == 0, finished.output
    assert finished.json("list") == [] and finished.json("explain")["address"].startswith("0x")
    assert EARLIER in finished.output
    behind = finished.output.partition("GDB has the symbols")[2]
    assert behind and not [words for words in WAITS if words in behind], finished.output
