"""The Debian packages that the host needs, and how they are installed.

Run as a program (`python3 -m qemu.packages`) it installs what is missing, or without root prints the line
that does. The guests' own parts (kernels, busybox-static) are no part of this: they come without root, see
`kernels`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from .cache import say

__all__ = ["NEEDS", "Need", "install", "install_line", "main", "missing"]


@dataclass(frozen=True, slots=True)
class Need:
    """A Debian package, and how to see that it is installed, from any source.
    programs: on the PATH; modules: of this Python.
    """

    package: str
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        return all(map(shutil.which, self.programs)) and all(map(importlib.util.find_spec, self.modules))


NEEDS = (
    Need("qemu-system-x86", programs=("qemu-system-x86_64",)),
    Need("qemu-system-ppc", programs=("qemu-system-ppc64",)),
    Need("qemu-system-arm", programs=("qemu-system-aarch64",)),
    Need("gdb-multiarch", programs=("gdb-multiarch",)),
    Need("binutils", programs=("as", "ld", "objcopy")),
    Need("binutils-powerpc64le-linux-gnu", programs=("powerpc64le-linux-gnu-as", "powerpc64le-linux-gnu-ld")),
    Need("binutils-aarch64-linux-gnu", programs=("aarch64-linux-gnu-as", "aarch64-linux-gnu-ld")),
    Need("qemu-user", programs=("qemu-ppc64le",)),
    Need("python3-venv", modules=("venv", "ensurepip")),
)


def missing(needs: Iterable[Need] = NEEDS) -> list[str]:
    """Return the packages that are missing, by their programs or modules."""
    return [need.package for need in needs if not need.met]


def install_line(packages: Iterable[str]) -> str:
    """Return what root types to install the packages."""
    return f"apt-get install --no-install-recommends -y {' '.join(packages)}"


def install(packages: list[str], needs: Iterable[Need] = NEEDS) -> str | None:
    """Install packages as root. Return None if all needs are met afterwards, else the error.

    `apt-get update` may fail for a source that has nothing to do with us, so only the outcome counts.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    say("fetching Debian's package lists")
    update = subprocess.run(
        ["apt-get", "-q", "update"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    say(f"installing {' '.join(packages)} (up to a minute)")
    result = subprocess.run(
        install_line(packages).split(),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    importlib.invalidate_caches()
    absent = missing(needs)
    if not absent:
        return None
    said = (update.stderr + result.stderr).strip().splitlines()[-5:]
    return f"could not install {' '.join(absent)}:\n" + "\n".join(f"    {line}" for line in said)


def main(needs: Iterable[Need] = NEEDS) -> int:
    """Install what is missing; return 1 where it cannot be."""
    absent = missing(needs)
    if not absent:
        return 0
    if shutil.which("apt-get") is None:
        say(f"these are missing, and this is no Debian: {' '.join(absent)}")
        return 1
    if os.geteuid() != 0:
        say(f"please install what is missing, then try again:\n    sudo {install_line(absent)}")
        return 1
    trouble = install(absent, needs)
    if trouble is not None:
        say(trouble)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
