"""A wheel, installed into an environment of its own, has all that GDB and the program need."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import gdb_optprobe
from qemu import fitting_gdb
from qemu.debugger import DebuggerError, gdb_program, line_to_start
from tests.installed import install, run, site, tracked

ROOT = Path(__file__).parents[2]
SOURCED = {"agree", "sampler", "text_dump"}
"""Files that GDB sources: they import `gdb`."""
IMPORT_ALL = f"""
import importlib, pkgutil, gdb_optprobe_qemu as package
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if found.name.rpartition(".")[2] not in {SOURCED!r}:
        print(importlib.import_module(found.name).__name__)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, at a path with blanks."""
    return install(tmp_path_factory.mktemp("it is installed"))


def gdb_there() -> None:
    try:
        gdb_program()
    except DebuggerError as missing:
        pytest.skip(str(missing))


def test_the_wheel_has_every_file(environment: Path) -> None:
    place = site(environment)
    wanted = {re.sub("^qemu/", "gdb_optprobe_qemu/", name) for name in tracked("gdb_optprobe", "qemu")}
    assert [name for name in sorted(wanted) if not (place / name).is_file()] == []
    assert not (place / "qemu").exists()
    assert (environment / "share/man/man1/optprobe.1").read_bytes() == (ROOT / "docs/optprobe.1").read_bytes()


def test_the_guests_part_imports_itself_by_its_other_name(environment: Path) -> None:
    done = run(environment, "python", "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    modules = {path.stem for path in (ROOT / "qemu").glob("*.py")} - {"__init__"} - SOURCED
    assert {f"gdb_optprobe_qemu.{name}" for name in modules} <= set(done.stdout.split())


def test_the_program(environment: Path) -> None:
    assert run(environment, "optprobe", "--version").stdout == f"optprobe {gdb_optprobe.__version__}\n"
    assert run(environment, "optprobe", "gdbinit").stdout == (
        f"source {site(environment)}/gdb_optprobe/commands/load.py\n"
    )
    assert "optprobe guest" in run(environment, "optprobe", "guest", "--help").stdout
    assert "optprobe demo" in run(environment, "optprobe", "demo", "--help").stdout
    unknown = run(environment, "optprobe", "nonsense")
    assert unknown.returncode == 2 and "optprobe gdb [ARG…]" in unknown.stderr


def test_gdb_has_the_commands_and_no_other_package_of_pips_python(environment: Path) -> None:
    gdb_there()
    (site(environment) / "of_another_python.py").touch()
    look = "python import sys, capstone, keystone, pygments; print(capstone.__file__, keystone.__file__)"
    seen = "python from importlib.util import find_spec; print('seen', find_spec('of_another_python'))"
    page = "python from gdb_optprobe.pages.page import Page, encode; print(encode(Page('a page', [], []))[:15])"
    commands = ("optprobe version", look, seen, page)
    done = run(environment, "optprobe", "gdb", "-nx", "-batch", *(word for each in commands for word in ("-ex", each)))
    assert done.returncode == 0, done.stderr
    version, files, nothing, begins = done.stdout.splitlines()
    assert version.startswith(f"optprobe {gdb_optprobe.__version__}, GDB ")
    assert files.startswith(f"{site(environment)}/capstone/") and f" {site(environment)}/keystone/" in files
    assert nothing == "seen None"
    assert begins == "b'<!DOCTYPE html>'", "jinja2 is there, and the page's own files"


def test_the_line_that_starts_gdb(environment: Path) -> None:
    say = "from gdb_optprobe_qemu.debugger import line_to_start; print(line_to_start('/a b'))"
    assert run(environment, "python", "-c", say).stdout == "optprobe gdb -ex 'target remote /a b'\n"
    assert line_to_start("/s") == f"gdb-multiarch -ex 'target remote /s' -ex 'source {ROOT}/scripts/optprobe.py'"


def test_one_gdb_loads_one_of_two_installations(environment: Path) -> None:
    gdb_there()
    lines = (f"source {ROOT}/scripts/optprobe.py", f"source {site(environment)}/gdb_optprobe/commands/load.py")
    done = run(environment, "optprobe", "gdb", "-nx", "-q", "-batch", *(w for line in lines for w in ("-ex", line)))
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"optprobe: {site(environment)}/gdb_optprobe/__init__.py is loaded already; ")
    assert str(ROOT) in line and done.returncode == 1


@pytest.mark.parametrize("options", [(), ("-batch",)])
def test_a_missing_package_is_one_line(environment: Path, options: tuple[str, ...]) -> None:
    gdb_there()
    capstone = site(environment) / "capstone"
    aside = capstone.rename(environment / "capstone")
    try:
        capstone.mkdir()
        (capstone / "__init__.py").write_text("CS_API_MAJOR = 4\n")
        done = run(environment, "optprobe", "gdb", "-nx", "-q", *options, "-ex", "quit")
    finally:
        shutil.rmtree(capstone)
        aside.rename(capstone)
    lines = done.stderr.splitlines()
    (line,) = lines
    assert line.startswith("optprobe: capstone cannot be imported") and "version 4" in line
    assert f"pip install --target {site(environment)} 'capstone" in line
    assert done.returncode == bool(options)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("@ 3 11 13.1", ""),
        ("@ 3 12 Fedora Linux 15.1-1.fc40", ""),
        ("@ 3 9 14.1", "has Python 3.9"),
        ("@ 3 11 12.1", "is of version 12.1"),
        ("Python scripting is not supported", "has no Python"),
    ],
)
def test_what_a_gdb_lacks(tmp_path: Path, answer: str, why: str) -> None:
    fake = tmp_path / "gdb"
    fake.write_text(f"#!/bin/sh\necho '{answer}'\n")
    fake.chmod(0o755)
    assert fitting_gdb.unfit(str(fake)) == why


def test_where_no_gdb_fits_each_ones_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPTPROBE_GDB", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DebuggerError, match="gdb-multiarch is not installed, gdb is not installed; install GDB 13"):
        fitting_gdb.fitting_gdb()


def test_the_setup_script_names_the_same_packages_for_gdb() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    line = re.search(r"^for_gdb=\((.*)\)$", (ROOT / "scripts/setup").read_text(), re.MULTILINE)
    assert line is not None
    assert config["options"]["install_requires"].split() == re.findall(r"'(.*?)'", line[1])


def test_the_changes_begin_with_this_version() -> None:
    heading = re.search(r"^## ([\w.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None and heading[1] == gdb_optprobe.__version__
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    assert {tag for tag in tags.split() if re.match(r"v\d", tag)} <= {f"v{gdb_optprobe.__version__}"}
