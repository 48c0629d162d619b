"""The guests themselves: they boot, run commands, tell when they are ill, and end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qemu.cache import guests_directory
from qemu.channel import ChannelError
from qemu.guest import Guest, GuestError, Options
from qemu.machines import MACHINES
from tests.booted.addresses import address_of
from tests.booted.conftest import Boot

each_architecture = pytest.mark.parametrize("arch", sorted(MACHINES))
GUEST = Path(__file__).parents[2] / "scripts" / "guest"


def test_runs_a_command(each_linux: Guest) -> None:
    assert each_linux.run("echo hello; exit 3") == (3, "hello\n")


def test_a_command_s_output_is_exact(each_linux: Guest) -> None:
    assert each_linux.run(r"printf 'a\r\n\tb'; echo error >&2") == (0, "a\r\n\tberror\n")


def test_much_output(each_linux: Guest) -> None:
    assert each_linux.check("seq 20000") == "".join(f"{n}\n" for n in range(1, 20001))


def test_two_workloads_at_once(each_linux: Guest) -> None:
    output = each_linux.check("for i in 1 2; do dd if=/dev/zero of=/dev/null bs=1 count=1000 & done; wait")
    assert output.count("1000+0 records in") == 2


def test_a_command_under_way(each_linux: Guest) -> None:
    command = each_linux.spawn("sleep 0.3; echo slept")
    with pytest.raises(ChannelError, match=r"did not finish in 0\.05 s: sleep"):
        command.wait(timeout=0.05)
    assert command.wait() == (0, "slept\n")


def test_the_command_after_one_given_up(each_linux: Guest) -> None:
    abandoned = each_linux.spawn("sleep 0.3; echo late")
    time.sleep(0.1)
    abandoned.close()
    assert each_linux.run("echo next") == (0, "next\n")


def test_commands_while_what_others_left_running_ends(linux: Guest) -> None:
    """The end of a process that nobody waits for any more makes the guest forget no line."""
    linux.check("for n in $(seq 100); do usleep $((n * 20000)) >/dev/null 2>&1 </dev/null & done")
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        assert linux.check(f"echo {'x' * 400}", timeout=5).strip() == "x" * 400


def test_a_vcpu_that_waits_for_its_turn_is_no_lockup(each_linux: Guest) -> None:
    """Nor does a boot spend a fifth of its time in the kernel's tests of its own ciphers."""
    assert each_linux.check("cat /proc/sys/kernel/watchdog_thresh") == "30\n"
    assert each_linux.check("cat /sys/module/cryptomgr/parameters/notests") == "Y\n"


def test_a_command_is_one_line(each_linux: Guest) -> None:
    with pytest.raises(ValueError, match="one line"):
        each_linux.run("true\nfalse")


def test_a_failed_command(each_linux: Guest) -> None:
    with pytest.raises(GuestError, match="exit status 1 in the guest: cat /none"):
        each_linux.check("cat /none")


def test_while_stopped_by_a_debugger(each_linux: Guest) -> None:
    each_linux.pause()
    command = each_linux.spawn("echo done")
    with pytest.raises(ChannelError):
        command.wait(timeout=0.2)
    each_linux.resume()
    assert command.wait() == (0, "done\n")


def test_has_what_tracers_need(each_linux: Guest) -> None:
    each_linux.check("test -w /sys/kernel/tracing/kprobe_events && test -d /sys/kernel/debug/kprobes")
    assert each_linux.check("nproc") == "2\n"


def test_the_log_is_complete(each_linux: Guest) -> None:
    assert each_linux.log().count("Linux version") == 1
    assert "] Freeing unused kernel " in each_linux.log()


