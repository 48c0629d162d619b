"""GDB has the kernel's symbols before the first command of ours, and leaves the guest as it was."""

from __future__ import annotations

import subprocess

from qemu.debugger import gdb_program
from qemu.guest import Guest, Options
from tests.booted.gdb import Console

SOURCE = "source scripts/optprobe.py"
HAS = "GDB has the symbols of the guest's kernel"


def printed(guest: Guest, *lines: str) -> str:
    connect = f"target remote {guest.gdb_socket}"
    words = [word for line in lines for word in ("-ex", line.replace("CONNECT", connect))]
    done = subprocess.run(
        [gdb_program(), "-nx", "-batch", *words], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    return done.stdout + done.stderr


def test_connected_before_and_after_the_file_is_sourced(each_linux: Guest) -> None:
    for first in (("CONNECT", SOURCE), (SOURCE, "CONNECT")):
        said = printed(each_linux, *first, "info symbol vfs_read", "backtrace 1")
        assert said.count(HAS) == 1 and "vfs_read in section .text" in said, said
        assert "?? ()" not in said.partition("#0")[2], said


def test_a_setting_leaves_it_to_the_first_command(linux: Guest) -> None:
    said = printed(linux, SOURCE, "set optprobe load-symbols off", "CONNECT", "info symbol vfs_read", "optprobe list")
    assert HAS not in said and "No symbol table is loaded" in said, said


def test_a_guest_that_has_not_booted_is_tried_again_at_a_prompt() -> None:
    with Guest.start(Options(paused=True)) as guest, Console(guest) as gdb:
        assert "No symbols of the guest's kernel" in gdb.transcript and HAS not in gdb.transcript
        gdb.send("continue")
        guest.wait_ready()
        assert HAS in gdb.interrupt()
        assert "vfs_read in section .text" in gdb("info symbol vfs_read")
        assert HAS not in gdb("info symbol vfs_write"), "once is enough"
