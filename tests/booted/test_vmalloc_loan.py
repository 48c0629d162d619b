"""A kernel without padding in its text lends memory for detours; these tests hide the padding of one that has some."""

from __future__ import annotations

from pathlib import Path

from qemu.guest import Guest
from tests.booted.batch import batch, keep
from tests.booted.gdb import Console

NO_PADDING = Path(__file__).with_name("no_padding.py")
TELLS = "the guest runs until its kernel has lent 2056 KiB"
RUNS = "The guest runs until its kernel has lent memory for detours"


def lent(guest: Guest) -> int:
    """How many areas of that size the kernel has given away; behind each is a page more."""
    return int(guest.check("grep -c ' 2109440 .* pages=514 ' /proc/vmallocinfo || true").split()[0])


def test_a_dry_run_tells_that_the_guest_would_run_and_changes_nothing(linux: Guest) -> None:
    asked = ["optprobe explain vfs_read", keep("facilities", "optprobe doctor"), "optprobe version"]
    finished = batch(linux, [f"source {NO_PADDING}", *asked])
    assert finished.status == 0 and TELLS in finished.output, finished.output
    assert "would be optimized" in finished.output and RUNS not in finished.output
    assert lent(linux) == 0


def test_probes_in_memory_that_is_lent(linux: Guest) -> None:
    """Counts, a table, returns; a kill; another GDB takes them over, and takes them out."""
    before = lent(linux)

    def reads() -> None:
        linux.check("dd if=/dev/zero of=/dev/null bs=7 count=100 2>/dev/null")

    with Console(linux) as gdb:
        gdb("set optprobe guardian off")
        gdb(f"source {NO_PADDING}")
        said = gdb("optprobe add vfs_read do count by $comm")
        assert TELLS in said and RUNS in said and "optimized" in said, said
        assert RUNS not in gdb("optprobe add vfs_read -return do count by $comm")
        gdb.send("continue")
        reads()
        gdb.interrupt()
        assert gdb("optprobe report").count("[dd]: 10") == 2
        assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
        gdb.send("continue")
        assert lent(linux) == before + 1
        gdb.kill()
    reads()
    with Console(linux) as gdb:
        assert gdb("optprobe recover").count("optimized") == 2
        gdb.send("continue")
        reads()
        gdb.interrupt()
        assert gdb("optprobe report").count("[dd]: 30") == 2
        gdb.kill()
    # The one that removes them finds the memory by the journal alone.
    finished = batch(linux, ["optprobe recover -remove", "optprobe add vfs_read", "optprobe check"])
    assert finished.status == 0 and "2 probes of an earlier GDB removed" in finished.output, finished.output
    assert RUNS not in finished.output and lent(linux) == before
    assert linux.problems() == []


def test_memory_goes_back_when_gdb_leaves(linux: Guest) -> None:
    before = lent(linux)
    finished = batch(linux, [f"source {NO_PADDING}", "optprobe add vfs_read", "optprobe run -for 0.5"])
    assert finished.status == 0 and RUNS in finished.output, finished.output
    assert lent(linux) == before
