"""Programs that open exported files: Debian's, unpacked into the cache where the machine has none."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from qemu import debian
from qemu.cache import cache_directory, locked

NEEDS: Mapping[str, Sequence[str]] = {
    "trace-cmd": ("trace-cmd", "libtraceevent1", "libtracefs1"),
    "uftrace": ("uftrace",),
}
"""By program, the packages that few machines have: 0.7 MB. What else they link against, GDB needs too."""


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
