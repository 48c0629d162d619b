"""Debian packages of any architecture, found and unpacked without root and without touching the host's own.

apt-get runs with package lists and a download cache of its own, under ours, and an empty list of installed
packages; where to fetch from is the host's configuration.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Container
from pathlib import Path

from qemu.cache import cache_directory, locked, say

__all__ = ["FetchError", "depends", "fetch", "package_files", "show"]


class FetchError(Exception):
    """A package could not be found or downloaded; the text says which and what apt said."""


def show(package: str, arch: str) -> str:
    """The control stanza of a package's newest version; fetches the package lists when it is not in them.

    arch: Debian's name of the architecture. FetchError when no source has the package.
    """
    with locked(_state(arch) / "lock"):
        stanza = _apt(arch, "apt-cache", "show", "--no-all-versions", package)
        if stanza.returncode != 0:
            say(f"fetching Debian's package lists for {arch}")
            update = _apt(arch, "apt-get", "update")
            stanza = _apt(arch, "apt-cache", "show", "--no-all-versions", package)
    if stanza.returncode != 0:
        raise FetchError(f"no package {package} for {arch}: {_last_lines(update.stderr or stanza.stderr)}")
    return stanza.stdout


def depends(stanza: str) -> list[str]:
    """The names a control stanza depends on, without versions; of alternatives the first."""
    for line in stanza.splitlines():
        if line.startswith("Depends:"):
            return [item.split("|")[0].split("(")[0].strip() for item in line[8:].split(",")]
    return []


def fetch(package: str, arch: str, into: Path) -> Path:
    """Download one package file to the directory `into`. FetchError when that fails.

    The lists may be older than the archive, so a failed download is tried once more with new ones.
    """
    stanza = show(package, arch)
    size = next((int(line[5:]) for line in stanza.splitlines() if line.startswith("Size:")), 0)
    say(f"downloading {package} for {arch} ({size / 1e6:.0f} MB)")
    with locked(_state(arch) / "lock"):
        result = _apt(arch, "apt-get", "download", package, cwd=into)
        if result.returncode != 0:
            _apt(arch, "apt-get", "update")
            result = _apt(arch, "apt-get", "download", package, cwd=into)
    found = sorted(into.glob(f"{package}_*.deb"))
    if result.returncode != 0 or not found:
        raise FetchError(f"cannot download {package} for {arch}: {_last_lines(result.stderr)}")
    return found[-1]


def package_files(deb: Path, under: str, names: Container[str] | None = None) -> dict[str, bytes]:
    """The regular files of a package file below the directory `under` ("boot/"), by path; of `names` alone if given."""
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(deb)], check=True, capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for member in members:
            path = member.name.removeprefix("./")
            if names is not None and path.rpartition("/")[2] not in names:
                continue
            content = members.extractfile(member) if member.isfile() and path.startswith(under) else None
            if content is not None:
                found[path] = content.read()
    return found


def _state(arch: str) -> Path:
    return cache_directory() / "apt" / arch


def _apt(
    arch: str, program: str, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    state = _state(arch)
    for part in ("lists/partial", "cache/archives/partial", "log"):
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
    with tempfile.TemporaryDirectory() as elsewhere:
        return subprocess.run(
            [program, "-q", *(f"-o{key}={value}" for key, value in options.items()), *arguments],
            cwd=cwd or elsewhere,
            capture_output=True,
            text=True,
        )


def _last_lines(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:])
