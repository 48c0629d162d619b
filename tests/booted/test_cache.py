"""A later session takes what an earlier one found in the same text, and nothing that was found in another text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qemu.debugger import Debugger
from qemu.guest import Guest, Options
from tests.booted.addresses import address_of
from tests.booted.batch import batch
from tests.booted.conftest import ACCELERATOR

TRACING = "/sys/kernel/tracing"
PLANS = Path(__file__).with_name("guest_plans.py")
LINKED_TO = 0xFFFFFFFF81000000
SEEKS = "Finding out what leads into"


@pytest.mark.parametrize(("first", "arch"), [("ppc_guest", "ppc64le"), ("arm_guest", "aarch64")])
def test_plans_of_one_boot_hold_in_the_next_on(
    first: str, arch: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest: Guest = request.getfixturevalue(first)
    # What an earlier GDB had to leave in the text, because a thread was inside, goes first.
    assert batch(guest, ["optprobe add vfs_write", "optprobe delete", "optprobe commit"]).status == 0
    with Guest.start(Options(arch=arch, extra=ACCELERATOR)) as later:
        monkeypatch.setenv("OPTPROBE_CACHE", str(tmp_path))
        made = plans(guest, "keep-plans")["made"]
        found = plans(later, "compare-plans")
    assert found["others"] == []
    assert found["compared"] > 0.9 * made > 80 and "optimized" in found["tiers"]


@pytest.fixture(scope="module")
def unmoved() -> Iterator[Guest]:
    """A guest whose kernel lies where it was linked to: lower than any that is moved."""
    with Guest.start(Options(append="nokaslr")) as guest:
        yield guest


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory, unmoved: Guest) -> Iterator[Path]:
    """A cache of symbols with nothing in it. Guests are started before: their kernels are in the cache of always."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTPROBE_CACHE", str(folder))
        yield folder / "symbols"


def sought(guest: Guest, first: str = "") -> bool:
    """Whether a session finds out what leads into functions; a probe in the middle of one needs it."""
    with Debugger(guest.gdb_socket) as gdb:
        if first:
            gdb(first)
        gdb("optprobe explain vfs_read")
        places = [int(each, 16) for each in re.findall(r"^ *(?:=> )?(0x[0-9a-f]+)", gdb("x/8i vfs_read"), re.MULTILINE)]
        said = gdb(f"optprobe explain *{places[-1]:#x}")
        if first:
            gdb("optprobe delete")
    assert "would be" in said or "cannot be" in said, said
    return SEEKS in said


def put(guest: Guest, place: str, old: int | None, new: int | None = None) -> int:
    """Write a byte of the kernel's text, as a guest would that is another one; the byte that was there."""
    with Debugger(guest.gdb_socket) as gdb:
        gdb("optprobe explain vfs_read")
        found = int(gdb(f"output/u *(unsigned char *)({place})").split()[-1])
        assert old is None or found == old
        if new is not None:
            gdb(f"set var *(unsigned char *)({place}) = {new}")
    return found


def test_a_guest_with_the_same_build_id_and_other_text_is_looked_at_itself(linux: Guest, cached: Path) -> None:
    assert sought(linux)
    linux.check(f"cd {TRACING}; echo vfs_write > set_ftrace_filter; echo function > current_tracer")
    try:
        assert not sought(linux), "a tracer makes no other text"
    finally:
        linux.check(f"cd {TRACING}; echo nop > current_tracer; echo > set_ftrace_filter")
    assert not sought(linux, "optprobe add vfs_write,kfree do count by $comm"), "nor do branches and detours of ours"
    # In front of a function there is padding, which nothing runs.
    padding = "(long)&vfs_read - 1"
    was = put(linux, padding, None)
    try:
        put(linux, padding, was, was ^ 0xFF)
        assert sought(linux), "one byte of another kind, anywhere"
    finally:
        put(linux, padding, was ^ 0xFF, was)
    assert not sought(linux)
    assert len(list(cached.glob("*/*/landings-*"))) == 2


def plans(guest: Guest, command: str) -> dict[str, Any]:
    with Debugger(guest.gdb_socket) as gdb:
        gdb("optprobe explain vfs_read")
        gdb(f"source {PLANS}")
        (line,) = (line for line in gdb(command).splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


def start_of(guest: Guest) -> int:
    return address_of(guest, "_stext")


def test_what_one_boot_finds_out_holds_in_the_next_wherever_the_kernel_is_loaded(
    linux: Guest, unmoved: Guest, cached: Path
) -> None:
    sought(linux)
    files = len(list(cached.glob("*/*/*-*")))
    made = plans(linux, "keep-plans")["made"]
    assert start_of(unmoved) == LINKED_TO
    # Numbers as small as that look like addresses of it more often than of one that lies higher.
    assert not sought(unmoved)
    found = plans(unmoved, "compare-plans")
    assert found["others"] == []
    assert found["compared"] > 0.9 * made > 100
    assert {"optimized", "breakpoint"} <= {*found["tiers"]}
    assert len(list(cached.glob("*/*/*-*"))) == files + 1, "that of the plans"
