"""Sessions with the installed program, and docs/examples/ci as it stands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qemu.cache import guests_directory
from qemu.debugger import Debugger
from qemu.guest import Guest, GuestError
from qemu.probed_guest import ProbedGuest
from tests.installed import ROOT, install, run

Step = Callable[[str], subprocess.CompletedProcess[str]]

EXAMPLE = ROOT / "docs" / "examples" / "ci"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("of a user"))


def test_a_session_with_the_installed_program(linux: Guest, environment: Path) -> None:
    commands = (
        "set remotetimeout 30",
        f"target remote {linux.gdb_socket}",
        "optprobe add vfs_read if count > 1000 do count by $comm",
        "optprobe run -for 0.2",
        "optprobe show 1",
        "optprobe report",
        "optprobe expect $optprobe_missed(1) == 0",
    )
    done = run(environment, "optprobe", "gdb", "-nx", "-q", "-batch", *(w for line in commands for w in ("-ex", line)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vfs_read" in done.stdout and ": optimized, " in done.stdout and "count by $comm" in done.stdout
    assert linux.check("echo alive", 20) == "alive\n"


def test_a_script_that_begins_with_the_installed_program(linux: Guest, environment: Path, tmp_path: Path) -> None:
    """It prints what a script prints, and nothing of GDB's."""
    tool = tmp_path / "tool.bt"
    tool.write_text(
        "#!/usr/bin/env -S optprobe script\n"
        'BEGIN { printf("%s\\n", str($1)); @a = 3; } interval:ms:50 { exit(7); } '
        'kprobe:vfs_read /comm == "none"/ { @r = count(); }\n'
    )
    tool.chmod(0o755)
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    variables = {"PATH": path, "HOME": str(tmp_path), "OPTPROBE_TARGET": str(linux.gdb_socket)}
    done = subprocess.run([tool, "a b"], env=variables, capture_output=True, text=True, timeout=200, input="")
    assert (done.stdout, done.returncode) == ("Attaching 3 probes...\na b\n\n\n@a: 3\n@r: 0\n", 7), done.stderr
    at_guest = ("optprobe", "script", "--target", str(linux.gdb_socket))
    refused = run(environment, *at_guest, "-e", "kprobe:vfs_read { @ = b; }")
    assert refused.returncode == 1 and refused.stdout == ""
    assert "optprobe: Unknown identifier: 'b'\n    kprobe:vfs_read { @ = b; }\n" in refused.stderr
    nowhere = run(environment, "optprobe", "script", "--target", "/nowhere", "-e", "BEGIN { }")
    assert nowhere.returncode == 1 and nowhere.stderr.startswith("optprobe: /nowhere: No such file")


@pytest.fixture
def step(environment: Path, tmp_path: Path) -> Iterator[Step]:
    """Return a function that runs a step of the workflow, in a repository that has the example's folder as ci/."""
    shutil.copytree(EXAMPLE, tmp_path / "ci", ignore=shutil.ignore_patterns("__pycache__"))
    # Packages of the suite's Python, pytest among them, where the workflow installs them.
    variables = {
        **os.environ,
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "GUEST": f"test-{os.getpid()}",
    }

    def run_step(name: str) -> subprocess.CompletedProcess[str]:
        found = re.search(rf"- name: {name}\n +run: (.*)\n", (EXAMPLE / "workflow.yml").read_text())
        assert found is not None
        return subprocess.run(
            ["sh", "-c", found[1]], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=200
        )

    yield run_step
    shutil.rmtree(guests_directory() / f"test-{os.getpid()}", ignore_errors=True)


def test_the_example_of_a_workflow(step: Step, tmp_path: Path) -> None:
    done = step("Probes in GDB")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "report.json").read_text().splitlines()]
    assert [line["hits"] for line in lines if line["type"] == "probe"] == [1000, 1000]
    assert "Linux version" in (tmp_path / "console.log").read_text()


def test_the_example_of_a_workflow_fails_with_its_assertion(step: Step, tmp_path: Path) -> None:
    script = tmp_path / "ci" / "reads.gdb"
    script.write_text(script.read_text().replace("hits(2) == 1000", "hits(2) == 1001"))
    done = step("Probes in GDB")
    assert done.returncode == 1 and "optprobe: " in done.stderr
    assert (tmp_path / "report.json").exists()


def test_the_example_in_python(step: Step) -> None:
    done = step("Probes from Python")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_probed_guest(linux: Guest) -> None:
    with Debugger(linux.gdb_socket) as gdb:
        g = ProbedGuest(linux, gdb)
        g("optprobe add vfs_read if count == 3 || 0 do count by $comm")
        assert g.run("dd if=/dev/zero of=/dev/null bs=3 count=20 2>/dev/null; echo done") == "done\n"
        assert g.hits() == g.hits(1) >= 20
        assert g.json("optprobe report 1 -json")[0]["type"] == "probe"
        assert g.json("optprobe explain vfs_read -json if count | 1")[0]["tier"] == "optimized"
        with pytest.raises(GuestError, match="exit status 1"):
            g.run("false")
