"""A guest that has bpftrace, and a shell and libraries for tools to probe: Debian's packages in its initramfs.

    packages of a suite ── what the programs need, by their ELF headers ──► files of the initramfs, some 200 MB
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from . import debian
from .cache import cache_directory, locked
from .guest import Guest, Options
from .initramfs import initramfs
from .kernels import MODULES, busybox, stock_modules
from .machines import MACHINES
from .versions import kernel

__all__ = ["is_running", "options", "running_bpftrace", "tools"]

MEMORY = 1024
"""MiB: the initramfs is unpacked beside itself."""
DISK = (
    *("-blockdev", "driver=null-co,node-name=disk,size=67108864,read-zeroes=on"),
    *("-device", "nvme,serial=optprobe,drive=disk"),
)
"""/dev/nvme0n1, which Debian's cloud kernels know without a module. It forgets what is written."""
PACKAGES = ("bpftrace", "bash", "libc-bin", "openssl", "procps", "zstd")
PROGRAMS = (
    *("usr/bin/bpftrace", "bin/bash", "usr/bin/getent", "usr/bin/openssl", "usr/bin/free", "usr/bin/zstd"),
    "sbin/ldconfig",
)
FOLDERS = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib64", "bin", "usr/bin")
BESIDE = re.compile(r"(usr/)?lib/x86_64-linux-gnu/(libnss_files|libpthread)\S*|etc/ssl/openssl\.cnf")
"""What programs open by name, which their headers do not tell."""
NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]|interpreter: (.+)\]")
HEADERS = {
    "sys/socket.h": "#define AF_INET 2\n#define AF_INET6 10\n",
    "linux/socket.h": "#define AF_INET 2\n#define AF_INET6 10\n",
    "linux/sched.h": "#define TASK_RUNNING 0\n",
    "net/sock.h": "",
    "net/tcp_states.h": "",
}
"""What tools of 0.17 include beside the kernel's types, which they have by BTF."""
CALLS = """
.globl _start
_start: mov $35, %eax; lea time(%rip), %rdi; xor %esi, %esi; syscall
        mov $105, %eax; mov $1000, %edi; syscall
        mov $60, %eax; xor %edi, %edi; syscall
time:   .quad 0, 100000000
"""
"""nanosleep and setuid, which no program of the guest calls as the tools see it."""
LIBRARIES = "mkdir -p /etc && /sbin/ldconfig /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu"
"""Makes the cache in which bpftrace looks for libraries that have no path."""
OUT, PID = "/tmp/theirs", "/tmp/their-pid"
GONE = f"read p < {PID}; [ -e /proc/$p/exe ] || break; sleep 0.1"
READY = f"for i in $(seq 600); do [ $(wc -l < {OUT}) -ge {{lines}} ] && break; {GONE}; done; sleep 1"
END = f"read p < {PID}; kill -INT $p; for i in $(seq 200); do {GONE}; done; kill -9 $p"
TIMEOUT = 240.0
TOOLS = re.compile(r"usr/sbin/(.+\.bt)")


def tools(suite: str) -> Mapping[str, Path]:
    """Return the tools that a suite's package has, by their names without `.bt`; only it is fetched. FetchError."""
    place = cache_directory() / "bpftrace" / suite
    if not place.is_dir():
        with tempfile.TemporaryDirectory() as work:
            package = debian.fetch("bpftrace", "amd64", Path(work), suite)
            found = debian.package_files(package, lambda path: TOOLS.fullmatch(path) is not None)
        place.mkdir(parents=True)
        for path, data in found.items():
            (place / Path(path).name).write_bytes(data)
    return {path.stem: path for path in sorted(place.glob("*.bt"))}


def options(suite: str, kernel_name: str) -> Options:
    """Return a guest with a kernel of `versions` that has the programs of a suite. Raises FetchError."""
    pinned = kernel(kernel_name)
    assert pinned.arch == "x86_64"
    initrd = str(_initramfs(suite, pinned.package, pinned.suite))
    return Options(package=pinned.package, suite=pinned.suite, initrd=initrd, mem=MEMORY, extra=DISK)


