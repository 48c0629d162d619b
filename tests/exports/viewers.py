"""Programs that open exported files: Debian's, unpacked into the cache where the machine has none; pages of npm's.

What takes a window or a browser needs more, `WINDOWS`; `python -m tests.exports.viewers` installs it (scripts/viewers).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from qemu import debian
from qemu.cache import cache_directory, locked, say
from qemu.packages import Need
from qemu.packages import main as install

NEEDS: Mapping[str, Sequence[str]] = {
    "trace-cmd": ("trace-cmd", "libtraceevent1", "libtracefs1"),
    "uftrace": ("uftrace",),
}
"""By program, the packages that few machines have: 0.7 MB. What else they link against, GDB needs too."""
WINDOWS = (
    Need("chromium", programs=("chromium",)),
    Need("kernelshark", programs=("kernelshark",)),
    Need("xvfb", programs=("Xvfb",)),
    Need("xdotool", programs=("xdotool",)),
    Need("imagemagick", programs=("import", "mogrify")),
    Need("golang-go", programs=("go",)),
    Need("graphviz", programs=("dot",)),
    Need("npm", programs=("npm",)),
)
PAGES: Mapping[str, str] = {"speedscope": "1.25.0", "d3-flame-graph": "5.0.0", "d3": "7.9.0"}
"""Packages of npm's that are opened in a browser, with their versions."""


def viewer(program: str, *arguments: str) -> str:
    """Return what a viewer prints. Fails where it complains."""
    found = shutil.which(program)
    place = None if found else _unpacked(program)
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    if place is not None:
        environment["LD_LIBRARY_PATH"] = ":".join(str(path) for path in (place / "usr/lib").glob("*-linux-gnu*"))
    words = [found or str(place / "usr/bin" / program), *arguments]
    done = subprocess.run(words, capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (0, ""), done.stdout.decode()
    return done.stdout.decode()


def page(package: str) -> Path:
    """Return the folder of a package of npm's, without what that depends on."""
    version = PAGES[package]
    place = cache_directory() / "viewers" / f"{package}-{version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.with_name(f".{package}.lock")):
        if not place.is_dir():
            say(f"downloading {package} {version}")
            with tempfile.TemporaryDirectory(dir=place.parent) as work:
                line = ["npm", "pack", "--silent", f"{package}@{version}"]
                subprocess.run(line, cwd=work, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
                (packed,) = Path(work).glob("*.tgz")
                subprocess.run(["tar", "-xzf", packed, "-C", work], check=True)
                (Path(work) / "package").rename(place)
    return place


def _unpacked(program: str) -> Path:
    arch = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()
    place = cache_directory() / "viewers" / program
    with locked(place.with_name(f".{program}.lock")):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=place.parent) as work:
                root = Path(work) / "root"
                root.mkdir()
                debian.unpack([debian.fetch(package, arch, Path(work)) for package in NEEDS[program]], root)
                root.rename(place)
    return place


if __name__ == "__main__":
    sys.exit(install(WINDOWS))
