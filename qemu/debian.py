"""Debian packages of any architecture and suite, found and unpacked without root, the host's own left alone.

apt-get runs with package lists and a download cache of its own, under ours, and an empty list of installed
packages. Where to fetch from is the host's configuration; of a suite that the host does not use, the same mirror.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from .cache import cache_directory, locked, say

__all__ = ["FetchError", "depends", "fetch", "fetch_closure", "has", "package_files", "show", "unpack"]

SUITES = ("bullseye", "bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable")


class FetchError(Exception):
    """A package could not be found or downloaded; the text says which and what apt said."""


def show(package: str, arch: str, suite: str = "") -> str:
    """Return the control stanza of a package's newest version; fetch the package lists when it is not in them.

    package: a name, or NAME=VERSION. arch: Debian's name of the architecture. suite: "" for those that the host uses.
    FetchError when no source has the package.
    """
    with locked(_state(arch, suite) / "lock"):
        stanza = _apt(arch, suite, "apt-cache", "show", "--no-all-versions", package)
        if stanza.returncode != 0:
            say(f"fetching Debian's package lists for {' '.join(filter(None, (suite, arch)))}")
            update = _apt(arch, suite, "apt-get", "update")
            stanza = _apt(arch, suite, "apt-cache", "show", "--no-all-versions", package)
    if stanza.returncode != 0:
        said = _last_lines(update.stderr or stanza.stderr)
        raise FetchError(f"no package {package} for {arch}{suite and f' in {suite}'}: {said}")
    return stanza.stdout


def has(package: str, arch: str, suite: str = "") -> bool:
    """Return whether the suite's lists name a package, or NAME=VERSION."""
    try:
        show(package, arch, suite)
    except FetchError:
        return False
    return True


def depends(stanza: str) -> list[str]:
    """Return the names that a control stanza depends on, without versions; of alternatives the first."""
    for line in stanza.splitlines():
        if line.startswith("Depends:"):
            return [item.split("|")[0].split("(")[0].strip() for item in line[8:].split(",")]
    return []


def fetch(package: str, arch: str, into: Path, suite: str = "") -> Path:
    """Download one package file to the directory `into`. FetchError when that fails.

    package: a name, or NAME=VERSION. The lists may be older than the archive, so a failed download is tried once more
    with new ones.
    """
    stanza = show(package, arch, suite)
    size = next((int(line[5:]) for line in stanza.splitlines() if line.startswith("Size:")), 0)
    say(f"downloading {package} for {arch} ({size / 1e6:.0f} MB)")
    _twice(arch, suite, package, ["apt-get", "download", package], into)
    found = sorted(into.glob(f"{package.partition('=')[0]}_*.deb"))
    if not found:
        raise FetchError(f"cannot download {package} for {arch}")
    return found[-1]


def fetch_closure(packages: Sequence[str], arch: str, suite: str, into: Path) -> list[Path]:
    """Download packages with all that they depend on, to run them apart from the host's own. FetchError."""
    for package in packages:
        show(package, arch, suite)
    say(f"downloading {' '.join(packages)} of {suite} with what they need (some 100 MB)")
    (into / "partial").mkdir(exist_ok=True)
    line = ["apt-get", "-y", "-d", "--no-install-recommends", f"-oDir::Cache::archives={into}", "install", *packages]
    _twice(arch, suite, " ".join(packages), line, into)
    return sorted(into.glob("*.deb"))


def package_files(deb: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Return the regular files of a package file that are `wanted` by their path ("boot/…")."""
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(deb)], check=True, capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            path = member.name.removeprefix("./")
            content = members.extractfile(member) if member.isfile() and wanted(path) else None
            if content is not None:
                found[path] = content.read()
    return found


def unpack(debs: Sequence[Path], into: Path) -> None:
    """Unpack package files into a directory, as into a root. FetchError."""
    for deb in debs:
        result = subprocess.run(["dpkg-deb", "-x", str(deb), str(into)], capture_output=True, text=True)
        if result.returncode != 0:
            raise FetchError(f"cannot unpack {deb.name}: {_last_lines(result.stderr)}")


def make_root(packages: Sequence[str], arch: str, suite: str, place: Path) -> None:
    """Unpack packages with all that they depend on into a new folder, as into a root. FetchError: nothing is there."""
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        new, fetched = Path(work) / "root", Path(work) / "packages"
        for folder in (new, fetched):
            folder.mkdir()
        unpack(fetch_closure(packages, arch, suite, fetched), new)
        new.rename(place)


def _twice(arch: str, suite: str, what: str, line: Sequence[str], cwd: Path) -> None:
    with locked(_state(arch, suite) / "lock"):
        result = _apt(arch, suite, *line, cwd=cwd)
        if result.returncode != 0:
            _apt(arch, suite, "apt-get", "update")
            result = _apt(arch, suite, *line, cwd=cwd)
    if result.returncode != 0:
        raise FetchError(f"cannot download {what} for {arch}: {_last_lines(result.stderr)}")


def _state(arch: str, suite: str) -> Path:
    return cache_directory() / "apt" / (f"{suite}-{arch}" if suite else arch)


def _apt(
    arch: str, suite: str, program: str, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    state = _state(arch, suite)
    for part in ("lists/partial", "cache/archives/partial", "log", "parts"):
        (state / part).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    options = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Log": state / "log",
        "APT::Architecture": arch,
        "APT::Architectures": arch,
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
    }
    if suite:
        (state / "sources").write_text(f"deb {_mirror()} {suite} main\n")
        options |= {
            "Dir::Etc::SourceList": state / "sources",
            "Dir::Etc::SourceParts": state / "parts",
            # The list of a suite without updates has a date that has passed.
            "Acquire::Check-Valid-Until": "false",
        }
    with tempfile.TemporaryDirectory() as elsewhere:
        return subprocess.run(
            [program, "-q", *(f"-o{key}={value}" for key, value in options.items()), *arguments],
            cwd=cwd or elsewhere,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )


@cache
def _mirror() -> str:
    """Return the mirror of Debian in the host's own configuration. Raises FetchError."""
    line = ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(SITE)"]
    told = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    for suite in SUITES:
        for row in told.splitlines():
            if row.startswith(f"{suite} main "):
                return row.split()[2]
    raise FetchError("apt's own configuration names no mirror of Debian's suites")


def _last_lines(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:])
