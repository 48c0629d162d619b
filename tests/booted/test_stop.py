"""`optprobe break` and `do stop`: the guest stops where the condition holds, as it stops at a breakpoint of GDB's."""

from __future__ import annotations

import re

import pytest

from qemu.bench_target import BENCH_TARGETS
from qemu.guest import Guest
from tests.booted.conftest import FULL, on_every_isa
from tests.booted.gdb import Console, Mi, release

MANY = 1_000_000 if FULL else 20_000
SIZE = 7777
# Where every call comes by, and the third argument, which is how many bytes a read asks for.
ENTRY = {arch: (target.entry, target.size) for arch, target in BENCH_TARGETS.items()}
REGISTERS = {
    "x86_64": [*(f"r{n}" for n in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp", *range(8, 16), "ip")), "eflags"],
    "ppc64le": [*(f"r{n}" for n in range(32)), "pc", "cr"],
    "aarch64": [*(f"x{n}" for n in range(31)), "sp", "pc", "cpsr"],
}


def dd(size: int, count: int = 1) -> str:
    return f"dd if=/dev/zero of=/dev/null bs={size} count={count} 2>/dev/null"


def state(guest: Guest, gdb: Console) -> dict[str, int]:
    names = REGISTERS[guest.options.arch]
    gdb(f"python names = {names}")
    values = gdb("python print(*[int(gdb.newest_frame().read_register(name)) % 2**64 for name in names])")
    return dict(zip(names, map(int, values.split()), strict=True))


@on_every_isa
def test_among_many_hits_the_one_that_holds(each_linux: Guest) -> None:
    """The guest stops there at once, shows who called, and goes on: nothing is counted twice."""
    place, size = ENTRY[each_linux.options.arch]
    each_linux.check(f"printf '{dd(1, MANY)}\\n{dd(SIZE)}\\n{dd(1, 100)}\\n' > /s")
    with Console(each_linux) as gdb:
        gdb(f'optprobe break vfs_read if $comm == "dd" && $arg3 == {SIZE}')
        gdb('optprobe add vfs_read if $comm == "dd"')
        gdb("optprobe commit")
        gdb.work = each_linux.spawn("sh /s")
        told = gdb("continue", 200)
        assert re.search(r"hit optprobe 1, 0x[0-9a-f]+ in vfs_read \(\)$", told.rstrip()), told
        assert gdb.value("$pc") == gdb.value(place) and gdb.value(size) == SIZE
        assert re.match(r"#0 .* in vfs_read \(\)\n#1 .* in ksys_read \(\)\n", gdb("bt 3"))
        assert gdb.hits(1) == 1 and gdb.hits(2) == MANY + 1
        assert [view["tier"] for view in gdb.probes()] == ["optimized"] * 2
        assert "holds what we wrote" in gdb("optprobe check")
        gdb.finish_work()
        assert gdb.hits(1) == 1 and gdb.hits(2) == MANY + 1 + 100


@pytest.mark.parametrize("tier", ["optimized", "breakpoint", "boosted"])
def test_as_at_a_breakpoint(each_linux: Guest, tier: str) -> None:
    """The same registers, those that are dead to the kernel too; steps and `finish` start from there."""
    place, size = ENTRY[each_linux.options.arch]
    forced = f"-tier {tier}" if tier != "optimized" else ""
    condition = f'$comm == "dd" && $arg3 == {SIZE}'
    each_linux.check(f"printf '{dd(SIZE, 9)}\\n' > /s")
    with Console(each_linux) as gdb:

        def seen() -> tuple[dict[str, int], int, int]:
            gdb.work = each_linux.spawn("sh /s")
            gdb("continue")
            found = state(each_linux, gdb)
            gdb("stepi")
            stepped = gdb.offset("vfs_read")
            gdb("continue")
            # While GDB lets it, the task may go to the other CPU, and GDB stops here again.
            while "ksys_read" not in (said := gdb("finish")):
                assert "vfs_read" in said
            returned = gdb.offset("ksys_read")
            gdb("continue")
            assert gdb.value("$pc") == gdb.value(place)
            return found, stepped, returned

        gdb("optprobe explain vfs_read")  # GDB knows the kernel's symbols from now on
        gdb(f"break *({place}) if {size} == {SIZE}")
        theirs = seen()
        gdb("delete")
        gdb.finish_work()
        said = gdb(f"optprobe break vfs_read {forced} if {condition}")
        assert f": {tier}" in said, said
        gdb("optprobe add vfs_read if $arg3 > 5 && $arg3 < 9 do hist($arg3), max($arg3) by $pid")
        ours = seen()
        # Which pointers it is called with is another matter each time, large numbers are these.
        numbers = {name for name, value in theirs[0].items() if value < 1 << 28}
        assert {name: ours[0][name] for name in numbers} == {name: theirs[0][name] for name in numbers}
        assert ours[1:] == theirs[1:]
        stopped = gdb.hits(1)
        assert stopped == gdb.transcript.count("hit optprobe 1, ")
        gdb("optprobe disable 1")
        gdb.finish_work()
        assert gdb.hits(1) == stopped


def test_in_the_middle_of_a_branch(linux: Guest) -> None:
    """The text is original there while somebody looks; two probes at one address and one behind stop in turn."""
    linux.check(f"printf '{dd(SIZE, 4)}\\n' > /s")
    with Console(linux) as gdb:
        gdb("optprobe add *vfs_read+5")
        for clause in ("*vfs_read+7 if $rdx == 7777", "*vfs_read+7 if $rdx > 7776", "*vfs_read+9 if $rdx == 7777"):
            gdb(f"optprobe break {clause}")
        gdb("optprobe commit")
        assert [view["tier"] for view in gdb.probes()] == ["optimized"] * 4
        assert [view["patch_size"] for view in gdb.probes()] == [5, 0, 0, 0], "one branch"
        gdb.work = linux.spawn("sh /s")
        for turn in range(1, 4):
            assert "hit optprobe 2, optprobe 3, " in gdb("continue")
            assert gdb.offset("vfs_read") == 7
            assert "0x41\t0x56\t0x41\t0x55" in gdb("x/4xb $pc")
            assert "holds what we wrote" in gdb("optprobe check")
            if turn == 2:
                assert "hit optprobe 4, " in gdb("stepi")
            else:
                assert "hit optprobe 4, " in gdb("continue")
            assert gdb.offset("vfs_read") == 9
            assert [gdb.hits(number) for number in (2, 3, 4)] == [turn] * 3
        gdb("continue")
        gdb("optprobe delete")
        assert gdb.offset("vfs_read") == 7
        gdb("stepi")
        assert gdb.offset("vfs_read") == 9
        gdb.finish_work()
        assert "everything is settled" in gdb("optprobe commit")


def test_several_at_once(each_linux: Guest) -> None:
    """Every hit of every CPU is told, once, whichever tells first."""
    each = 200 if FULL else 15
    each_linux.check(f"printf 'for i in 1 2 3; do {dd(SIZE, each)} & done; wait\\n' > /s")
    with Console(each_linux) as gdb:
        gdb(f"optprobe break vfs_read if $arg3 == {SIZE}")
        gdb("optprobe break ksys_read if $arg3 == 7777 && $cpu == 0")
        gdb(f"optprobe add ksys_read if $arg3 == {SIZE}")
        gdb.work = each_linux.spawn("sh /s")
        told = 0
        while told < 3 * each:
            said = gdb("continue")
            told += said.count("optprobe 1, ")
            assert " hit optprobe " in said, said
        gdb("optprobe disable 2")
        gdb.finish_work()
        assert told == gdb.hits(1) == gdb.hits(3) == 3 * each


def test_several_at_once_and_steps(linux: Guest) -> None:
    """Nor does a step from there count or tell a hit again that QEMU reports twice, as it may where two CPUs stop."""
    each = 200 if FULL else 8
    linux.check(f"printf 'for i in 1 2 3; do {dd(SIZE, each)} & done; wait\\n' > /s")
    with Console(linux) as gdb:
        gdb(f"optprobe break vfs_read if $arg3 == {SIZE}")
        gdb(f"optprobe add ksys_read if $arg3 == {SIZE}")
        gdb.work = linux.spawn("sh /s")
        told = turn = 0
        while told < 3 * each:
            told += gdb(("continue", "nexti", "continue", "advance vfs_read")[turn % 4]).count("optprobe 1, ")
            turn += 1
        gdb.finish_work()
        assert told == gdb.hits(1) == gdb.hits(2) == 3 * each


def test_leaving_and_making_way(each_linux: Guest) -> None:
    """A breakpoint of the user's there too; what is switched off or deleted leaves the guest where it stands."""
    place, size = ENTRY[each_linux.options.arch]
    each_linux.check(f"printf '{dd(SIZE, 6)}\\n' > /s")
    with Console(each_linux) as gdb:
        gdb(f"optprobe break vfs_read if $arg3 == {SIZE}")
        gdb.work = each_linux.spawn("sh /s")
        assert "hit optprobe 1, " in gdb("continue")
        gdb(f"break *({place}) if {size} == {SIZE}")
        assert gdb.probe(1)["reason"]["code"] == "USER_BREAKPOINT"
        assert "Breakpoint" in gdb("continue")
        gdb("delete")
        assert gdb.probe(1)["tier"] == "optimized" and gdb.hits(1) == 2
        assert "hit optprobe 1, " in gdb("continue")
        gdb("optprobe disable 1")
        gdb("optprobe enable 1")
        assert "hit optprobe 1, " in gdb("continue")
        assert gdb.hits(1) == 4
        assert " hit optprobe 1, " in gdb("optprobe run") and gdb.hits(1) == 5
        work, gdb.work = gdb.work, None
        assert gdb.value("$pc") == gdb.value(place)
    # GDB has taken all of it out of the guest, which stood there.
    work.wait(20)
    work.close()


def test_a_python_handler_and_run(linux: Guest) -> None:
    """`optprobe run` returns with who has stopped it, in every tier."""
    linux.check(f"printf '{dd(SIZE, 4)}\\n' > /s")
    with Console(linux) as gdb:
        gdb("python from gdb_optprobe import kprobe")
        gdb(f'python p = kprobe("vfs_read", when="count == {SIZE}", do="stop")')
        gdb.work = linux.spawn("sh /s")
        assert re.search(r"^Thread .* hit optprobe 1, 0x[0-9a-f]+ in vfs_read \(\)$", gdb("optprobe run"), re.M)
        gdb(f'python q = kprobe("vfs_read", pre_handler=lambda hit: hit.regs["rdx"] == {SIZE} and hit.stop())')
        assert " hit optprobe 1, optprobe 2, 0x" in gdb("optprobe run")
        gdb("python p.delete()")
        assert " hit optprobe 2, 0x" in gdb("optprobe run")
        gdb(f'python r = kprobe("vfs_read", when="count == {SIZE}", pre_handler=lambda hit: print("seen", hit.probe))')
        assert "seen 3\n" in gdb("optprobe run")
        gdb("python q.delete(); r.delete()")
        gdb.finish_work()


def test_an_editor_sees_where(linux: Guest) -> None:
    """MI: a record of the stop with a frame, and `-exec-continue` goes on from there."""
    linux.check(f"printf '{dd(SIZE, 2)}\\n' > /s")
    mi = Mi(linux)
    try:
        mi.console(f"optprobe break vfs_read if $arg3 == {SIZE}")
        mi.console(f"optprobe add vfs_read if $arg3 == {SIZE}")
        work = linux.spawn("sh /s")
        for _ in range(2):
            mi("-exec-continue")
            stopped = mi.until(r"\*stopped,")
            assert 'reason="breakpoint-hit"' in stopped and 'func="vfs_read"' in stopped
        mi("-exec-continue")
        work.wait(20)
        mi("-exec-interrupt --all")
        mi.until(r"\*stopped,")
        hits = [line.split()[2] for line in mi.console("optprobe list").splitlines() if " optimized " in line]
        assert hits == ["2", "2"]
        mi.console("optprobe delete")
    finally:
        mi.kill()
        mi.close()
        release(linux)
