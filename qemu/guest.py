"""A guest under QEMU: boot it, run commands in it, read its log, reset it, stop it.

    run directory
    ├── gdb.sock       GDB's remote protocol: target remote …/gdb.sock
    ├── qmp.sock       QEMU's control protocol
    ├── channel.sock   the command channel to our init
    ├── snapshots      disk image that snapshots of the whole machine are kept in
    ├── console.log    the kernel log, complete
    ├── qemu.log       what QEMU itself printed
    └── guest.json     the process and the options, for `Guest.find`

Nothing here stops the guest's processors but `pause`, so a debugger may stop and continue the guest
meanwhile; a command then just takes longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType

from gdb_optprobe.guest.channel import READY

from . import health, micro
from .cache import cache_directory, guests_directory
from .channel import Command
from .checkout import INSTALL_IT
from .initramfs import initramfs
from .kernels import busybox, stock_kernel, stock_modules
from .machines import MACHINES, Machine
from .qmp import Qmp, QmpError
from .snapshots import write_image

__all__ = ["Guest", "GuestError", "Options"]

PANIC = "Kernel panic - not syncing"
PR_SET_PDEATHSIG = 1


class GuestError(Exception):
    """The guest did not start, or is not there; the text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a guest boots. None means the architecture's default.

    package: the Debian kernel package to boot where `kernel` is not given.
    suite:   the suite of Debian's that has it; "" for those that the host uses.
    kernel:  a kernel image.
    initrd:  an initramfs; it must run `qemu/init` for `Guest.run`.
    append:  added to the kernel command line.
    smp:     virtual CPUs; 2, or 1 under icount, where QEMU takes turns so rarely that two do not boot.
    icount:  as for QEMU's `-icount`; "shift=0,sleep=off" makes guest time count guest instructions.
    mem:     MiB.
    qemu:    the emulator to run.
    extra:   further arguments for QEMU.
    modules: the kernel's own, of those in the cache, to have as /lib/modules/NAME.ko.
    micro:   boot the bare-metal guest instead of Linux.
    paused:  leave the guest stopped before its first instruction, for a debugger to start.
    """

    arch: str = "x86_64"
    package: str | None = None
    suite: str = ""
    kernel: str | None = None
    initrd: str | None = None
    append: str = ""
    cpu: str | None = None
    smp: int | None = None
    icount: str | None = None
    mem: int = 512
    qemu: str | None = None
    extra: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    micro: bool = False
    paused: bool = False

    @property
    def processors(self) -> int:
        """How many virtual CPUs the guest has."""
        return self.smp or (1 if self.icount or self.micro else 2)

    @property
    def machine(self) -> Machine:
        """The architecture's defaults. GuestError when there is none of that name."""
        if self.arch not in MACHINES:
            raise GuestError(f"no guests of architecture {self.arch}; there are: {', '.join(MACHINES)}")
        return MACHINES[self.arch]


