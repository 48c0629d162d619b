"""A stock Debian kernel by the name of its package, from the cache or, the first time, from the archive."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import debian
from .cache import cache_directory, locked

__all__ = ["MODULES", "Kernel", "busybox", "image_package", "stock_kernel", "stock_modules"]

MODULES = ("brd", "dummy")
"""Modules that the cache keeps beside each kernel, for guests that ask for them: small ones that need no others."""
WITH_TRACEPOINTS = ("watchdog", "softdog")
"""Others, in the order in which they are loaded: the first has tracepoints. An older cache gets them when asked for."""
HOST_BUSYBOX = Path("/bin/busybox")
ELF_MACHINES = {"amd64": 62, "ppc64el": 21, "arm64": 183}
PT_INTERP = 3
BOOT_FILE = re.compile(r"(boot|usr/lib/linux[^/]*|usr/lib/modules/[^/]+)/(vmlinu[xz]|System\.map|config)[^/]*")
MODULE_FILE = re.compile(rf"({'|'.join((*MODULES, *WITH_TRACEPOINTS))})\.ko(\.xz)?")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel on disk.

    release:    as `uname -r` says it.
    image:      what QEMU boots.
    system_map: symbols at their link-time addresses; empty of use on Debian releases that ship a stub.
    config:     the options it was built with.
    """

    release: str
    image: Path
    system_map: Path
    config: Path


def stock_kernel(package: str, arch: str, suite: str = "") -> Kernel:
    """Return the kernel of a Debian package, a meta package ("linux-image-cloud-amd64") or an image itself.

    package: its name, or NAME=VERSION. arch: Debian's name of the architecture. suite: "" for those that the host uses.
    Needs the network only when the cache does not hold it; FetchError when it cannot be had.
    """
    place = _place(package, arch, suite)
    with locked(_lock(place)):
        if not place.is_dir():
            _unpack(package, arch, suite, place)
    return _kernel_in(place)


def stock_modules(package: str, arch: str, names: Iterable[str], suite: str = "") -> dict[str, bytes]:
    """Return modules of a stock kernel by name, of those that are kept. FetchError as for `stock_kernel`."""
    kernel = stock_kernel(package, arch, suite)
    place = kernel.image.parent / "modules"
    names = tuple(names)
    later = [place / f"{name}.ko" for name in names if name in WITH_TRACEPOINTS]
    with locked(_lock(kernel.image.parent)):
        if not place.is_dir() or not all(module.is_file() for module in later):
            with tempfile.TemporaryDirectory(dir=place.parent.parent) as work:
                image = f"linux-image-{kernel.release}"
                _keep_modules(_image_packages(image, arch, suite, Path(work)), place)
    kept = sorted(each.stem for each in place.iterdir())
    if unknown := [name for name in names if name not in kept]:
        raise debian.FetchError(f"no module {unknown[0]} is kept of {package}; there are: {', '.join(kept)}")
    return {name: (place / f"{name}.ko").read_bytes() for name in names}


def image_package(package: str, stanza: str) -> str:
    """Return the package that holds the kernel: the image a meta package depends on, else the package itself."""
    images = [name for name in debian.depends(stanza) if name.startswith("linux-image-")]
    return images[0] if images else package


def busybox(arch: str) -> bytes:
    """Return the statically linked busybox for an architecture: the host's where it fits, else from the archive."""
    if HOST_BUSYBOX.is_file():
        program = HOST_BUSYBOX.read_bytes()
        if _is_static(program, arch):
            return program
    place = cache_directory() / "busybox" / arch
    with locked(place.with_name(f".{arch}.lock")):
        if not place.is_file():
            with tempfile.TemporaryDirectory(dir=place.parent) as work:
                package = debian.fetch("busybox-static", arch, Path(work))
                (program,) = debian.package_files(package, lambda path: path.endswith("bin/busybox")).values()
            place.with_suffix(".new").write_bytes(program)
            place.with_suffix(".new").rename(place)
    return place.read_bytes()


def _place(package: str, arch: str, suite: str) -> Path:
    return cache_directory() / "kernels" / (f"{suite}-{arch}" if suite else arch) / package


def _lock(place: Path) -> Path:
    return place.with_name(f".{place.name}.lock")


def _unpack(package: str, arch: str, suite: str, place: Path) -> None:
    image = image_package(package, debian.show(package, arch, suite))
    work = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        packages = _image_packages(image, arch, suite, work)
        new = work / "boot"
        new.mkdir()
        release = image.partition("=")[0].removeprefix("linux-image-")
        for package_file in packages:
            for path, data in debian.package_files(package_file, _is_boot_file).items():
                name = os.path.basename(path)
                # Newer packages name these by their folder alone.
                (new / (name if release in name else f"{name}-{release}")).write_bytes(data)
        _keep_modules(packages, new / "modules")
        _kernel_in(new)
        new.rename(place)
    finally:
        shutil.rmtree(work)


def _image_packages(image: str, arch: str, suite: str, work: Path) -> list[Path]:
    """Download the package of an image, and the parts it is divided into where it holds no files of its own."""
    release = image.partition("=")[0].removeprefix("linux-image-")
    parts = [f"linux-{part}-{release}" for part in ("binary", "modules", "base")]
    needed = [name for name in debian.depends(debian.show(image, arch, suite)) if name in parts]
    return [debian.fetch(name, arch, work, suite) for name in (image, *needed)]


def _is_boot_file(path: str) -> bool:
    return BOOT_FILE.fullmatch(path) is not None


def _keep_modules(packages: Iterable[Path], place: Path) -> None:
    new = place.with_name(f"{place.name}.new")
    place.mkdir(exist_ok=True)
    new.mkdir(exist_ok=True)
    for package_file in packages:
        for path, data in debian.package_files(package_file, _is_kept_module).items():
            name, _, packed = os.path.basename(path).partition(".ko")
            (new / f"{name}.ko").write_bytes(lzma.decompress(data) if packed else data)
    for module in new.iterdir():
        module.replace(place / module.name)
    new.rmdir()


def _is_kept_module(path: str) -> bool:
    return "lib/modules/" in path and MODULE_FILE.fullmatch(os.path.basename(path)) is not None


def _kernel_in(place: Path) -> Kernel:
    images = sorted(place.glob("vmlinu[xz]-*"))
    if not images:
        raise debian.FetchError(f"no kernel image in {place}: remove that folder and try again")
    release = images[-1].name.split("-", 1)[1]
    return Kernel(release, images[-1], place / f"System.map-{release}", place / f"config-{release}")


def _is_static(program: bytes, arch: str) -> bool:
    """Return whether a 64-bit little-endian ELF file is for `arch` and names no interpreter."""
    if program[:6] != b"\x7fELF\x02\x01" or int.from_bytes(program[18:20], "little") != ELF_MACHINES[arch]:
        return False
    start = int.from_bytes(program[32:40], "little")
    size, count = (int.from_bytes(program[at : at + 2], "little") for at in (54, 56))
    kinds = (int.from_bytes(program[start + i * size :][:4], "little") for i in range(count))
    return PT_INTERP not in kinds
