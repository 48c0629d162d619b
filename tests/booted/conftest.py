"""Guests for tests, and what is left behind when one fails.

    linux       the stock x86-64 kernel, two CPUs, booted once a session; each test must leave it healthy
    ppc_guest   the stock ppc64le kernel, likewise
    arm_guest   the stock aarch64 kernel, likewise
    each_linux  one after the other: for a test of what every architecture must do. On aarch64 most such tests run with
                OPTPROBE_EVERY_ISA=1 or OPTPROBE_FULL=1; those with `on_every_isa` always do
    boot        boots a guest of the test's own choice; it ends with the test
    fresh       a guest of the test's own choice as it is after a boot, and the test may leave anything in it

On x86-64 `fresh` loads a snapshot that the first guest with these options made when it was up: 0.3 s in place of 3, and
GDB's cache knows what leads into the kernel's functions, which takes seconds to find out after each boot. Such guests
share a kernel address; what needs others boots. ppc64le boots: a vCPU of it may have no timer after `loadvm`.

A failing test leaves the logs of its guests in one folder and the report names it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from qemu.cache import cache_directory
from qemu.debugger import gdb_program, knows
from qemu.guest import Guest, Options
from qemu.kernels import MODULES
from tests.booted.gdb import release

__all__ = ["Boot"]

Boot = Callable[..., Guest]

HERE = Path(__file__).parent
running: list[Guest] = []
BOOTED = "booted"


# QEMU 7.2 with a thread for each vCPU can hang a guest that rewrites its own text (a tracer, a kprobe event), with us
# or without: a vCPU goes on running an int3 that memory no longer holds. One thread for all vCPUs does not. So the
# suite's guests have one, but where a test needs vCPUs to run at once (`PARALLEL`); the full form takes the risk.
PARALLEL: tuple[str, ...] = ()
FULL = bool(os.environ.get("OPTPROBE_FULL"))
EVERY_ISA = FULL or bool(os.environ.get("OPTPROBE_EVERY_ISA"))
"""Whether aarch64 has the tests, in their usual form, that the suite runs on x86-64 and ppc64le: twelve minutes."""
ARM = pytest.param("arm_guest", id="aarch64")
EACH = ["linux", "ppc_guest", ARM]
on_every_isa = pytest.mark.parametrize("each_linux", EACH, indirect=True)
"""For a test that proves of aarch64 what no other one does."""
ACCELERATOR = PARALLEL if FULL else ("-accel", "tcg,thread=single")


GDB_NAMES = {"ppc64le": "powerpc:common64", "aarch64": "aarch64"}


def skip_unknown(arch: str) -> None:
    """Skip the test where the GDB to test with does not know the guest."""
    if arch in GDB_NAMES and not knows(GDB_NAMES[arch]):
        pytest.skip(f"{gdb_program()} does not know {arch}")


def for_tests(arch: str) -> Iterator[Guest]:
    skip_unknown(arch)
    with Guest.start(Options(arch=arch, extra=ACCELERATOR, modules=MODULES)) as guest:
        running.append(guest)
        yield guest
        running.remove(guest)


@pytest.fixture(scope="session")
def _linux() -> Iterator[Guest]:
    yield from for_tests("x86_64")


@pytest.fixture(scope="session")
def _ppc_guest() -> Iterator[Guest]:
    yield from for_tests("ppc64le")


@pytest.fixture(scope="session")
def _arm_guest() -> Iterator[Guest]:
    yield from for_tests("aarch64")


@pytest.fixture
def linux(_linux: Guest) -> Iterator[Guest]:
    """The stock guest of the session. A test that makes it ill fails, and so do those after it."""
    yield _linux
    assert _linux.problems() == []


@pytest.fixture
def ppc_guest(_ppc_guest: Guest) -> Iterator[Guest]:
    """The stock ppc64le guest of the session, under the same rule."""
    yield _ppc_guest
    assert _ppc_guest.problems() == []


@pytest.fixture
def arm_guest(_arm_guest: Guest) -> Iterator[Guest]:
    """The stock aarch64 guest of the session, under the same rule."""
    yield _arm_guest
    assert _arm_guest.problems() == []


@pytest.fixture(params=EACH if EVERY_ISA else EACH[:2])
def each_linux(request: pytest.FixtureRequest) -> Guest:
    """The session's guest of each architecture."""
    guest: Guest = request.getfixturevalue(request.param)
    return guest


@pytest.fixture
def boot() -> Iterator[Boot]:
    """Boot a guest: `boot(cpu="Nehalem", …)` takes the fields of `Options`."""
    started: list[Guest] = []

    def start(**options: Any) -> Guest:
        skip_unknown(options.get("arch", "x86_64"))
        guest = Guest.start(Options(**{"extra": ACCELERATOR, **options}))
        started.append(guest)
        running.append(guest)
        return guest

    yield start
    for guest in started:
        guest.stop()
        running.remove(guest)


@pytest.fixture(scope="session")
def _booted() -> Iterator[dict[Options, Guest]]:
    """The guests of `fresh` by their options: paused while no test uses them."""
    booted: dict[Options, Guest] = {}
    yield booted
    for guest in booted.values():
        guest.stop()


@pytest.fixture
def fresh(_booted: dict[Options, Guest], boot: Boot) -> Iterator[Boot]:
    """Return a guest as it is after a boot: `fresh(extra=PARALLEL)` takes the fields of `Options`."""
    used: list[Options] = []

    def start(**fields: Any) -> Guest:
        options = Options(**{"extra": ACCELERATOR, **fields})
        if options.arch != "x86_64":
            return boot(**fields)
        assert options not in used, "one at a time"
        if options in _booted:
            guest = _booted[options]
            guest.restore(BOOTED)
            # QEMU keeps the breakpoints of a killed GDB until the next one comes.
            release(guest)
            guest.resume()
        else:
            guest = _booted[options] = Guest.start(options)
            guest.snapshot(BOOTED)
        used.append(options)
        running.append(guest)
        return guest

    yield start
    for options in used:
        running.remove(_booted[options])
        if _booted[options].healthy:
            _booted[options].pause()
        else:
            _booted.pop(options).stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("guest")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and running and HERE in item.path.parents:
        report.sections.append(("guests", f"their logs are in {_keep_logs(item.name)}"))
    return report


def _keep_logs(test: str) -> Path:
    folder = cache_directory() / "failures" / re.sub(r"\W+", "-", test)
    shutil.rmtree(folder, ignore_errors=True)
    for guest in running:
        place = folder / guest.directory.name
        place.mkdir(parents=True)
        for log in guest.directory.glob("*.log"):
            shutil.copy(log, place)
    return folder
