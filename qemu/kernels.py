"""A stock Debian kernel by the name of its package, from the cache or, the first time, from the archive."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qemu import debian
from qemu.cache import cache_directory, locked

__all__ = ["MODULES", "Kernel", "busybox", "image_package", "stock_kernel", "stock_modules"]

MODULES = ("brd", "dummy")
"""Modules that the cache keeps beside each kernel, for guests that ask for them: small ones that need no others."""
HOST_BUSYBOX = Path("/bin/busybox")
ELF_MACHINES = {"amd64": 62, "ppc64el": 21, "arm64": 183}
PT_INTERP = 3


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


def stock_kernel(package: str, arch: str) -> Kernel:
    """The kernel of a Debian package, a meta package ("linux-image-cloud-amd64") or an image itself.

    arch: Debian's name of the architecture. Needs the network only when the cache does not hold it;
    FetchError when it cannot be had.
    """
    place = cache_directory() / "kernels" / arch / package
    with locked(place.with_name(f".{package}.lock")):
        if not place.is_dir():
            _unpack(package, arch, place)
    return _kernel_in(place)


def stock_modules(package: str, arch: str, names: Iterable[str]) -> dict[str, bytes]:
    """Modules of a stock kernel by name, some of `MODULES`. FetchError as for `stock_kernel`."""
    kernel = stock_kernel(package, arch)
    place = kernel.image.parent / "modules"
    with locked(place.parent.with_name(f".{package}.lock")):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=place.parent.parent) as work:
                _keep_modules(debian.fetch(f"linux-image-{kernel.release}", arch, Path(work)), place)
    unknown = [name for name in names if not (place / f"{name}.ko").is_file()]
    if unknown:
        raise debian.FetchError(f"no module {unknown[0]} is kept of {package}; there are: {', '.join(MODULES)}")
    return {name: (place / f"{name}.ko").read_bytes() for name in names}


def image_package(package: str, stanza: str) -> str:
    """The package that holds the kernel: the image a meta package depends on, else the package itself."""
    images = [name for name in debian.depends(stanza) if name.startswith("linux-image-")]
    return images[0] if images else package


def busybox(arch: str) -> bytes:
    """The statically linked busybox for an architecture: the host's where it fits, else from the archive."""
    if HOST_BUSYBOX.is_file():
        program = HOST_BUSYBOX.read_bytes()
        if _is_static(program, arch):
            return program
    place = cache_directory() / "busybox" / arch
    with locked(place.with_name(f".{arch}.lock")):
        if not place.is_file():
            with tempfile.TemporaryDirectory(dir=place.parent) as work:
                files = debian.package_files(debian.fetch("busybox-static", arch, Path(work)), "")
            place.with_suffix(".new").write_bytes(next(files[p] for p in files if p.endswith("bin/busybox")))
            place.with_suffix(".new").rename(place)
    return place.read_bytes()


def _unpack(package: str, arch: str, place: Path) -> None:
    image = image_package(package, debian.show(package, arch))
    work = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        package_file = debian.fetch(image, arch, work)
        new = work / "boot"
        new.mkdir()
        for path, data in debian.package_files(package_file, "boot/").items():
            (new / os.path.basename(path)).write_bytes(data)
        _keep_modules(package_file, new / "modules")
        _kernel_in(new)
        new.rename(place)
    finally:
        shutil.rmtree(work)


def _keep_modules(package_file: Path, place: Path) -> None:
    files = debian.package_files(package_file, "lib/modules/", {f"{name}.ko" for name in MODULES})
    new = place.with_name(f"{place.name}.new")
    new.mkdir(exist_ok=True)
    for path, data in files.items():
        (new / os.path.basename(path)).write_bytes(data)
    new.rename(place)


def _kernel_in(place: Path) -> Kernel:
    images = sorted(place.glob("vmlinu[xz]-*"))
    if not images:
        raise debian.FetchError(f"no kernel image in {place}: remove that folder and try again")
    release = images[-1].name.split("-", 1)[1]
    return Kernel(release, images[-1], place / f"System.map-{release}", place / f"config-{release}")


def _is_static(program: bytes, arch: str) -> bool:
    """Whether a 64-bit little-endian ELF file is for `arch` and names no interpreter."""
    if program[:6] != b"\x7fELF\x02\x01" or int.from_bytes(program[18:20], "little") != ELF_MACHINES[arch]:
        return False
    start = int.from_bytes(program[32:40], "little")
    size, count = (int.from_bytes(program[at : at + 2], "little") for at in (54, 56))
    kinds = (int.from_bytes(program[start + i * size :][:4], "little") for i in range(count))
    return PT_INTERP not in kinds