@pytest.mark.parametrize(
    ("cpu", "append", "mmu"),
    [("power10", "", "Radix"), ("power10", "disable_radix", "Hash"), ("power9", "", "Radix")],
)
def test_ppc64le_processors_and_page_tables(boot: Boot, cpu: str, append: str, mmu: str) -> None:
    # One vCPU: in one thread for two, a vCPU that waits for the other to change the hash table waits for minutes.
    guest = boot(arch="ppc64le", cpu=cpu, append=append, smp=1)
    model, tables = guest.check("awk -F': ' '/^cpu|^MMU/ { print $2 }' /proc/cpuinfo").splitlines()
    assert model.startswith(cpu.upper()) and tables == mmu
    assert guest.healthy


def test_page_table_isolation(boot: Boot) -> None:
    guest = boot(cpu="Nehalem")
    assert guest.check("cat /sys/devices/system/cpu/vulnerabilities/meltdown") == "Mitigation: PTI\n"
    assert guest.healthy


def test_tells_of_an_oops(boot: Boot) -> None:
    guest = boot()
    assert guest.healthy
    guest.run("echo WARNING: of a test >/dev/kmsg")
    assert [line.split("] ")[1] for line in guest.problems()] == ["WARNING: of a test"]
    assert guest.running and not guest.healthy


def test_kernel_address_randomization(linux: Guest, boot: Boot) -> None:
    assert address_of(boot(append="nokaslr"), "_text") == 0xFFFFFFFF81000000
    assert linux.check("grep -c nokaslr /proc/cmdline || true") == "0\n"


@each_architecture
def test_reset(fresh: Boot, arch: str) -> None:
    guest = fresh(arch=arch)
    guest.check("touch /tmp/before")
    guest.reset()
    assert guest.run("test -e /tmp/before")[0] == 1


@each_architecture
def test_one_cpu_and_exact_time(boot: Boot, arch: str) -> None:
    guest = boot(arch=arch, icount="shift=0,sleep=off")
    assert guest.check("nproc") == "1\n"


def test_qemu_does_not_start() -> None:
    with pytest.raises(GuestError, match=r"QEMU (did not start|ended).*\n.*unable to find CPU model"):
        Guest.start(Options(cpu="none", micro=True))


def test_a_guest_that_is_slow() -> None:
    with pytest.raises(GuestError, match=r"not ready after 0\.01 s:"):
        Guest.start(timeout=0.01)


@each_architecture
def test_a_guest_that_panics(arch: str) -> None:
    with pytest.raises(GuestError, match=r"panicked while it booted:\n(.|\n)*not syncing: "):
        Guest.start(Options(arch=arch, append="rdinit=/none init=/none"))


@each_architecture
def test_snapshot(fresh: Boot, arch: str) -> None:
    guest = fresh(arch=arch)
    guest.check("echo before >/tmp/file")
    guest.snapshot("clean")
    guest.check("echo after >/tmp/file")
    guest.restore("clean")
    assert guest.check("cat /tmp/file") == "before\n"
    assert guest.healthy
    with pytest.raises(GuestError, match="does not exist"):
        guest.restore("none")


def test_kept_for_another_process(tmp_path: Path) -> None:
    def guest(*arguments: str) -> subprocess.CompletedProcess[str]:
        name = ["--name", f"test-{os.getpid()}"]
        command = [sys.executable, str(GUEST), arguments[0], *name, *arguments[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    assert "is up" in guest("start").stdout
    try:
        assert "it runs already" in guest("start").stderr
        again = guest("run", "echo hello; exit 5")
        assert (again.stdout, again.returncode) == ("hello\n", 5)
        assert "Linux version" in guest("log").stdout
    finally:
        assert guest("stop").returncode == 0
    assert guest("run", "true").returncode == 1
    shutil.rmtree(guests_directory() / f"test-{os.getpid()}")


def test_ends_with_the_process_that_booted_it() -> None:
    script = (
        "from qemu.guest import *; g = Guest.start(Options(micro=True)); print(g.pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=GUEST.parents[1],
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        process.kill()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.02)
    pytest.fail("QEMU runs on")
