"""Every command of the pages is typed as a reader would type it, and prints what the page shows.

OPTPROBE_UPDATE=1 writes what was printed into the page where it differs, but for ppc64le.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from qemu.channel import ChannelError, Command
from qemu.debugger import PATIENTLY
from qemu.guest import Guest
from qemu.kernels import MODULES
from tests.booted import answer, calls
from tests.booted.conftest import running, skip_unknown
from tests.booted.gdb import COLUMNS, ROOT, Console
from tests.booted.progress import WAITS
from tests.booted.test_examples import cloud_image
from tests.docs.sessions import ANY, CALLED, COLLECTOR, PAGES, Step, blocks, difference

UPDATE = bool(os.environ.get("OPTPROBE_UPDATE"))
ONE_SESSION = "tutorial.md"
"""The blocks of the other pages are each on their own: their probes are removed, and numbers begin anew."""
ACCELERATOR = ("--extra=-accel", "--extra=tcg,thread=single")
"""See conftest.py."""
ON_PPC64LE = (
    (re.compile(r"\bcount(?= [<>=]|\)|=\d)|(?<=\$pid, )count\b|(?<== )count\b"), "$arg3"),
    (re.compile(r"\bfilename\b"), "$arg2"),
    (re.compile(r"do_syscall_64"), "system_call_exception"),
    (re.compile(r"entry_SYSCALL_64_after_hwframe\+\w+"), "…"),
    (re.compile(r"entry_SYSCALL_64_after_hwframe"), "system_call_vectored_common"),
)
"""What the pages have for x86-64, and what is there on ppc64le: the kernel there has no types."""
DISK = ("-drive", "if=none,id=disk,driver=null-co,read-zeroes=on,size=16M", "-device", "nvme,drive=disk,serial=1")
"""A disk that a page tells how to have, where the kernel has its driver: arguments for QEMU."""
LOCAL_ENTRY = "+0x8"
PROGRAM = "/tmp/calls"
"""A program with symbols, which the guest has none of."""
VMLINUX = "vmlinux"
"""A file that the guests of the suite do not have."""
OTHERS: Mapping[str, Collection[str]] = {
    "vng": ("--build", "--run", ".", "--debug", "--disable-kvm"),
    "virsh": ("start", "probed"),
    "qemu-system-x86_64": tuple(word for word in cloud_image() if word != "-S"),
}
"""Programs that boot other tools' guests, with arguments that were tried: a guest of the suite is in their place."""
SHOWN = "/tmp/optprobe-1000"
"""What a page has for the folder of the guest's sockets."""
PATIENCE = 60.0
_QUIET = ("set confirm off", "set pagination off", "set style enabled off", PATIENTLY)
_WRAPPED = re.compile(rf"(?m)^(.{{{COLUMNS}}})\n")
_LEFT_OUT = re.compile(rf"(?m)^(?:Continuing\.|\[Switching to .*\]|(?:{'|'.join(WAITS)}).*)\n")
_SOCKET = re.compile(r"(?<=target remote )[^\s']+")
_NUMBER = re.compile(r"(?:\bProbes? |\bhit optprobe |# optprobe )\d+(?:-\d+)?\b")
_ROW = re.compile(r"(?m)^(?=[ \d]*\d )[ \d]{3}(?= )")
_TABLES = ("optprobe report", "optprobe list")
_LAST = "python from gdb_optprobe.debugger import attach; print(attach.current_session().registry._next - 1)"


