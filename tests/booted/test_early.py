"""Probes that are added before the guest's kernel starts: they go in before its first initcall."""

from __future__ import annotations

import re

import pytest

from qemu.guest import Guest
from qemu.machines import MACHINES
from tests.booted.batch import batch, keep
from tests.booted.conftest import Boot
from tests.booted.gdb import Console

WAITS = "add bus_register,vfs_read,start_kernel,no_such -pending"


KERNELS: dict[str, dict[str, str]] = {arch: {"arch": arch} for arch in MACHINES}
# Its page tables are of another form, its text is protected earlier, and it has its tree of devices elsewhere.
KERNELS["aarch64, 6.12"] = {"arch": "aarch64", "suite": "trixie", "cpu": "max,pauth-impdef=on"}


@pytest.fixture(params=sorted(KERNELS))
def newborn(boot: Boot, request: pytest.FixtureRequest) -> Guest:
    """Return a guest before its first instruction."""
    return boot(**KERNELS[request.param], paused=True)


def test_a_boot_is_probed_from_its_first_initcall_on(newborn: Guest) -> None:
    """Each bus is registered once, and none of them before the first initcall: /sys/bus has as many as there are hits.
    By the first read of a program the kernel has booted, and the probes have moved up.
    """
    finished = batch(
        newborn,
        [
            "optprobe add vfs_write -pending",
            keep("waiting", "optprobe list"),
            "optprobe delete",
            'python print("left:", len([b for b in gdb.breakpoints() if b.number < 0 and b.enabled]))',
            f"optprobe {WAITS}",
            "optprobe run -until-hits 2:1 -timeout 60",
            keep("list", "optprobe list"),
            "optprobe check",
        ],
    )
    assert finished.status == 0, finished.output
    (waiting,) = finished.json("waiting")
    assert (waiting["state"], waiting["reason"]["code"]) == ("pending", "KERNEL_PENDING")
    assert "left: 0" in finished.output
    assert re.search(r"has started: 2 of 4 probes in it, before its first (initcall|driver)", finished.output)
    buses, reads, start, nowhere = finished.json("list")
    assert [buses["tier"], reads["tier"]] == ["optimized", "optimized"]
    assert [start["reason"]["code"], nowhere["reason"]["code"]] == ["INIT_TEXT", "PENDING"]
    newborn.wait_ready()
    status, output = newborn.run("ls /sys/bus | wc -l")
    assert (status, int(output)) == (0, buses["hits"])
    assert not re.search("BUG:|Oops|insecure W.X", newborn.log())


def test_a_command_waits_until_the_guest_takes_it(newborn: Guest) -> None:
    """Its line came while the kernel booted: a part was lost, and the run never ended."""
    script = ["optprobe add vfs_write -pending", "optprobe run -for 0.5 -guest 'echo early'"]
    finished = batch(newborn, [*script, "optprobe run -guest 'echo done'"])
    assert finished.status == 0, finished.output
    assert "it was not sent" in finished.output and "early" not in finished.output
    assert "done\nthe command has ended with status 0" in finished.output


LOOKS = "from gdb_optprobe.debugger.attach import attachments; boot = attachments.current.boot; look = boot._look"
INTERRUPTED_LOOK = "boot._look = lambda stopped: (os.kill(os.getpid(), signal.SIGINT), look(stopped))"


def test_a_ctrl_c_while_the_kernel_starts_loses_no_probe(newborn: Guest) -> None:
    """It comes at each of our stops: at the first the kernel is found, at the second the probes go in."""
    with Console(newborn) as gdb:
        gdb("optprobe add vfs_read -pending")
        gdb(f"python import os, signal; {LOOKS}; {INTERRUPTED_LOOK}")
        for tier in ("-", "emulated"):
            assert "optprobe: interrupted: the guest is stopped while its kernel starts" in gdb("continue")
            assert re.search(rf"1 {tier} +0 ", gdb("optprobe list"))
        gdb("optprobe run -until-hits 1:2 -timeout 60", 90)
        assert re.search(r"1 optimized +\d+ ", gdb("optprobe list"))


def test_a_gdb_that_leaves_while_probes_wait_leaves_nothing(newborn: Guest) -> None:
    finished = batch(newborn, [f"optprobe {WAITS}", "optprobe run -for 0.1", "monitor system_reset", "detach"])
    assert finished.status == 0, finished.output
    newborn.resume()
    newborn.wait_ready()


FORGETS = "python from gdb_optprobe.debugger.attach import attachments; attachments.forget()"
FIRST_PROGRAM = "kernel_execve"


def test_a_probe_that_comes_while_drivers_start_is_in_before_the_first_program(newborn: Guest) -> None:
    """No variable may tell that the text is patched: it is once the kernel has booted, and no command is needed for it.

    The GDB that comes then knows nothing of the one that had the guest stopped.
    """
    with Console(newborn) as gdb:
        gdb("optprobe add driver_register -pending do stop")
        assert "driver_register" in gdb("continue"), "the first driver"
        gdb("optprobe delete")
        gdb(FORGETS)
        gdb(f"optprobe add {FIRST_PROGRAM} -pending do stop")
        waits = gdb.probe(1)["reason"]["code"] != "BOOTING"
        said = gdb("continue", 90)
        assert FIRST_PROGRAM in said, said
        assert ("1 of 1 probes in it, what ran before is not counted" in said) == waits, said
        (probe,) = gdb.probes()
        assert probe["hits"] == 1, probe
        assert "optimized" in gdb("optprobe add vfs_read"), "memory is free"
        assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
        gdb("optprobe delete")
    newborn.wait_ready()
    assert not re.search("BUG:|Oops|insecure W.X", newborn.log())
