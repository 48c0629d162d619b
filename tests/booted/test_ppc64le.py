"""Probes on the stock ppc64le kernel: every tier, exact counts, the tracer beside them, bad input."""

from __future__ import annotations

import re

import pytest

from qemu.guest import Guest
from tests.booted.addresses import address_of
from tests.booted.batch import Finished, Workload, at_once, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.gdb import Console

HITS = 5_000
TRACING = "/sys/kernel/tracing"


# A command that fails ends a script of GDB's, but for one that Python calls.
ATTEMPT = """\
set optprobe exit-on-error off
python
def attempt(command):
    try:
        gdb.execute(command)
    except gdb.error as error:
        print(error)
end""".splitlines()


def attempt(place: str) -> str:
    return f"python attempt('optprobe add {place}')"


def two_dd(count: int) -> Workload:
    """Two processes at once, each of which reads and writes `count` single bytes: 2 * count + 4 calls of read_zero…"""
    one = f"dd if=/dev/zero of=/dev/null bs=1 count={count} 2>/dev/null"
    return Workload(f"{one} & {one} & wait")


def probes(finished: Finished, name: str = "list") -> dict[str, dict[str, object]]:
    return {probe["symbol"]: probe for probe in finished.json(name)}


def text_of(guest: Guest, function: str) -> str:
    """The function's code, as the guest sees it."""
    start = address_of(guest, function)
    finished = batch(guest, [f"x/64xw {start:#x}"], source=False)
    return "\n".join(re.findall(r"^0x[0-9a-f]+.*?:\s*(.*)$", finished.output, re.M))


OWN = ("vfs_read+4", "normalize_rt_tasks+0x20", "dump_stack_print_info+0x18")
"""Of the first, the second word of the global entry; of the others, code by which threads and stacks are found."""


def test_beside_the_guest_s_own_kprobes(ppc_guest: Guest) -> None:
    """The local entry is told from the original instructions, and so is where the kernel keeps its threads."""
    events = "; ".join(f"echo 'p:own/e{number} {place}' >> kprobe_events" for number, place in enumerate(OWN))
    enable = "for one in events/own/*/enable; do echo 1 > $one; done"
    optimized = "until grep -q 'vfs_read+0x4 .*OPTIMIZED' /sys/kernel/debug/kprobes/list; do sleep 0.1; done"
    ppc_guest.check(f"cd {TRACING}; {events}; {enable}; {optimized}")
    try:
        script: list[str | Workload] = ['optprobe add vfs_read if $comm == "dd"']
        finished = batch(ppc_guest, [*script, two_dd(50), keep("list", "optprobe list"), "optprobe check"])
    finally:
        ppc_guest.check(f"cd {TRACING}; for one in events/own/*/enable; do echo 0 > $one; done; echo > kprobe_events")
    assert finished.status == 0, finished.output
    assert {name: probe["hits"] for name, probe in probes(finished).items()} == {"vfs_read+0x8": 100}