@contextmanager
def running_bpftrace(guest: Guest, arguments: str, lines: int = 1) -> Iterator[Callable[[], str]]:
    """Have bpftrace run in the guest, ready when it has printed so many lines; it ends when its output is asked for.

    Raises GuestError.
    """
    guest.check(f"[ -e /etc/ld.so.cache ] || {LIBRARIES}", timeout=TIMEOUT)
    start = f"rm -f {OUT}; /usr/bin/bpftrace {arguments} > {OUT} 2>&1 & echo $! > {PID}"
    guest.check(f"{start}; {READY.format(lines=lines)}", timeout=TIMEOUT)
    ended: list[str] = []

    def end() -> str:
        if not ended:
            ended.append(guest.check(f"({END}) 2>/dev/null; cat {OUT}", timeout=TIMEOUT))
        return ended[0]

    try:
        yield end
    finally:
        end()


def is_running(guest: Guest) -> bool:
    """Return whether bpftrace has not ended by itself."""
    return guest.run(f"read p < {PID}; [ -e /proc/$p/exe ]", timeout=TIMEOUT)[0] == 0


def _initramfs(suite: str, package: str, of: str) -> Path:
    made_of = zlib.crc32(repr((PACKAGES, PROGRAMS, BESIDE, HEADERS, CALLS)).encode())
    place = cache_directory() / f"initramfs-bpftrace-{suite}-{of}-{package}-{made_of:08x}.gz"
    files = {f"lib/modules/{name}.ko": data for name, data in stock_modules(package, "amd64", MODULES, of).items()}
    with locked(place.with_name(f".{place.name}.lock")):
        if not place.is_file():
            new = place.with_suffix(f".{os.getpid()}")
            new.write_bytes(initramfs(busybox(MACHINES["x86_64"].debian), {**files, **_files(suite)}))
            new.rename(place)
    return place


def _files(suite: str) -> Mapping[str, bytes]:
    """Return the programs, the tools and the libraries that they need, by their paths in the guest."""
    root = _root(suite)
    found: dict[str, Path] = {}
    waiting = [*(root / one for one in PROGRAMS), *_matching(root, BESIDE), *_matching(root, TOOLS)]
    while waiting:
        path = waiting.pop()
        name = str(path.relative_to(root))
        if name not in found and path.is_file():
            found[name] = path.resolve() if path.resolve().is_relative_to(root) else path
            waiting += [_library(root, needed) for needed in _needed(found[name])]
    headers = {f"usr/include/{name}": text.encode() for name, text in HEADERS.items()}
    return {name: path.read_bytes() for name, path in found.items()} | headers | {"bin/calls": _calls()}


def _calls() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["as", "--64", "-o", f"{folder}/calls.o"], input=CALLS, text=True, check=True)
        subprocess.run(["ld", "-m", "elf_x86_64", "-static", "-o", f"{folder}/calls", f"{folder}/calls.o"], check=True)
        return Path(f"{folder}/calls").read_bytes()


def _matching(root: Path, wanted: re.Pattern[str]) -> Iterator[Path]:
    return (path for path in root.rglob("*") if wanted.fullmatch(str(path.relative_to(root))))


def _needed(path: Path) -> Iterator[str]:
    """Yield the names of what an ELF file needs; nothing for another file."""
    said = subprocess.run(["readelf", "-dl", str(path)], capture_output=True, text=True, check=False).stdout
    return (found[1] or found[2].lstrip("/") for found in NEEDED.finditer(said))


def _library(root: Path, name: str) -> Path:
    """Return a library by its name, or the interpreter by its path."""
    places = (root / name, *(root / folder / name for folder in FOLDERS))
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise debian.FetchError(f"no package of {root.name} has {name}")
    return found


@cache
def _root(suite: str) -> Path:
    """Return the folder with the packages unpacked, from the cache or the archive. Raises FetchError."""
    place = cache_directory() / "roots" / f"bpftrace-{suite}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.with_name(f".{place.name}.lock")):
        if not place.is_dir():
            debian.make_root(PACKAGES, "amd64", suite, place)
    return place


