"""Build the bare-metal guests beside this file, with binutils, into the cache.

The result is one ELF file: QEMU boots it and a debugger reads its symbols. The head of each `runner.s` has a drawing of
its memory.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from .cache import cache_directory, locked
from .checkout import INSTALL_IT
from .machines import MACHINES

__all__ = ["BuildError", "build"]

SOURCES = Path(__file__).with_name("micro")


class BuildError(Exception):
    """The sources do not assemble or link; the text is what binutils said."""


def build(arch: str) -> Path:
    """Return the micro guest of an architecture, built unless the cache holds it for exactly these sources.

    BuildError when there is none for `arch`, binutils are missing, or the sources are wrong.
    """
    folder = SOURCES / arch
    if not folder.is_dir():
        raise BuildError(f"there is no micro guest for {arch}")
    sources = sorted(path for path in folder.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    place = cache_directory() / "micro" / f"{arch}-{digest}.elf"
    with locked(place.with_name(f".{arch}.lock")):
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=place.parent) as work:
                _link(folder, Path(work)).rename(place)
    return place


def _link(folder: Path, work: Path) -> Path:
    objects = []
    for source in sorted(folder.rglob("*.s")):
        target = work / f"{source.stem}.o"
        _run([_tool(folder.name, "as"), "-I", str(folder), "-o", str(target), str(source)])
        objects.append(str(target))
    result = work / "micro.elf"
    _run([_tool(folder.name, "ld"), "-n", "-T", str(folder / "micro.ld"), "-o", str(result), *objects])
    return result


def _tool(arch: str, name: str) -> str:
    """Return the assembler or linker for an architecture, which need not be the host's."""
    program = MACHINES[arch].binutils + name
    if shutil.which(program) is None:
        raise BuildError(f"{program} (binutils) is not installed; {INSTALL_IT}")
    return program


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(result.stderr.strip())