class Reader:
    """What types the blocks: one guest, and a GDB from the first command of GDB's until a page ends it."""

    def __init__(self, arch: str, folder: Path) -> None:
        self.arch = arch
        self._environment = {**os.environ, "TMPDIR": str(folder)}
        self._folder = folder
        self._place = folder / f"optprobe-{os.getuid()}" / "default"
        self._started = ""
        self._guest: Guest | None = None
        self._gdb: Console | None = None
        self._work: Command | None = None
        self._files: dict[str, Path] = {}
        """Files of the page, by the names that it has for them."""
        self._before = 0
        """The number of the last probe before this block, where numbers begin anew."""

    def type(self, step: Step) -> str:
        """Type a command, and what is typed while it runs. Return what was printed, without what a page leaves out."""
        printed = _LEFT_OUT.sub("", _WRAPPED.sub(r"\1", self._type(step)))
        printed = _NUMBER.sub(lambda found: re.sub(r"\d+", self._anew, found[0]), printed)
        if step.command.startswith(_TABLES):
            printed = _ROW.sub(lambda row: re.sub(r"\d+", self._anew, row[0]).strip().rjust(3), printed)
        if self.arch == "ppc64le":
            printed = printed.replace(LOCAL_ENTRY, "")
        if not step.shown and step.interrupted:
            return ""
        return printed if COLLECTOR in "\n".join(step.shown) else printed.partition(f"\n{COLLECTOR}")[0]

    def _type(self, step: Step) -> str:
        if step.machine == "host":
            return self._file(step) if step.command.startswith("cat ") else self._host(step.command)
        typed = " ".join(str(self._files.get(word, word)) for word in step.command.split(" "))
        if typed.startswith("target remote "):
            self.close()
            self._gdb = self._connect()
        gdb = self.gdb
        if typed.startswith("quit"):
            gdb.send(typed)
            printed = gdb.rest()
            self.close()
            return printed.removeprefix(typed).lstrip("\n")
        if typed.startswith("add-symbol-file "):
            return gdb(typed.replace(" ", f" {self._folder}/")).replace(f"{self._folder}/", "")
        if typed.startswith("optprobe report -html "):
            *words, file = typed.split()
            return gdb(" ".join([*words, f"{self._folder}/{file}"])).replace(f"{self._folder}/", "")
        if typed.startswith("optprobe export "):
            words = typed.split(" ")
            return gdb(" ".join([*words[:3], f"{self._folder}/{words[3]}", *words[4:]])).replace(f"{self._folder}/", "")
        if not (step.during or step.interrupted):
            return self._spelled(typed, gdb(_SOCKET.sub(str(self.guest.gdb_socket), typed), PATIENCE))
        gdb.send(typed)
        printed = gdb.until(r"Continuing\.\n").removeprefix(typed).lstrip("\n")
        for command in step.during:
            self._work = self.guest.spawn(command)
            if step.interrupted or command != step.during[-1]:
                printed += self._finish()
        if step.interrupted:
            printed += self._finish()
            return printed + gdb.interrupt()
        return printed + gdb.until(r"\(gdb\) $", PATIENCE).removesuffix("(gdb) ")

    @property
    def guest(self) -> Guest:
        if self._guest is None:
            self._host("scripts/guest start")
        assert self._guest is not None
        return self._guest

    @property
    def gdb(self) -> Console:
        if self._gdb is None:
            self._gdb = self._connect()
            for line in self._gdb.lines():
                self._gdb(line)
        return self._gdb

    def _connect(self, *options: str) -> Console:
        quiet = (word for line in _QUIET for word in ("-iex", line))
        return Console(self.guest, *quiet, *options, bare=True)

    def _anew(self, number: re.Match[str]) -> str:
        return str(int(number[0]) - self._before)

    def clean(self) -> None:
        """Remove probes and breakpoints, let the guest's command end, and count the numbers of probes anew."""
        self._before = 0
        if self._gdb is not None:
            self._before = int(self._gdb(_LAST))
            self._gdb("optprobe delete")
            self._gdb("delete")
            if self._work is not None:
                self._gdb.send("continue")
                self._finish()
                self._gdb.interrupt()

    def close(self) -> None:
        """End GDB, whatever it does, and let the guest's command end."""
        if self._gdb is not None:
            with self._gdb:
                self._gdb = None
        self._finish()

    def stop(self) -> None:
        self.close()
        if self._guest is not None:
            self._guest.stop()
            running.remove(self._guest)

    def _finish(self) -> str:
        """Wait for the guest's command, and return what it printed."""
        if self._work is None:
            return ""
        _, printed = self._work.wait(PATIENCE)
        self._work = None
        return printed

    def _file(self, step: Step) -> str:
        """Have the file that a page shows, for the commands behind."""
        name, text = step.command.removeprefix("cat "), "\n".join(step.shown)
        self._files[name] = self._folder / name
        self._files[name].write_text(text)
        return text

    def _host(self, typed: str) -> str:
        """Run a command of the host's. The guest is started once, and stopped by `stop`."""
        words = shlex.split(typed)
        if words[0] in OTHERS:
            return other(words)
        if words[:2] == ["optprobe", "gdb"]:
            there = [word for word in words[2:] if word != VMLINUX]
            words = ["gdb", "-ex", f"source {ROOT}/scripts/optprobe.py", *there]
        if words[0].startswith("gdb"):
            if self._gdb is not None:
                self.close()
                self._before = 0
            found = [_SOCKET.sub(str(self.guest.gdb_socket), word) for word in words[1:]]
            self._gdb = self._connect(*found)
            return self._spelled(typed, self._gdb.transcript.removesuffix("(gdb) "))
        assert words[0] == "scripts/guest", f"nothing runs this: {typed}"
        if words[1] == "stop":
            self.close()
            return ""
        if words[1] == "start" and self._guest is None:
            disk = [f"--extra={word}" for word in DISK] if self.arch == "x86_64" else []
            options = (*ACCELERATOR, *disk, "--arch", self.arch, "--modules", *MODULES)
            started = self._run([*words, *options])
            self._started = started.replace(str(self._place.parent), SHOWN).replace(str(ROOT), ANY)
            self._guest = Guest.find(self._place)
            running.append(self._guest)
            program = calls.build(self._folder, int(CALLED[PROGRAM]), self.arch)
            answer.put(self._guest, program.rename(self._folder / Path(PROGRAM).name), PROGRAM)
        return self._started if words[1] == "start" else self._run(words)

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(words, cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _spelled(self, typed: str, printed: str) -> str:
        """Return what was printed with the socket as the page has it."""
        socket = _SOCKET.search(typed)
        return printed.replace(str(self.guest.gdb_socket), socket[0]) if socket else printed


@pytest.fixture(scope="module", params=["x86_64", "ppc64le"])
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    skip_unknown(request.param)
    with tempfile.TemporaryDirectory() as folder:
        found = Reader(request.param, Path(folder))
        try:
            yield found
            assert found.guest.problems() == []
        finally:
            found.stop()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_page_shows_is_what_is_printed(reader: Reader, page: Path) -> None:
    wrong: list[tuple[Step, str]] = []
    told: list[str] = []
    for block in blocks(page):
        if block.left_out or (block.x86_only and reader.arch != "x86_64"):
            print(f"not run: {block.where}: {block.left_out or 'x86-64 only'}")
            continue
        for step in block.steps:
            if reader.arch == "ppc64le" and step.machine == "gdb":
                step = on_ppc64le(step)
            where = f"{page.name}:{step.place.start}: {step.command}"
            try:
                printed = reader.type(step)
            except (AssertionError, ChannelError) as error:
                told.append(f"{where}\n{error}")
                reader.close()
                break
            is_its_machine = reader.arch == "x86_64"
            if differs := difference(step.shown, printed.splitlines(), block.typed, is_its_machine=is_its_machine):
                wrong.append((step, printed))
                told.append(f"{where}\n{differs}\nIt printed:\n{printed}")
        if page.name != ONE_SESSION:
            reader.clean()
    if told:
        reader.close()
    reader.clean()
    if UPDATE and reader.arch == "x86_64":
        rewrite(page, wrong)
    assert not told, "\n\n".join(told)


def other(words: Sequence[str]) -> str:
    """Check that what another tool is given has been tried; it prints nothing here."""
    untried = [word for word in words[1:] if word not in OTHERS[words[0]]]
    assert not untried, f"{words[0]} was never tried with {untried}"
    return ""


def on_ppc64le(step: Step) -> Step:
    if step.command.startswith("optprobe script "):
        return step  # its arguments go by number everywhere

    def there(text: str) -> str:
        for pattern, other in ON_PPC64LE:
            text = pattern.sub(other, text)
        return text

    return replace(step, command=there(step.command), shown=tuple(map(there, step.shown)))


def rewrite(page: Path, wrong: Sequence[tuple[Step, str]]) -> None:
    """Put what was printed in the place of what the page shows."""
    lines = page.read_text().splitlines()
    for step, printed in reversed(wrong):
        typed = [f"guest# {command}" for command in step.during] + ["^C"] * step.interrupted
        apart = [""] * bool(step.during)
        lines[step.place.start : step.place.stop] = [*typed, *apart, *printed.strip("\n").splitlines()]
    page.write_text("\n".join(lines) + "\n")