def test_hash_page_tables(boot: Boot) -> None:
    """Of POWER8, as users boot it. A GDB that is killed leaves probes that another one takes over."""
    guest = boot(arch="ppc64le", cpu="power8", smp=1)
    with Console(guest) as gdb:
        gdb("set optprobe guardian off")
        assert "optimized" in gdb('optprobe add vfs_read if $comm == "dd" do count by $pid')
        assert "optimized" in gdb("optprobe add vfs_write -maxactive 20 -return do latency")
        assert "boot the guest with radix page tables" in gdb("optprobe explain -user /bin/busybox:*0x1000")
        gdb.send("continue")
        guest.check("dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null")
        gdb.kill()
    guest.check("dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null")
    script = ["optprobe recover", keep("list", "optprobe list"), "optprobe check", "optprobe delete", "optprobe check"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert finished.json("list")[0]["hits"] == 200
    assert finished.output.count("holds what we wrote") == 2
    assert guest.problems() == []


def test_optimized_and_exact_on_two_cpus(ppc_guest: Guest) -> None:
    """`read_zero` runs once for each byte that is read; vfs_read for each, and for whatever else reads."""
    before = text_of(ppc_guest, "vfs_read")
    script: list[str | Workload] = ["optprobe add read_zero", "optprobe add vfs_read", "optprobe add vfs_read+0x10"]
    script += [two_dd(HITS), keep("list", "optprobe list"), "optprobe check", "optprobe delete", "optprobe check"]
    finished = batch(ppc_guest, script)
    assert finished.status == 0, finished.output
    found = probes(finished)
    assert {probe["tier"] for probe in found.values()} == {"optimized"}, finished.output
    assert found["read_zero+0x8"]["hits"] == 2 * HITS
    assert found["vfs_read+0x8"]["hits"] == found["vfs_read+0x10"]["hits"]
    assert int(str(found["vfs_read+0x8"]["hits"])) >= 2 * HITS
    assert finished.output.count("holds what we wrote") == 2
    assert text_of(ppc_guest, "vfs_read") == before


def test_as_many_hits_as_the_guest_s_own_event(ppc_guest: Guest) -> None:
    """Its event stands inside the function that is probed, at an instruction that is not."""
    quiet = f"cd {TRACING}; echo 0 > events/enable; echo > kprobe_events"
    arm = f"cd {TRACING}; echo 'p:zero read_zero+0x20' > kprobe_events; echo 1 > events/kprobes/enable"
    script: list[str | Workload] = [Workload(arm), "optprobe add read_zero", "optprobe add read_zero+0xc"]
    script += [two_dd(HITS), keep("list", "optprobe list"), "optprobe check", "optprobe delete"]
    finished = batch(ppc_guest, script)
    profile = ppc_guest.check(f"cat {TRACING}/kprobe_profile; {quiet}").split()
    assert finished.status == 0, finished.output
    assert {probe["hits"] for probe in probes(finished).values()} == {2 * HITS} == {int(profile[1])}
    assert int(profile[2]) == 0


@pytest.mark.parametrize("tier", ["emulated", "boosted", "breakpoint"])
def test_tiers_that_stop_count_what_the_optimized_one_counts(ppc_guest: Guest, tier: str) -> None:
    # mfocrf cannot be emulated; the conditional branch at +0x3c can.
    place = "vfs_read+0x3c" if tier == "emulated" else "vfs_read+0x10"
    script: list[str | Workload] = ["optprobe add vfs_read", f"optprobe add {place} -tier {tier}"]
    script += [at_once(ppc_guest, two_dd(40).command), keep("list", "optprobe list"), "optprobe delete"]
    finished = batch(ppc_guest, script)
    assert finished.status == 0, finished.output
    found = probes(finished)
    entry, behind = found["vfs_read+0x8"], found[place]
    assert (entry["tier"], behind["tier"]) == ("optimized", tier)
    assert entry["hits"] == behind["hits"]
    assert int(str(entry["hits"])) >= 80


DD = "dd if=/dev/zero of=/dev/null bs=1 count=300 2>/dev/null"
SWITCH = (
    f"cd {TRACING}; for tracer in function function_graph nop; do echo $tracer > current_tracer; {DD}; done; "
    "echo 'p:x vfs_read' > kprobe_events; echo 'p:y vfs_write+0x10' >> kprobe_events; "
    f"echo 1 > events/kprobes/enable; {DD}; echo 0 > events/kprobes/enable; echo > kprobe_events"
)


def test_the_guest_s_tracers_go_on_and_off_over_hundreds_of_probes(ppc_guest: Guest) -> None:
    """At entries they share nothing with us; at the tracer's own sites its records are switched off."""
    before = text_of(ppc_guest, "vfs_write")
    script: list[str | Workload] = ["optprobe add sys_[a-p]*", "optprobe add vfs_write+0xc", "optprobe add vfs_write"]
    script += [keep("begin", "optprobe list"), Workload(SWITCH, 240), keep("list", "optprobe list")]
    script += ["optprobe check", "optprobe delete"]
    finished = batch(ppc_guest, script, timeout=400)
    assert finished.status == 0, finished.output
    found = finished.json("list")
    assert len(found) >= 256 and {probe["tier"] for probe in found} == {"optimized"}
    assert [probe["tags"] for probe in found if probe["symbol"] == "vfs_write+0xc"] == [["OPTIMIZED", "FTRACE"]]
    at = {probe["symbol"]: probe["hits"] for probe in found}
    assert at["vfs_write+0x8"] == at["vfs_write+0xc"] >= 4 * 300
    assert "holds what we wrote" in finished.output
    assert text_of(ppc_guest, "vfs_write") == before
    seen = ppc_guest.check(
        f"cd {TRACING}; echo vfs_write > set_ftrace_filter; echo function > current_tracer; echo x > /dev/null;"
        " head -n 20 trace; echo nop > current_tracer; echo > set_ftrace_filter"
    )
    assert "vfs_write" in seen


def test_what_cannot_be_probed_says_why(ppc_guest: Guest) -> None:
    finished = batch(ppc_guest, [*ATTEMPT, *(attempt(place) for place in BAD), keep("list", "optprobe list")])
    assert finished.json("list") == []
    for place, words in BAD.items():
        assert words in finished.output, f"{place}: {finished.output}"


BAD = {
    "vfs_read+0x12": "is in the middle of the instruction at",
    "*0xc000000000000500": "is entry text",
    "interrupt_return_srr": "is entry text",
    "vfs_read+0x10000": "is outside of it",
    "*0xc008000000000000": "is in memory for modules",
    "*0xfffffffffffffffc": "is not in the guest's code",
    "start_kernel": "is init text",
    "optinsn_slot": "<optinsn_slot> is not in the guest's code",
    "slb_flush_all_realmode": "runs before the kernel's page tables are set up",
    "no_such_function": "no_such_function",
}


def test_every_instruction_of_a_function_at_once(ppc_guest: Guest) -> None:
    """What is refused are its jump labels, barriers and what the kernel knows by its address."""
    start, end = (
        int(line.split()[0], 16)
        for line in ppc_guest.check("grep -A1 ' T vfs_read$' /proc/kallsyms").splitlines()
    )
    places = [attempt(f"*{at:#x}") for at in range(start, end, 4)]
    script: list[str | Workload] = [*ATTEMPT, *places, two_dd(HITS // 5)]
    script += [keep("list", "optprobe list"), "optprobe check", "optprobe delete", "optprobe check"]
    finished = batch(ppc_guest, script)
    found = finished.json("list")
    tiers = [probe["tier"] for probe in found]
    assert len(tiers) >= len(places) - 4
    assert tiers.count("optimized") >= 0.95 * len(places), finished.output
    at = {int(probe["address"], 16): probe for probe in found}
    assert at[start]["hits"] == 0, "calls inside the kernel arrive at the local entry"
    assert at[start + 8]["hits"] == at[start + 12]["hits"] >= 2 * (HITS // 5)
    assert finished.output.count("holds what we wrote") == 2


def test_backtraces_and_code(ppc_guest: Guest) -> None:
    """From the first instruction of what the probed function calls, and from the middle of its detour."""
    ppc_guest.check("dd if=/dev/zero of=/dev/null bs=1 count=100000000 >/dev/null 2>&1 & echo $! > /tmp/dd")
    script = ["optprobe add vfs_read", "optprobe add vfs_read+0x44"]
    # QEMU shows the kernel's memory only where the vCPU is in the kernel.
    script += ["tbreak *(long)&read_zero+8", "continue", "x/5i vfs_read", "echo from a function\\n", "bt"]
    script += ["python from gdb_optprobe.debugger.attach import attachments"]
    script += ["python detour = next(iter(attachments.current.session.registry.branches())).detour"]
    script += ["python gdb.execute(f'tbreak *{detour.address + 16:#x}')", "continue", "echo from a detour\\n", "bt"]
    finished = batch(ppc_guest, script)
    ppc_guest.check("kill $(cat /tmp/dd)")
    assert finished.status == 0, finished.output
    code, function, detour = re.split("from a (?:function|detour)\n", finished.output)
    assert re.search(r"vfs_read\+8>:\s+mflr +r0\s+# optprobe 1", code), code
    assert frames(function)[:3] == ["read_zero", "vfs_read", "ksys_read"], function
    assert frames(detour)[1:3] == ["vfs_read", "ksys_read"], detour
    assert {frames(each)[-1] for each in (function, detour)} == {"system_call_vectored_common"}
    assert "corrupt stack" not in finished.output, "the stack ends where user mode was left"


def frames(output: str) -> list[str]:
    return re.findall(r"^#\d+ .*? in (\S+)", output, re.M)


MANY, LEAST = (1_600, 1_500) if FULL else (500, 460)
EIGHT = (*(f"ksys_read+{n:#x}" for n in (0x20, 0x28)), *(f"ksys_write+{n:#x}" for n in (0x20, 0x28)))
EIGHT = (*EIGHT, "kernel_clone+0x50", "do_sys_openat2+0x30", "vfs_open+0x20", "vfs_statx+0x20")
ADD_MANY = f"""\
python
table = attachments.current.linux.recovered.symbols
taken = {{"ksys_read", "ksys_write", "kernel_clone", "do_sys_openat2", "vfs_open", "vfs_statx"}}
def added():
    return len(attachments.current.session.registry)
for symbol in (s for s in table.functions() if s.name not in taken and s.name.startswith(("vfs_", "read_z", "sys_"))):
    for at in range(symbol.address, symbol.address + symbol.size, 4):
        if added() < {MANY}:
            attempt(f"optprobe add *{{at:#x}}")
end""".splitlines()


def test_many_at_any_address_beside_eight_probes_of_the_guest_s(ppc_guest: Guest) -> None:
    """Its own are optimized too, in memory of its own; they come, are used and go while ours count."""
    work = "for n in 1 2 3; do ls /proc > /dev/null; dd if=/dev/zero of=/dev/null bs=1 count=200 2>/dev/null; done"
    events = "; ".join(f"echo 'p:e{number} {place}' >> kprobe_events" for number, place in enumerate(EIGHT))
    own = f"cd {TRACING}; {events}; echo 1 > events/kprobes/enable; sleep 1; grep -c OPTIMIZED {KPROBES}; {work}"
    profile = f"cd {TRACING}; cat kprobe_profile; echo 0 > events/kprobes/enable; echo > kprobe_events"
    script: list[str | Workload] = [*ATTEMPT, "optprobe add read_zero"]
    script += ["python from gdb_optprobe.debugger.attach import attachments", *ADD_MANY]
    script += [Workload(own), Workload(profile), Workload(work), keep("list", "optprobe list"), "optprobe check"]
    script += ["optprobe delete", "optprobe check"]
    finished = batch(ppc_guest, script)
    found = finished.json("list")
    optimized = [probe for probe in found if probe["tier"] == "optimized"]
    assert len(optimized) >= LEAST, finished.output
    assert {probe["symbol"]: probe["hits"] for probe in found}["read_zero+0x8"] == 2 * 3 * 200
    assert int(finished.workloads[0]) >= 1, "the guest has optimized a probe of its own"
    hits = [int(line.split()[1]) for line in finished.workloads[1].splitlines()]
    assert len(hits) == len(EIGHT) and min(hits) > 0
    assert finished.output.count("holds what we wrote") == 2


KPROBES = "/sys/kernel/debug/kprobes/list"
