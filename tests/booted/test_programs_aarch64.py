"""Probes on 64-bit programs of the stock aarch64 guest: exact counts on two CPUs, and nothing left behind."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64
from qemu.guest import Guest
from tests.booted import answer
from tests.booted.assembled import assembled
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, PARALLEL, Boot
from tests.booted.gdb import Console
from tests.booted.test_handlers import maps, report
from tests.booted.test_ppc64le import ATTEMPT, attempt, two_dd

HITS = 2_000
SVC, READ = 0xD400_0001, 0xD280_07E8  # mov x8, #63
ENTRY = 0xA9BD_7BFD  # stp x29, x30, [sp, #-48]!
PIECE = "dd if=/bin/busybox bs=4096 skip={} count={} 2>/dev/null | od -A n -v -t x4"


def code_of_read(guest: Guest) -> dict[int, int]:
    """Words of busybox's read(), by their offset in the file: from its entry to its return."""
    first, count = 0, 64
    while True:
        words = [int(word, 16) for word in guest.check(PIECE.format(first, count)).split()]
        assert words, "busybox calls read"
        for at in range(len(words) - 1):
            if words[at : at + 2] == [READ, SVC] and ENTRY in words[max(0, at - 16) : at]:
                start = max(place for place in range(max(0, at - 16), at) if words[place] == ENTRY)
                end = words.index(0xD65F_03C0, at)
                return {4096 * first + 4 * place: words[place] for place in range(start, end + 1)}
        first += count


def test_a_program_is_counted_exactly_and_runs_as_before(arm_guest: Guest) -> None:
    """At its entry, at a system call, at a branch and at a return; in processes that begin later, on two CPUs."""
    code = code_of_read(arm_guest)
    entry, *_, last = code
    call = next(at for at, word in code.items() if word == SVC)
    branch = next(at for at, word in code.items() if word >> 24 == 0x34)  # cbz
    insns = [AARCH64.decode(struct.pack("<I", code[at]), at)[0].text for at in (entry, call, branch, last)]
    places = 'if $comm == "dd"'
    script: list[str | Workload] = [
        "set optprobe table-keys 8",
        f"optprobe add -user /bin/busybox:{entry:#x} {places} do hist($x2), count by *(unsigned char *)$x1 & 0",
        f"optprobe add -user /bin/busybox:{call:#x} {places}",
        f"optprobe add -user /bin/busybox:{branch:#x} {places}",
        f"optprobe add -user /bin/busybox:{call + 4:#x} {places} do count by $x0",
        f"optprobe add -user /bin/busybox:{last:#x} {places}",
        two_dd(HITS),
        keep("list", "optprobe list"),
        report("report"),
        "optprobe check",
        *ATTEMPT,
        attempt(f"-user /bin/busybox:{entry:#x} -return"),
        "optprobe delete",
        Workload("dd if=/dev/zero of=/dev/null bs=1 count=10 2>/dev/null"),
        "optprobe check",
    ]
    finished = batch(arm_guest, script)
    assert finished.status == 0, finished.output
    probes = finished.json("list")
    assert [probe["tier"] for probe in probes] == ["trapped"] * 5
    assert [probe["hits"] for probe in probes] == [2 * HITS] * 5, insns
    found = maps(finished, "report")
    assert dict(found[4, "count by $x0"]) == {(1,): 2 * HITS}
    assert not any(probe["faults"] for probe in probes)
    assert f"where busybox:{entry:#x} returns is not known: it has no symbol" in finished.output
    assert len(re.findall("holds what we wrote", finished.output)) == 2