@dataclass
class Guest:
    """A running guest. As a context manager it stops at the end of the block."""

    directory: Path
    options: Options
    pid: int
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _temporary: bool = field(default=False, repr=False)

    @classmethod
    def start(
        cls,
        options: Options | None = None,
        *,
        directory: Path | None = None,
        keep: bool = False,
        wait: bool = True,
        timeout: float = 120.0,
    ) -> Guest:
        """Boot a guest and wait until its init serves commands.

        directory: where its sockets and log go; a temporary one, removed at the end, when not given.
        keep:      let it run on after this process; else it ends with us, whatever ends us.
        wait:      False returns at once; `wait_ready` later.
        timeout:   seconds for the boot.
        GuestError, with the end of the log, when it does not come up.
        """
        options = options or Options()
        command = _command(options)
        place = directory or _temporary_directory()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("gdb.sock", "qmp.sock", "channel.sock", "console.log", "guest.json"):
            (place / name).unlink(missing_ok=True)
        write_image(place / "snapshots")
        process = _launch([*command, *_wiring(options, place)], place, keep)
        guest = cls(place, options, process.pid, process, directory is None)
        (place / "guest.json").write_text(json.dumps({"pid": process.pid, "options": asdict(options)}))
        try:
            guest._wait_for_sockets()
            if wait and not options.paused:
                guest.wait_ready(timeout)
        except BaseException:
            guest.stop()
            raise
        return guest

    @classmethod
    def find(cls, directory: Path) -> Guest:
        """Return the guest that another process left running in `directory`. Raises GuestError when none runs there."""
        try:
            known = json.loads((directory / "guest.json").read_text())
        except FileNotFoundError:
            raise GuestError(f"no guest runs in {directory}") from None
        # Another version of this may have started it, with options of its own.
        ours = {one.name for one in fields(Options)} & known["options"].keys()
        several = {name: tuple(known["options"].get(name, ())) for name in ("extra", "modules")}
        options = Options(**({name: known["options"][name] for name in ours} | several))
        guest = cls(directory, options, known["pid"])
        if not guest.running:
            raise GuestError(f"the guest in {directory} has ended: see its console.log and qemu.log")
        return guest

    @property
    def gdb_socket(self) -> Path:
        """The path for GDB's `target remote`."""
        return self.directory / "gdb.sock"

    @property
    def running(self) -> bool:
        """Whether QEMU is there; a guest stopped by a debugger is running in this sense."""
        if self._process is not None:
            return self._process.poll() is None
        try:
            # The process id may have gone to another program since.
            return str(self.directory).encode() in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return False

    @property
    def stopped(self) -> bool:
        """Whether a debugger has stopped it, now. Raises GuestError, where QEMU does not answer."""
        try:
            with self.qmp() as control:
                return not control.execute("query-status")["running"]
        except (OSError, QmpError) as error:
            raise GuestError(f"QEMU does not answer: {error}") from None

    def wait_ready(self, timeout: float = 120.0, *, after: int = 0) -> None:
        """Wait until the init says it is ready in the log behind the first `after` characters."""
        deadline = time.monotonic() + timeout
        while READY not in self.log()[after:]:
            ended = not self.running  # asked first: a panic may end QEMU
            if PANIC in self.log()[after:]:
                raise GuestError(f"the guest's kernel panicked while it booted:\n{self._tail()}")
            if ended:
                raise GuestError(f"QEMU ended while the guest booted:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise GuestError(f"the guest was not ready after {timeout:g} s:\n{self._tail()}")
            time.sleep(0.02)

    def run(self, command: str, timeout: float = 60.0) -> tuple[int, str]:
        """Run one line in the guest's shell. Return its exit status and output, both streams as one.

        Nothing runs concurrently but what the line itself sends to the background.
        ChannelError after `timeout` seconds; ValueError when `command` is more than one line.
        """
        with contextlib.closing(self.spawn(command)) as running:
            return running.wait(timeout)

    def check(self, command: str, timeout: float = 60.0) -> str:
        """Like `run`, but GuestError unless the command exits with 0."""
        status, output = self.run(command, timeout)
        if status != 0:
            raise GuestError(f"exit status {status} in the guest: {command}\n{output}")
        return output

    def spawn(self, command: str) -> Command:
        """Start one line in the guest's shell and return at once; `wait` on what this returns."""
        return Command(self.directory / "channel.sock", command)

    def log(self) -> str:
        """Return the complete kernel log since the guest was started, over every reset."""
        try:
            return (self.directory / "console.log").read_text(errors="replace").replace("\r\n", "\n")
        except FileNotFoundError:
            return ""

    def problems(self) -> list[str]:
        """Return the lines of the log that report trouble; see `health.problems`."""
        return health.problems(self.log())

    @property
    def healthy(self) -> bool:
        """Whether QEMU runs and the log reports no trouble."""
        return self.running and not self.problems()

    def qmp(self, timeout: float = 10.0) -> Qmp:
        """Return a connection to QEMU's control protocol, for use in a `with` block. timeout: seconds for each answer.
        """
        return Qmp(self.directory / "qmp.sock", timeout)

    def reset(self, timeout: float = 120.0) -> None:
        """Press the reset button and wait for the guest to be ready again."""
        after = len(self.log())
        with self.qmp() as control:
            control.execute("system_reset")
        self.wait_ready(timeout, after=after)

    def pause(self) -> None:
        """Stop every virtual CPU, as a debugger would."""
        with self.qmp() as control:
            control.execute("stop")

    def resume(self) -> None:
        """Let the virtual CPUs run."""
        with self.qmp() as control:
            control.execute("cont")

    def snapshot(self, name: str) -> None:
        """Save the state of the whole machine with its memory. Raises GuestError when QEMU cannot."""
        self._monitor(f"savevm {name}")

    def restore(self, name: str) -> None:
        """Put the machine back to a snapshot. A debugger's knowledge of it is stale then: stop it anew."""
        self._monitor(f"loadvm {name}")

    def stop(self) -> None:
        """End the guest, by QMP and then by force; its log stays unless the directory was a temporary one."""
        if self.running:
            with contextlib.suppress(OSError, QmpError), self.qmp() as control:
                control.execute("quit")
            self._wait_for_end(5.0)
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self._wait_for_end(5.0)
        for name in ("gdb.sock", "qmp.sock", "channel.sock", "guest.json", "snapshots"):
            (self.directory / name).unlink(missing_ok=True)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Guest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _monitor(self, line: str) -> None:
        with self.qmp(timeout=60.0) as control:
            said = control.monitor(line)
        # A snapshot that is restored asks again for what TCG has not.
        errors = [each for each in said.splitlines() if each.strip() and not each.lower().startswith("warning:")]
        if errors:
            raise GuestError("\n".join(errors))

    def _wait_for_sockets(self) -> None:
        deadline = time.monotonic() + 10.0
        while not all((self.directory / name).exists() for name in ("gdb.sock", "qmp.sock", "channel.sock")):
            if not self.running or time.monotonic() > deadline:
                raise GuestError(f"QEMU did not start:\n{self._tail()}")
            time.sleep(0.01)

    def _wait_for_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            time.sleep(0.01)

    def _tail(self) -> str:
        printed = self.directory / "qemu.log"
        lines = self.log().splitlines()[-20:] + (
            printed.read_text(errors="replace").splitlines()[-5:] if printed.exists() else []
        )
        return "\n".join(f"    {line}" for line in lines)


def _temporary_directory() -> Path:
    """Return a new run directory; those of guests that ended without `stop`, by a signal, are removed."""
    for place in guests_directory().glob("guest-*"):
        with contextlib.suppress(OSError):
            pid = json.loads((place / "guest.json").read_text())["pid"]
            if not Guest(place, Options(), pid).running:
                shutil.rmtree(place)
    return Path(tempfile.mkdtemp(dir=guests_directory(), prefix="guest-"))


def _command(options: Options) -> list[str]:
    """Return the command line of the emulator."""
    machine = options.machine
    qemu = options.qemu or machine.qemu
    if shutil.which(qemu) is None:
        raise GuestError(f"{qemu} is not installed; {INSTALL_IT}")
    command = [qemu, "-nodefaults", "-display", "none", *machine.board]
    command += ["-cpu", options.cpu or machine.cpu, "-m", str(options.mem), "-smp", str(options.processors)]
    if options.icount:
        command += ["-icount", options.icount]
    if options.paused:
        command += ["-S"]
    return [*command, *_boot_files(options), *options.extra]


def _boot_files(options: Options) -> list[str]:
    machine = options.machine
    if options.micro:
        return ["-kernel", str(options.kernel or micro.build(options.arch))]
    package = options.package or machine.package
    kernel = options.kernel or str(stock_kernel(package, machine.debian, options.suite).image)
    initrd = options.initrd or str(_our_initramfs(machine, package, options.suite, options.modules))
    # The kernel's tests of its own ciphers take a fifth of a boot.
    ours = f"console={machine.console} ignore_loglevel channel={machine.channel} cryptomgr.notests"
    append = f"{ours} {options.append}".strip()
    return ["-kernel", kernel, "-initrd", initrd, "-append", append]


def _our_initramfs(machine: Machine, package: str, suite: str, modules: Sequence[str]) -> Path:
    """Return the initramfs in the cache, made anew when our init, busybox or the modules are newer."""
    of = f"-{suite}-{package}-{'-'.join(modules)}" if modules else ""
    place = cache_directory() / f"initramfs-{machine.debian}{of}.gz"
    files = stock_modules(package, machine.debian, modules, suite) if modules else {}
    content = initramfs(busybox(machine.debian), {f"lib/modules/{name}.ko": data for name, data in files.items()})
    if not place.exists() or place.read_bytes() != content:
        new = place.with_suffix(f".{os.getpid()}")
        new.write_bytes(content)
        new.rename(place)
    return place


def _wiring(options: Options, place: Path) -> list[str]:
    """Return the arguments for the guest's serial lines and sockets, all in its run directory."""

    def listening(name: str) -> list[str]:
        return ["-chardev", f"socket,id={name},path={place}/{name}.sock,server=on,wait=off"]

    return [
        *("-chardev", f"file,id=console,path={place}/console.log", "-serial", "chardev:console"),
        *("-drive", f"if=none,id=snapshots,format=qcow2,file={place}/snapshots"),
        *listening("channel"),
        *options.machine.second,
        *listening("gdb"),
        "-gdb",
        "chardev:gdb",
        *listening("qmp"),
        "-mon",
        "chardev=qmp,mode=control",
    ]


def _launch(command: list[str], place: Path, keep: bool) -> subprocess.Popen[bytes]:
    # The signal follows the thread that started the process, so only the main thread may ask for it.
    bound = not keep and threading.current_thread() is threading.main_thread()
    with (place / "qemu.log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_end_with_parent if bound else None,
        )


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
