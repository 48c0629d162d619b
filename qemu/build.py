"""Kernels built here, from Debian's linux-source, as kernel developers build theirs.

    qemu/configs/common.config + NAME.config ─► allnoconfig ─► make ─► the cache: kernels/built/NAME
                                                                       vmlinuz-, vmlinux-, System.map-, config-RELEASE
                                                                       options    what it was made of
                                                                       modules/   NAME.ko
As a program (`python3 -m qemu.build [NAME…]`) it builds what is missing of those named, or of all. No root: where
tools are missing it prints the line that installs them. It takes some 10 to 40 minutes of both cores of a small
machine for each kernel, at the lowest priority, and 3 GB of disk meanwhile.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import debian, packages
from .cache import cache_directory, locked, say
from .kernels import Kernel

__all__ = ["RECIPES", "BuildError", "Built", "Recipe", "build", "built_kernels", "recipe"]

SOURCE, SUITE = "linux-source-6.12", "trixie"
CONFIGS = Path(__file__).with_name("configs")
IMAGE = "arch/x86/boot/bzImage"
CLANG = re.compile(r"clang-(\d+)")
OLDEST_CLANG = 16
"""The first version that has -fsanitize=kcfi."""
TAIL = 30


class BuildError(Exception):
    """A kernel could not be built; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one kernel is built and booted.

    clang:   with clang and its linker, not GCC.
    modules: files below drivers/ and the like that are kept, by module name.
    boots:   additions to the kernel's command line, one for each way in which it is to be tried.
    """

    name: str
    clang: bool = False
    modules: tuple[str, ...] = ()
    boots: tuple[str, ...] = ("",)

    @property
    def options(self) -> str:
        """The fragments as one text."""
        return "".join((CONFIGS / f"{part}.config").read_text() for part in ("common", self.name))


RECIPES = (
    Recipe("tiny"),
    Recipe("nosyms", boots=("nokaslr",)),
    Recipe("cfi", clang=True, boots=("cfi=kcfi", "cfi=fineibt")),
    Recipe("debug", modules=("brd",)),
)


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel that was built. vmlinux: its ELF file, with debug information. modules: the folder of NAME.ko."""

    recipe: Recipe
    kernel: Kernel
    vmlinux: Path
    modules: Path


def recipe(name: str) -> Recipe:
    """Return the recipe of that name. Raises BuildError where there is none."""
    found = next((each for each in RECIPES if each.name == name), None)
    if found is None:
        raise BuildError(f"no kernel {name} is built here; there are: {', '.join(each.name for each in RECIPES)}")
    return found


def built_kernels() -> Iterator[Built]:
    """Yield the kernels in the cache that were built with the present options."""
    for each in RECIPES:
        if (found := _in_cache(each)) is not None:
            yield found


def build(name: str) -> Built:
    """Return the kernel `name`, built now unless the cache has it. Raises BuildError or FetchError."""
    return build_all([name])[0]


def build_all(names: Iterable[str]) -> list[Built]:
    """Return several kernels. The source is unpacked once."""
    wanted = [recipe(name) for name in names]
    top = _top()
    with locked(top / ".lock"):
        absent = [each for each in wanted if _in_cache(each) is None]
        if absent:
            _check_tools(any(each.clang for each in absent))
            with tempfile.TemporaryDirectory(dir=top, prefix=".work-") as work:
                source = _unpacked_source(Path(work))
                for each in absent:
                    _build(each, source, Path(work) / each.name)
    return [_expect(each) for each in wanted]


def _top() -> Path:
    place = cache_directory() / "kernels" / "built"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _in_cache(of: Recipe) -> Built | None:
    place = _top() / of.name
    images, options = sorted(place.glob("vmlinuz-*")), place / "options"
    if not images or not options.is_file() or options.read_text() != of.options:
        return None
    release = images[-1].name.removeprefix("vmlinuz-")
    kernel = Kernel(release, images[-1], place / f"System.map-{release}", place / f"config-{release}")
    return Built(of, kernel, place / f"vmlinux-{release}", place / "modules")


def _expect(of: Recipe) -> Built:
    found = _in_cache(of)
    if found is None:
        raise BuildError(f"the kernel {of.name} was built, but is not in {_top()}")
    return found


# --- tools ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tool:
    """A Debian package, and whether the needed part of it is installed."""

    package: str
    is_there: Callable[[], bool]


def _program(package: str, program: str = "") -> _Tool:
    return _Tool(package, lambda: shutil.which(program or package) is not None)


TOOLS = (
    _program("gcc"),
    _program("make"),
    _program("flex"),
    _program("bison"),
    _program("bc"),
    _program("xz-utils", "xz"),
    _Tool("libelf-dev", lambda: Path("/usr/include/gelf.h").is_file()),
)
CLANG_TOOLS = ("clang", "lld", "llvm")