CALLS = 300
# The note asks for guarded pages (GNU_PROPERTY_AARCH64_FEATURE_1_BTI). With an argument it calls what has no pad.
CALLER = """
        .arch armv8.5-a
        .global _start, padded, signed
        .type padded, @function
        .type signed, @function
_start: ldr x22, [sp]
        mov x19, #CALLS
        adr x20, padded
        adr x21, signed
again:  blr x20
        blr x21
        subs x19, x19, #1
        b.ne again
        cmp x22, #1
        b.eq end
        adr x20, bare
        blr x20
end:    mov x0, #7
        mov x8, #93
        svc #0
padded: bti c
        add x0, x0, #1
bare:   ret
        .size padded, . - padded
signed: paciasp
        add x0, x0, #1
        autiasp
        ret
        .size signed, . - signed
        .section .note.gnu.property, "a"
        .align 3
        .word 4, 16, 5
        .asciz "GNU"
        .word 0xc0000000, 4, GUARDED, 0
"""


def test_landing_pads_of_programs_stay(boot: Boot, tmp_path: Path) -> None:
    """A trap there would kill a program with guarded pages; behind it, or without such pages, it is counted."""
    guest = boot(arch="aarch64", cpu="max,pauth-impdef=on")
    for guarded in 0, 1:
        source = CALLER.replace("CALLS", str(CALLS)).replace("GUARDED", str(guarded))
        answer.put(guest, assembled(tmp_path / f"caller{guarded}", source, "aarch64"), f"/tmp/caller{guarded}")
    assert guest.run("/tmp/caller1 on; echo $?")[1].split()[-1] == "132", "its pages are guarded: it ends by SIGILL"
    assert guest.run("/tmp/caller0 on; echo $?")[1].split()[-1] == "7"
    script: list[str | Workload] = [
        "set optprobe table-keys 8",
        *ATTEMPT,
        attempt("-user /tmp/caller1:padded"),
        attempt("-user /tmp/caller1:signed"),
        "optprobe add -user /tmp/caller1:padded+4",
        "optprobe add -user /tmp/caller1:signed+4",
        "optprobe add -user /tmp/caller0:padded",
        "optprobe add -user /tmp/caller0:signed",
        Workload("/tmp/caller1; echo $?; /tmp/caller0; echo $?"),
        keep("list", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == ("7\n7\n",)
    assert [probe["hits"] for probe in finished.json("list")] == [CALLS] * 4
    for name in "padded", "signed":
        assert f"the landing pad at caller1:{name} must be found by indirect branches" in finished.output
        assert f"probe caller1:{name}+0x4 instead" in finished.output
    assert guest.problems() == []


TURNS = 200
# It forks, and parent and child do the turns.
PLACES = """
        .global _start
_start: mov x0, #17
        mov x1, #0
        mov x2, #0
        mov x3, #0
        mov x4, #0
        mov x8, #220
        svc #0
        mov x23, x0
        mov x19, #TURNS
again:  bl f
        subs x19, x19, #1
        b.ne again
        cbz x23, end
        mov x0, #-1
        mov x1, #0
        mov x2, #0
        mov x3, #0
        mov x8, #260
        svc #0
end:    mov x0, #7
        mov x8, #93
        svc #0
        .macro place name
        .global \\name
        .type \\name, @function
\\name:
        .endm
place f
        stp x29, x30, [sp, #-16]!
place signs
        paciasp
        mov x1, #5
place loop
        subs x1, x1, #1
place loops
        b.ne loop
place literal
        ldr x2, lit
place page
        adrp x3, f
place near
        adr x4, leaf
place calls
        bl leaf
place calls_register
        blr x4
place is_set
        tbnz x2, #0, over
place never
        mov x2, #0
place over
        cbnz x2, further
        mov x2, #1
place further
        mrs x5, tpidr_el0
        mov x8, #172
place system
        svc #0
place vector
        ldr q0, [sp]
place authenticates
        autiasp
        ldp x29, x30, [sp], #16
place ends
        ret
place leaf
        add x1, x1, #1
place leaf_ends
        ret
        .align 3
lit:    .quad 1
"""
EXECUTED = {"loop": 5, "loops": 5, "never": 0, "leaf": 2, "leaf_ends": 2}
"""How often a place is executed in a turn, where that is not once."""
MACHINES = {
    "isolated tables": {"cpu": "cortex-a72", "smp": 2},
    "one processor, tables not isolated": {"cpu": "cortex-a57", "smp": 1, "append": "kpti=off nokaslr"},
    "addresses of 52 bits, at once": {"cpu": "max,pauth-impdef=on", "smp": 4, "extra": PARALLEL},
}


@pytest.mark.parametrize("machine", [*MACHINES][:: 1 if FULL else 2])
def test_each_place_of_a_program_is_counted_exactly_on_a_newer_kernel(
    boot: Boot, tmp_path: Path, machine: str
) -> None:
    """Of Debian's 6.12, in four processes at once that fork."""
    guest = boot(arch="aarch64", suite="trixie", **MACHINES[machine])
    answer.put(guest, assembled(tmp_path / "places", PLACES.replace("TURNS", str(TURNS)), "aarch64"), "/tmp/places")
    places = re.findall(r"^place (\w+)", PLACES, re.M)
    script: list[str | Workload] = ["set optprobe table-keys 8"]
    script += [f"optprobe add -user /tmp/places:{place}" for place in places]
    script += ["optprobe add -user /tmp/places:f+8 do count by $comm"]
    run = "/tmp/places; echo $?"
    script += [Workload(f"({run}) & ({run}) & ({run}) & ({run}) & wait"), keep("list", "optprobe list")]
    script += ["optprobe check", "optprobe delete", Workload(run), "optprobe check"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == ("7\n" * 4, "7\n")
    *counted, last = [probe["hits"] for probe in finished.json("list")]
    turns = 4 * 2 * TURNS
    assert dict(zip(places, counted, strict=True)) == {place: turns * EXECUTED.get(place, 1) for place in places}
    assert last == turns
    assert finished.output.count("holds what we wrote") == 2
    assert guest.problems() == []


def test_files_of_the_same_content_are_told_apart(arm_guest: Guest, tmp_path: Path) -> None:
    """Both run again and again, in the pages and with the records of pages that the other has left, and fork."""
    answer.put(arm_guest, assembled(tmp_path / "places", PLACES.replace("TURNS", "20"), "aarch64"), "/tmp/one")
    arm_guest.check("for name in two three; do cp /tmp/one /tmp/$name; done")
    rounds, drop = 15, "echo 3 > /proc/sys/vm/drop_caches"
    mixed = f"for i in $(seq {rounds}); do /tmp/one; /tmp/two & /tmp/two; /tmp/three; sh -c 'exec /tmp/one'; wait; done"
    script: list[str | Workload] = [
        *(f"optprobe add -user /tmp/{name}:{place}" for name in ("one", "two") for place in ("f", "leaf")),
        Workload(f"{mixed} & {mixed}; wait; {drop}; {mixed}"),
        keep("list", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(arm_guest, script)
    assert finished.status == 0, finished.output
    # Parent and child; three times, of which two at once.
    turns = 3 * rounds * 2 * 2 * 20
    assert [probe["hits"] for probe in finished.json("list")] == [turns, 2 * turns, turns, 2 * turns]
    arm_guest.check("rm /tmp/one /tmp/two /tmp/three")
    assert arm_guest.problems() == []


LARGE = """
        .global _start
_start: mov x0, #0
        mov x1, #0x400000
        mov x2, #7
        mov x3, #0x22
        mov x4, #-1
        mov x5, #0
        mov x8, #222
        svc #0
        add x19, x0, #0x200000
        and x19, x19, #~0x1fffff
        mov x0, x19
        mov x1, #0x200000
        mov x2, #14
        mov x8, #233
        svc #0
        adr x20, trap
        ldr w21, trap
        add x22, x19, #0x1000
        str w21, [x22]
        mov x0, x19
        mov x1, #0x1000
        lsl x1, x1, #9
        sub x1, x1, #UNMAPPED * 0x1000
        add x0, x0, x1
        mov x1, #UNMAPPED * 0x1000
        mov x8, #215
        svc #0
        dc cvau, x22
        dsb ish
        ic ivau, x22
        dsb ish
        isb
        br x22
        .global probed
        .type probed, @function
probed: nop
trap:   hlt #0
"""


@pytest.mark.parametrize("unmapped", [1, 3])
def test_a_trap_of_a_program_s_own_on_the_tail_of_a_large_page(boot: Boot, tmp_path: Path, unmapped: int) -> None:
    """Large pages that are mapped by small ones, for a part is gone: the record of the second has counts of them."""
    guest = boot(arch="aarch64", suite="trixie")
    source = LARGE.replace("UNMAPPED", str(unmapped))
    answer.put(guest, assembled(tmp_path / "large", source, "aarch64"), "/tmp/large")
    guest.check("echo always > /sys/kernel/mm/transparent_hugepage/enabled")  # it is off where memory is small
    script: list[str | Workload] = [
        "optprobe add -user /tmp/large:probed",
        Workload("grep ^thp_split_pmd /proc/vmstat; /tmp/large; echo $?; grep ^thp_split_pmd /proc/vmstat"),
        "optprobe check",
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    before, status, after = re.findall(r"\d+$", finished.workloads[0], re.M)
    assert status == "132", "it ends by SIGILL"
    assert int(after) > int(before), "the large page was split"
    assert guest.problems() == []


TIMES, STOPS = 200, 4
CALLING = f"""
        .global _start
        .type _start, @function
        .type outer, @function
        .type inner, @function
_start: mov x29, #0
        mov x30, #0
        bl outer
        mov x0, #7
        mov x8, #93
        svc #0
        .size _start, . - _start
outer:  stp x29, x30, [sp, #-32]!
        mov x29, sp
        str x19, [sp, #16]
        mov x19, #{TIMES}
again:  mov x0, x19
        bl inner
        subs x19, x19, #1
        b.ne again
        ldr x19, [sp, #16]
        ldp x29, x30, [sp], #32
        ret
        .size outer, . - outer
inner:  stp x29, x30, [sp, #-16]!
        mov x29, sp
        add x0, x0, #1
        ldp x29, x30, [sp], #16
        ret
        .size inner, . - inner
"""
PATH = "/tmp/calling"


@pytest.fixture(params=["6.1", "6.12, which denies the kernel reads of programs"])
def stopping(request: pytest.FixtureRequest, boot: Boot, tmp_path: Path) -> Guest:
    """A guest that has the program, which is in the folder too."""
    is_old = request.param == "6.1"
    guest = boot(arch="aarch64") if is_old else boot(arch="aarch64", suite="trixie", cpu="max,pauth-impdef=on")
    answer.put(guest, assembled(tmp_path / "calling", CALLING, "aarch64"), PATH)
    return guest


def test_a_program_stops_where_a_condition_holds(stopping: Guest, tmp_path: Path) -> None:
    """And is shown as it is there, with its memory and its callers; it ends as it would have."""
    step = TIMES // STOPS
    with Console(stopping) as gdb:
        gdb(f"optprobe add -user {PATH}:inner if $arg1 % {step} == 0 do count by $comm, stop", 60)
        gdb(f"optprobe add -user {PATH}:inner+8")
        gdb.work = stopping.spawn(f"{PATH}; echo said $?")
        told = gdb("continue")
        place = gdb.probes()[0]["address"]
        assert re.search(rf"hit optprobe 1, calling \(\d+\), {int(place, 16):#018x} <calling:inner>$", told.rstrip())
        gdb(f"add-symbol-file {tmp_path / 'calling'}")
        gdb("frame 2")
        for turn in range(STOPS):
            if turn:
                told = gdb("continue").rstrip()
                assert re.search(r"hit optprobe 1, calling \(\d+\), 0x[0-9a-f]+ in inner \(\)$", told)
            which = TIMES - turn * step
            assert (gdb.value("$pc"), gdb.value("$x0"), gdb.value("$x19")) == (int(place, 16), which, which)
            assert gdb.value("*(long *) ($x29 + 8)") == gdb.value("&_start") + 12, "memory of the program"
            callers = [line.partition(" in ")[2] for line in gdb("bt").splitlines()[2:5]]
            assert callers == ["inner ()", "outer ()", "_start ()"]
            code = gdb("x/2i $pc")
            assert "# optprobe 1" in code and "stp" in code and "hlt" not in code
            assert [gdb.hits(number) for number in (1, 2)] == [turn + 1, turn * step]
        work, gdb.work = gdb.work, None
        gdb.send("continue")
        assert work.wait()[1] == "said 7\n"
        gdb.interrupt()
        assert [(probe["hits"], probe["stops"]) for probe in gdb.probes()] == [(STOPS, STOPS), (TIMES, 0)]
        assert "holds what we wrote" in gdb("optprobe check")
    assert stopping.problems() == []


@pytest.mark.parametrize("how", ["quit", "kill -9"])
def test_leaving_a_program_where_it_stopped(boot: Boot, tmp_path: Path, how: str) -> None:
    """It ends as it would have, with all hits counted that are."""
    guest = boot(arch="aarch64", suite="trixie")
    answer.put(guest, assembled(tmp_path / "calling", CALLING, "aarch64"), PATH)
    with Console(guest) as gdb:
        gdb(f"set optprobe on-exit {'keep' if how == 'kill -9' else 'remove'}")
        gdb(f"optprobe add -user {PATH}:inner if $arg1 % {TIMES // STOPS} == 0 do count, stop", 60)
        work = guest.spawn(f"{PATH}; echo said $?")
        assert "hit optprobe 1" in gdb("continue")
        if how == "kill -9":
            gdb.kill()
        else:
            gdb.send("quit")
            gdb.rest()
        assert work.wait(30)[1] == "said 7\n"
    script: list[str | Workload] = ["optprobe recover"] if how == "kill -9" else []
    script += [keep("list", "optprobe list"), "optprobe delete", Workload(f"{PATH}; echo said $?"), "optprobe check"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert [probe["hits"] for probe in finished.json("list")] == ([STOPS] if how == "kill -9" else [])
    assert finished.workloads == ("said 7\n",)
    assert guest.problems() == []


@pytest.mark.parametrize("append", ["", "kpti=off nokaslr"])
def test_a_thread_between_its_trap_and_our_code_when_the_last_probe_goes(
    boot: Boot, tmp_path: Path, append: str
) -> None:
    """It is in the vectors then, and stepped out of them before the kernel's own handler would see a trap."""
    guest = boot(arch="aarch64", append=append)
    answer.put(guest, assembled(tmp_path / "calling", CALLING, "aarch64"), PATH)
    with Console(guest) as gdb:
        gdb(f"optprobe add -user {PATH}:inner if $arg1 == {TIMES} do stop", 60)
        gdb.work = guest.spawn(f"{PATH}; echo said $?")
        assert "hit optprobe 1" in gdb("continue", 60)
        gdb("break *((long)&vectors + 0x40c)")  # behind what isolated tables have there
        for _ in range(50):
            assert "Breakpoint" in gdb("continue", 60)
            if gdb.value("$ESR_EL1") >> 26 == 0:
                break
        assert gdb.value("$ESR_EL1") >> 26 == 0, "it is an undefined instruction"
        gdb("delete breakpoints")
        gdb("optprobe delete", 60)
        assert "holds what we wrote" in gdb("optprobe check")
        work, gdb.work = gdb.work, None
        gdb.send("continue")
        assert work.wait(60)[1] == "said 7\n"
        gdb.interrupt()
    assert guest.problems() == []
