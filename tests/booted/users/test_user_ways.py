"""A CPU that stands before our table of traps comes by it to code of ours, which nothing else leads to any more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from qemu.channel import ChannelError, Command
from qemu.guest import Guest
from tests.booted import answer, calls
from tests.booted.gdb import Console, release

PATH = "/tmp/calls"
COUNT = 2000
MOST_ROUNDS = 60
SESSION = "python from gdb_optprobe.debugger.attach import attachments; session = attachments.session()"
HANDLER = "python print(hex(session.uprobes.traps.dispatcher._installed.code.detour.address))"


@pytest.fixture
def status(linux: Guest, tmp_path: Path) -> Iterator[int]:
    """The program is in the guest; what it exits with."""
    answer.put(linux, calls.build(tmp_path, COUNT), PATH)
    yield linux.run(PATH)[0]
    linux.check(f"rm {PATH}")


def stopped_at(gdb: Console, handler: str) -> None:
    """A process has come to a trap of ours, and to the first instruction of the handler that was there then."""
    gdb(f"hbreak *{handler}")
    gdb.work = gdb.guest.spawn(PATH)
    assert "Breakpoint" in gdb("continue")
    gdb("delete")


def ends(gdb: Console, linux: Guest, status: int) -> None:
    """As it does where nothing is probed."""
    work, gdb.work = gdb.work, None
    assert work is not None
    assert _finished(gdb, work) == status
    assert "holds what we wrote" in gdb("optprobe check")
    assert linux.problems() == []


def _finished(gdb: Console, work: Command) -> int:
    """Let the guest run until the command has ended; what with."""
    for _ in range(MOST_ROUNDS):
        gdb("optprobe run -for 0.5", 30)
        with contextlib.suppress(ChannelError):
            return work.wait(0.1)[0]
    raise AssertionError(f"the guest did not finish in {MOST_ROUNDS} rounds: {work.command}")


def test_the_table_grows_behind_it(linux: Guest, status: int) -> None:
    """And another probe comes where it is on the way to."""
    with Console(linux) as gdb:
        gdb(SESSION)
        gdb("python session.uprobes.traps.dispatcher.slots = 8")
        assert "trapped" in gdb(f"optprobe add -user {PATH}:test", 60)
        stopped_at(gdb, gdb(HANDLER).strip())
        for place in ("inner", "leaf", "test+1", "test+4", "test"):
            assert "trapped" in gdb(f"optprobe add -user {PATH}:{place}")
        assert gdb("python print(session.uprobes.traps.dispatcher._installed.table.layout.slots)").strip() == "32"
        gdb("optprobe commit -timeout 5", 30)
        ends(gdb, linux, status)
        hits = [probe["hits"] for probe in gdb.probes() if probe["location"] == f"{PATH}:test"]
        # Who had come before the second was added is not its hit.
        assert hits == [COUNT, COUNT - 1]


def test_another_gdb_takes_over_behind_it(linux: Guest, status: int) -> None:
    """And collects what nobody is in."""
    with Console(linux) as gdb:
        assert "trapped" in gdb(f"optprobe add -user {PATH}:test", 60)
        gdb(SESSION)
        handler = gdb(HANDLER).strip()
        gdb.kill()
    release(linux)
    with Console(linux) as gdb:
        stopped_at(gdb, handler)
        assert "trapped" in gdb("optprobe recover", 60)
        gdb("optprobe commit -timeout 5", 30)
        ends(gdb, linux, status)
        assert gdb.hits(1) == COUNT
