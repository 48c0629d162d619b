"""Package names: which are missing, which one a meta package stands for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from qemu.debian import depends
from qemu.kernels import image_package
from qemu.packages import NEEDS, Need, install_line, missing

REPOSITORY = Path(__file__).parents[2]

META = """\
Package: linux-image-cloud-amd64
Source: linux-signed-amd64 (6.1.170+2)
Depends: linux-image-6.1.0-50-cloud-amd64 (= 6.1.170-2)
Description: Linux for x86-64 cloud
"""
IMAGE = """\
Package: linux-image-6.1.0-50-cloud-amd64
Depends: kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool
"""


def test_a_meta_package_stands_for_an_image() -> None:
    assert image_package("linux-image-cloud-amd64", META) == "linux-image-6.1.0-50-cloud-amd64"


def test_an_image_stands_for_itself() -> None:
    assert image_package("linux-image-6.1.0-50-cloud-amd64", IMAGE) == "linux-image-6.1.0-50-cloud-amd64"


def test_dependencies_without_versions_and_alternatives() -> None:
    assert depends(IMAGE) == ["kmod", "linux-base", "initramfs-tools"]


def test_no_dependencies() -> None:
    assert depends("Package: x\n") == []


def test_what_is_missing() -> None:
    there = Need("a", programs=("sh",), modules=("venv",))
    no_program, no_module = Need("b", programs=("no-such-program",)), Need("c", modules=("no_such_module",))
    assert missing([there, no_program, no_module]) == ["b", "c"]


def test_the_line_to_type() -> None:
    assert install_line(["a", "b"]) == "apt-get install --no-install-recommends -y a b"


def test_without_root_it_says_what_to_type(tmp_path: Path) -> None:
    for program in ("sh", "apt-get"):
        (tmp_path / program).symlink_to("/bin/true")
    script = "import os, sys; os.geteuid = lambda: 1000; from qemu.packages import main; sys.exit(main())"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PATH": str(tmp_path)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    asked = [need.package for need in NEEDS if need.programs]
    assert f"\n    sudo apt-get install --no-install-recommends -y {' '.join(asked)}\n" in run.stderr


def test_the_setup_script_names_the_same_packages() -> None:
    script = (REPOSITORY / "scripts" / "setup").read_text()
    named = "".join(re.findall(r"^debian_packages\+?='(.*)'$", script, re.MULTILINE))
    assert named.split() == [need.package for need in NEEDS]
