"""A function of the guest is called from outside, and the guest goes on as if nothing had happened."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

from qemu.debugger import gdb_program
from qemu.guest import Guest
from tests.booted.batch import ROOT, batch
from tests.booted.conftest import Boot

CALL = f"source {Path(__file__).with_name('guest_call.py')}"


def returned(output: str) -> list[int]:
    return [int(value, 16) for value in re.findall(r"^returned (0x[0-9a-f]+)$", output, re.MULTILINE)]


def test_a_result_a_sleep_and_memory(linux: Guest) -> None:
    calls = ["guest-call int_sqrt 1000000", "guest-call msleep 30", "guest-call __get_free_pages 0xcc0 0"]
    finished = batch(linux, [CALL, *calls])
    assert finished.status == 0, finished.output
    root, _, page = returned(finished.output)
    assert root == 1000
    assert page >> 47 == 0x1FFFF and page % 4096 == 0
    assert linux.check("echo still here") == "still here\n"


def test_gdb_is_killed_in_the_middle_of_a_call(fresh: Boot) -> None:
    guest = fresh()
    command = [gdb_program(), "-nx", "-batch", "-ex", f"target remote {guest.gdb_socket}"]
    command += ["-ex", f"source {ROOT}/scripts/optprobe.py", "-ex", CALL, "-ex", "guest-call msleep 4000"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as gdb:
        # Long enough for GDB to attach and to reach the function, not for the function to return.
        time.sleep(4)
        gdb.send_signal(signal.SIGKILL)
    # The breakpoint behind the call may stop the guest with nobody there: a new GDB lets it go on.
    time.sleep(3)
    batch(guest, ["detach"], source=False)
    assert guest.check("echo still here") == "still here\n"
    time.sleep(2)
    assert guest.check("dd if=/dev/zero of=/dev/null bs=1 count=1000 2>&1 | head -n 1") == "1000+0 records in\n"
    assert guest.problems() == []