def _check_tools(clang: bool) -> None:
    """Raise BuildError, with the line that installs what is missing."""
    absent = [tool.package for tool in TOOLS if not tool.is_there()]
    if clang and clang_suffix() is None:
        absent += [f"{name}-{_clang_of_debian()}" for name in CLANG_TOOLS]
    if absent:
        raise BuildError(f"please install what is missing, then try again:\n    {packages.install_line(absent)}")


def clang_suffix() -> str | None:
    """Return the value of LLVM= for the kernel's makefiles: "-19", or "1" for names without a number.
    None without clang.
    """
    numbers = sorted((int(found[1]) for found in map(CLANG.fullmatch, _programs("clang-*")) if found), reverse=True)
    for number in numbers:
        if number >= OLDEST_CLANG and all(map(shutil.which, (f"ld.lld-{number}", f"llvm-nm-{number}"))):
            return f"-{number}"
    plain = [shutil.which(name) for name in ("clang", "ld.lld", "llvm-nm")]
    return "1" if all(plain) and _version(str(plain[0])) >= OLDEST_CLANG else None


def _programs(glob: str) -> Iterator[str]:
    """Yield names on the usual paths."""
    for folder in ("/usr/bin", "/usr/local/bin"):
        yield from (path.name for path in Path(folder).glob(glob))


def _version(clang: str) -> int:
    said = subprocess.run([clang, "-dumpversion"], capture_output=True, text=True).stdout
    major = said.split(".")[0]
    return int(major) if major.isdigit() else 0


def _clang_of_debian() -> int:
    """Return the newest version in the host's package lists."""
    said = subprocess.run(["apt-cache", "pkgnames", "clang-"], capture_output=True, text=True).stdout.split()
    return max((int(found[1]) for found in map(CLANG.fullmatch, said) if found), default=OLDEST_CLANG)


# --- building -------------------------------------------------------------------------------------------------


def _unpacked_source(work: Path) -> Path:
    package = debian.fetch(SOURCE, "amd64", work, suite=SUITE)
    subprocess.run(["dpkg-deb", "-x", str(package), str(work / "package")], check=True)
    package.unlink()
    say("unpacking the kernel's source")
    archive = next((work / "package").glob("usr/src/linux-source-*.tar.*"))
    subprocess.run(["tar", "-C", str(work), "-xf", str(archive)], check=True)
    shutil.rmtree(work / "package")
    return next(work.glob("linux-source-*"))


def _build(of: Recipe, source: Path, out: Path) -> None:
    """Build from source into the cache. An older build is replaced when the new one is complete."""
    started = time.monotonic()
    out.mkdir()
    (out / "fragment").write_text(of.options)
    make = ["make", "-C", str(source), f"O={out}", "ARCH=x86_64"]
    if of.clang:
        make.append(f"LLVM={clang_suffix()}")
    say(f"building the kernel {of.name} (minutes; at the lowest priority)")
    _run([*make, f"KCONFIG_ALLCONFIG={out / 'fragment'}", "allnoconfig"], out)
    if lost := lost_options(of.options, (out / ".config").read_text()):
        raise BuildError(f"this source knows no such option, or what it needs is off: {', '.join(lost)}")
    _run(["nice", "-n", "19", *make, "-j2", "bzImage", *(("modules",) if of.modules else ())], out)
    _keep(of, out)
    say(f"the kernel {of.name} took {time.monotonic() - started:.0f} s")


def lost_options(wanted: str, config: str) -> list[str]:
    """Return the lines of a fragment that did not make it into the configuration."""
    have = set(config.splitlines())
    return [line for line in wanted.splitlines() if line.startswith("CONFIG_") and line not in have]


def _run(command: list[str], out: Path) -> None:
    """Run a command. Raises BuildError with the end of its output."""
    with (out / "log").open("wb") as log:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
    if status:
        printed = (out / "log").read_text(errors="replace").splitlines()[-TAIL:]
        raise BuildError(f"{command[-1]} failed:\n" + "\n".join(f"    {line}" for line in printed))


def _keep(of: Recipe, out: Path) -> None:
    release = (out / "include/config/kernel.release").read_text().strip()
    place = _top() / of.name
    new = Path(tempfile.mkdtemp(dir=_top(), prefix=f".{of.name}-"))
    kept = {IMAGE: "vmlinuz", "vmlinux": "vmlinux", "System.map": "System.map", ".config": "config"}
    for path, name in kept.items():
        shutil.copyfile(out / path, new / f"{name}-{release}")
    (new / "modules").mkdir()
    for name in of.modules:
        shutil.copyfile(next(out.rglob(f"{name}.ko")), new / "modules" / f"{name}.ko")
    (new / "options").write_text(of.options)
    new.chmod(0o755)
    if place.exists():
        shutil.rmtree(place)
    new.rename(place)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="qemu.build", description="Build kernels from Debian's linux-source.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(each.name for each in RECIPES))
    given = parser.parse_args(arguments)
    try:
        for found in build_all(given.names or [each.name for each in RECIPES]):
            print(f"{found.recipe.name:8} {found.kernel.release:16} {found.kernel.image}")
    except (BuildError, debian.FetchError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
