"""What `optprobe save` writes makes the same probes again in another boot, where the kernel is loaded elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qemu.guest import Guest
from tests.booted.gdb import Console

# Numbers are given anew, so that nothing is deleted here but the last ones.
LINES = (
    "set optprobe emulation off",
    "set $limit = 100",
    "optprobe add vfs_read",
    "optprobe add *(long)&vfs_read+5 -name five -tier breakpoint",
    'optprobe add vfs_write if $comm == "dd" && count > $limit do hist(count), count by ($pid, $comm)',
    "optprobe add ksys_write -return -name back do count by $retval",
    "optprobe add vfs_fsync*",
    "optprobe break ksys_read+0x7",
    "optprobe disable 2",
    'optprobe dprintf vfs_open,"opened, %d", 3',
    "optprobe add vfs_s*",
)
OF_A_BOOT = {"address", "detour", "hits", "missed", "stops", "active", "dropped", "faults", "patched_bytes", "reason"}
"""Addresses, and what holds some; counts."""


def test_saved_and_sourced_in_another_boot(linux: Guest, tmp_path: Path) -> None:
    file = tmp_path / "probes.gdb"
    with Console(linux) as gdb:
        for line in LINES:
            gdb(line)
        # One of a glob's: the others are saved one by one.
        last = gdb.probes()[-2:]
        assert [view["location"] for view in last] == ["vfs_s*"] * 2
        gdb(f"optprobe delete {last[-1]['number']}")
        gdb("python from gdb_optprobe import kprobe; kprobe('do_exit', pre_handler=lambda hit: None)")
        said = gdb(f"optprobe save {file}")
        before, base = gdb.probes()[:-1], gdb.value("_stext")
    assert said.splitlines()[0] == f"Saved {len(before)} probes to '{file}'."
    assert "Python's" in said
    written = file.read_text().splitlines()
    assert not [line for line in written if "0xffff" in line and not line.startswith("#")], written
    assert [line for line in written if line.startswith("# optprobe add do_exit")]
    linux.reset()
    with Console(linux) as gdb:
        said = gdb(f"source {file}", timeout=60)
        after, elsewhere = gdb.probes(), gdb.value("_stext")
        assert base != elsewhere
        assert "vfs_read+0x5" in gdb("optprobe list five")
        assert "emulation is off" in gdb("show optprobe emulation")
    assert "optprobe:" not in said, said
    assert [stable(view) for view in after] == [stable(view) for view in before]
    assert [view["address"] for view in after] == [
        f"{int(view['address'], 16) - base + elsewhere:#x}" for view in before
    ]


def stable(view: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on where the kernel is, nor on what ran; the symbol where an address is saved as one."""
    kept = {key: value for key, value in view.items() if key not in OF_A_BOOT}
    location = view["symbol"] if view["location"].startswith(("*", "vfs_s")) else view["location"]
    reason = view["reason"]
    return {**kept, "location": location, "reason": reason and reason["code"]}
