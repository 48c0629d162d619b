"""The pinned versions that scripts/matrix tries: Debian's kernels, and GDBs and QEMUs of other suites than the host's.

    versions.toml ──► Pinned ──► kernel(name)        an image in the cache
                                 gdb(name)           a program that runs on this machine
                                 qemu(name, arch)    likewise

A program of another suite needs the C library of that suite. It is unpacked into a folder of the cache with all that it
depends on, and run by that folder's own loader: no root is needed, and paths mean what they mean to other programs.
"""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from . import debian
from .cache import cache_directory, locked
from .machines import MACHINES

__all__ = ["Pinned", "gdb", "kernel", "names", "qemu"]

FILE = Path(__file__).with_name("versions.toml")
PACKAGES = "amd64"
"""The architecture of the machine that programs of other suites run on."""
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio")
LOADERS = ("lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A package at a version.

    package: NAME=VERSION, or the suite's current name where that version is `gone`.
    """

    name: str
    arch: str
    suite: str
    package: str
    gone: bool


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


def names() -> dict[str, tuple[str, ...]]:
    """Return the names of the kernels, gdb and qemu in the file."""
    return {kind: tuple(rows) for kind, rows in _file().items()}


def arch(name: str) -> str:
    """Return the architecture of a kernel of the file."""
    return str(_file()["kernels"][name]["arch"])


@cache
def kernel(name: str) -> Pinned:
    """Return the package of a kernel, the suite's current one where the pinned one is gone. Raises FetchError."""
    row = _file()["kernels"][name]
    arch = MACHINES[row["arch"]].debian
    package = f"{row['package']}={row['version']}"
    held = (cache_directory() / "kernels" / f"{row['suite']}-{arch}" / package).is_dir()
    gone = not held and not debian.has(package, arch, row["suite"])
    return Pinned(name, row["arch"], row["suite"], row["current"] if gone else package, gone)


def gdb(name: str) -> Path:
    """Return the program of a GDB, fetched when the cache does not hold it. Raises FetchError."""
    row = _file()["gdb"][name]
    program = "gdb-multiarch" if "gdb-multiarch" in row["packages"] else "gdb"
    return _program(f"gdb-{name}", row, program, ())


def qemu(name: str, arch: str) -> Path:
    """Return the emulator of an architecture, fetched when the cache does not hold it. Raises FetchError."""
    return _program(f"qemu-{name}", _file()["qemu"][name], MACHINES[arch].qemu, ("usr/share/qemu", "usr/share/seabios"))


def _program(name: str, row: dict[str, Any], program: str, data: tuple[str, ...]) -> Path:
    """Return a script that runs a program of a suite; data: the folder for its files (`-L`)."""
    # A colon parts folders in a loader's list of them.
    root = cache_directory() / "roots" / f"{name}-{row['version']}".replace(":", "-")
    with locked(root.with_name(f".{root.name}.lock")):
        if not root.is_dir():
            _make_root(row, root)
        script = root / f"run-{program}"
        if not script.exists():
            script.write_text(_script(root, program, data))
            script.chmod(0o755)
    return script


def _make_root(row: dict[str, Any], root: Path) -> None:
    suite = row["suite"]
    wanted = [f"{package}={row['version']}" for package in row["packages"]]
    if not all(debian.has(package, PACKAGES, suite) for package in wanted):
        wanted = list(row["packages"])
    debian.make_root(wanted, PACKAGES, suite, root)


def _script(root: Path, program: str, data: tuple[str, ...]) -> str:
    loader = next((path for each in LOADERS if (path := root / each).exists()), None)
    if loader is None:
        raise debian.FetchError(f"{root} holds no loader: remove that folder and try again")
    file = root / "usr/bin" / program
    # GDB finds its own files, and its Python's, from the name it is called by.
    words = [str(loader), "--argv0", str(file), "--library-path", ":".join(str(root / path) for path in LIBRARIES)]
    words += [str(file), *(word for path in data for word in ("-L", str(root / path)))]
    return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
