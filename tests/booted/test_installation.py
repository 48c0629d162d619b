"""A session with the installed program."""

from __future__ import annotations

from pathlib import Path

from qemu.guest import Guest
from tests.installed import install, run


def test_a_session_with_the_installed_program(linux: Guest, tmp_path: Path) -> None:
    environment = install(tmp_path / "of a user")
    commands = (
        "set remotetimeout 30",
        f"target remote {linux.gdb_socket}",
        "optprobe add vfs_read if count > 1000 do count by $comm",
        "optprobe run -for 0.2",
        "optprobe show 1",
        "optprobe report",
        "optprobe expect $optprobe_missed(1) == 0",
    )
    done = run(environment, "optprobe", "gdb", "-nx", "-q", "-batch", *(w for line in commands for w in ("-ex", line)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vfs_read" in done.stdout and ": optimized, " in done.stdout and "count by $comm" in done.stdout
    assert linux.check("echo alive", 20) == "alive\n"
