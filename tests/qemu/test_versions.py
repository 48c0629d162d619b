"""What is pinned is taken at its version; what its suite has no more, at the suite's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from qemu import debian, versions
from qemu.kernels import BOOT_FILE, MODULE_FILE


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTPROBE_CACHE", str(tmp_path))
    versions.kernel.cache_clear()


@pytest.mark.parametrize("name", versions.names()["kernels"])
def test_a_kernel_is_taken_at_its_version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "has", lambda package, arch, suite: True)
    found = versions.kernel(name)
    assert not found.gone
    assert found.package.startswith("linux-image-") and "=" in found.package


def test_a_kernel_that_left_its_suite_is_the_suites_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "has", lambda package, arch, suite: "=" not in package)
    found = versions.kernel("7.2 cloud")
    assert found.gone
    assert found.package == "linux-image-cloud-amd64"


def test_a_program_runs_by_the_loader_of_its_own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(debs: object, into: Path) -> None:
        (into / "lib64").mkdir()
        (into / "lib64/ld-linux-x86-64.so.2").touch()

    monkeypatch.setattr(debian, "has", lambda package, arch, suite: True)
    monkeypatch.setattr(debian, "fetch_closure", lambda packages, arch, suite, into: [])
    monkeypatch.setattr(debian, "unpack", unpack)
    script = versions.qemu("11", "ppc64le")
    line = script.read_text().splitlines()[1].split()
    assert line[1] == f"{script.parent}/lib64/ld-linux-x86-64.so.2"
    assert f"{script.parent}/usr/bin/qemu-system-ppc64" in line
    # The version of QEMU's package has a colon, which would end a folder's name in this list.
    assert all(folder.startswith(f"{script.parent}/") for folder in line[line.index("--library-path") + 1].split(":"))


@pytest.mark.parametrize(
    "path",
    [
        "boot/vmlinuz-6.1.0-50-amd64",
        "boot/config-6.1.0-50-amd64",
        "usr/lib/modules/7.2.13+deb14-cloud-amd64/vmlinuz",
        "usr/lib/modules/7.2.13+deb14-cloud-amd64/System.map",
    ],
)
def test_boot_files_are_found_where_packages_of_any_age_have_them(path: str) -> None:
    assert BOOT_FILE.fullmatch(path)


def test_what_is_no_boot_file() -> None:
    assert not BOOT_FILE.fullmatch("usr/lib/modules/7.2.13+deb14-cloud-amd64/kernel/fs/configfs/configfs.ko.xz")
    assert MODULE_FILE.fullmatch("dummy.ko.xz") and not MODULE_FILE.fullmatch("dummy_hcd.ko.xz")
