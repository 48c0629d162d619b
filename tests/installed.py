"""An environment in which the project is installed, as `pip install .` does it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("capstone", "jinja2", "keystone", "markupsafe", "pygments")


def tracked(*below: str) -> set[str]:
    """Return the files of the tree that git knows and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z", *below], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


def install(place: Path) -> Path:
    """Make an environment below `place`, with a wheel of a copy of the tree, and return it. Needs no network.

    A build leaves files in the tree that it is made of.
    """
    files = ("setup.cfg", "pyproject.toml", "LICENSE", "README.md", "docs/optprobe.1")
    for name in tracked("gdb_optprobe", "qemu", *files):
        (place / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / "tree" / name)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
    pip = [sys.executable, "-m", "pip"]
    wheel = [*pip, "wheel", *quiet, "--no-build-isolation", "-w", str(place), str(place / "tree")]
    subprocess.run(wheel, check=True, timeout=200)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True, timeout=100)
    (made,) = place.glob("*.whl")
    target = [*pip, "--python", str(place / "venv/bin/python"), "install", *quiet, str(made)]
    subprocess.run(target, check=True, timeout=200)
    for package in PACKAGES:
        (site(place / "venv") / package).symlink_to((ROOT / ".packages" / package).resolve())
    return place / "venv"


def site(environment: Path) -> Path:
    """Return the folder of an environment's packages."""
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def run(environment: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of an environment there, without a variable that leads to other packages."""
    kept = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        [environment / "bin" / name, *words],
        cwd=environment,
        env=kept,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
