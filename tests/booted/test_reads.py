"""Memory is read through any pointer, as the guest's own tracer reads it, and what cannot be read is a fault."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from qemu.guest import Guest
from tests.booted.batch import Finished, Workload, batch, keep
from tests.booted.conftest import FULL, Boot, on_every_isa
from tests.booted.gdb import Console
from tests.booted.test_exact import TRACING, quiet
from tests.booted.test_handlers import maps, report

# Where a function's second argument still is, behind the tracer's site at its entry.
BEHIND = {
    "x86_64": ("do_sys_openat2+5", "%si"),
    "ppc64le": ("do_sys_openat2+16", "%gpr4"),
    "aarch64": ("do_sys_openat2+8", "%x1"),
}
OPENS = "find /sys/kernel /proc/sys -maxdepth 2 > /dev/null 2>&1; find /nowhere /proc/1 -maxdepth 1 > /dev/null 2>&1"


def traced(guest: Guest) -> Workload:
    place, register = BEHIND[guest.options.arch]
    event = f"p:opens {place} name=+0({register}):ustring"
    on = f"cd {TRACING}; echo '{event}' > kprobe_events; echo 'comm == \"find\"' > events/kprobes/opens/filter"
    return Workload(f"{on}; echo > trace; echo 1 > events/kprobes/opens/enable")


def names_of_events(output: str) -> Counter[str]:
    """By name; "" for what could not be read. A probe's text is cut where its column ends."""
    names = [line.split("name=")[1].strip() for line in output.splitlines() if "name=" in line]
    return Counter("" if name == "(fault)" else name.strip('"')[:64] for name in names)


@pytest.mark.parametrize("tier", ["optimized", "breakpoint"])
def test_texts_of_the_user_are_those_that_the_guests_own_event_reads(each_linux: Guest, tier: str) -> None:
    second = "filename" if each_linux.options.arch == "x86_64" else "(char *)$arg2"
    wanted = f"-tier {tier}" if tier != "optimized" else ""
    opens = OPENS if tier == "optimized" else "find /proc/1 /proc/sys -maxdepth 1"
    script: list[str | Workload] = [
        f'optprobe add do_sys_openat2 {wanted} if $comm == "find" do count by str({second})',
        "optprobe commit",
        traced(each_linux),
        Workload(f"{opens}; cat {TRACING}/trace"),
        keep("list", "optprobe list"),
        report("report"),
        "optprobe check",
        "optprobe delete",
        "optprobe check",
    ]
    try:
        finished = batch(each_linux, script)
    finally:
        quiet(each_linux)
    assert finished.status == 0, finished.output
    assert finished.output.count("holds what we wrote") == 2
    (probe,) = finished.json("list")
    assert probe["tier"] == tier
    theirs = names_of_events(finished.workloads[1])
    ours = Counter({key[0]: count for key, count in by_key(finished).items()})
    assert ours + Counter({"": probe["faults"]}) == theirs
    assert probe["hits"] == sum(theirs.values()) >= (20 if tier == "optimized" else 2)
    assert each_linux.problems() == []


def by_key(finished: Finished) -> dict[tuple[str, ...], int]:
    (found,) = maps(finished, "report").values()
    return dict(found)


def test_a_member_of_what_a_parameter_points_to(linux: Guest) -> None:
    """By the kernel's own types; the guest's event has it by its offset."""
    event = "p:reads vfs_read+5 flags=+0x40(%di):u32"
    work = 'sh -c "exec 3<>/tmp/x; dd bs=1 count=7 <&3; dd bs=1 count=5 if=/dev/zero" > /dev/null 2>&1'
    script: list[str | Workload] = [
        'optprobe add vfs_read if $comm == "dd" do hist(count), count by file->f_flags',
        Workload(f"cd {TRACING}; echo '{event}' > kprobe_events; echo 'comm == \"dd\"' > events/kprobes/reads/filter"),
        Workload(f"cd {TRACING}; echo > trace; echo 1 > events/kprobes/reads/enable"),
        Workload(f"head -c 100 /dev/zero > /tmp/x; {work}; cat {TRACING}/trace"),
        report("report"),
        "optprobe delete",
    ]
    try:
        finished = batch(linux, script)
    finally:
        quiet(linux)
    assert finished.status == 0, finished.output
    found = maps(finished, "report")
    theirs = Counter(int(line.split("flags=")[1]) for line in finished.workloads[2].splitlines() if "flags=" in line)
    ours = {key[0]: count for key, count in found[1, "count by file->f_flags"].items()}
    assert ours == theirs and len(theirs) >= 2


MIXED = "($time * 0x9E3779B97F4A7C15 ^ $time >> 9)"
DIRECT, VMALLOC = "*(unsigned long *)&page_offset_base", "*(unsigned long *)&vmalloc_base"
RAM, IMAGE = "((unsigned long)$task >> 30 << 30)", "(unsigned long)&_stext"
WILD = {
    "x86_64": {
        "anywhere": MIXED,
        "the user's": f"({MIXED} >> 17)",
        "the kernel's": f"({MIXED} >> 16 | 0xFFFF800000000000)",
        "the direct map": f"({DIRECT} + ({MIXED} >> 24))",
        "RAM and devices": f"({DIRECT} + ({MIXED} >> 32))",
        "vmalloc, ioremap": f"({VMALLOC} + ({MIXED} >> 40))",
        "the image": f"(0xFFFFFFFF80000000 + ({MIXED} >> 33))",
        "the fixmap": f"(0xFFFFFFFFFF000000 | {MIXED} >> 40)",
    },
    "ppc64le": {
        "anywhere": MIXED,
        "the user's": f"({MIXED} >> 12)",
        "the kernel's": f"({MIXED} >> 4 | 0xC000000000000000)",
        "the linear map": f"(0xC000000000000000 + ({MIXED} >> 24))",
        "RAM and what is behind": f"(0xC000000000000000 + ({MIXED} >> 34))",
        "vmalloc": f"(0xC008000000000000 + ({MIXED} >> 40))",
        "ioremap": f"(0xC00A000000000000 + ({MIXED} >> 40))",
        "vmemmap": f"(0xC00C000000000000 + ({MIXED} >> 36))",
    },
    # Of 48 bits (Documentation/arm64/memory.rst). RAM begins at a GiB there, whichever KASLR chose.
    "aarch64": {
        "anywhere": MIXED,
        "the user's": f"({MIXED} >> 16)",
        "the kernel's": f"({MIXED} >> 16 | 0xFFFF000000000000)",
        "the linear map": f"(0xFFFF000000000000 + ({MIXED} >> 24))",
        "RAM and what is behind": f"({RAM} + ({MIXED} >> 34))",
        "modules": f"(0xFFFF800000000000 + ({MIXED} >> 37))",
        "vmalloc, ioremap": f"(0xFFFF800008000000 + ({MIXED} >> 40))",
        "the image": f"({IMAGE} + ({MIXED} >> 38))",
        "the fixmap": f"(0xFFFFFBFFFD000000 + ({MIXED} >> 39))",
        "vmemmap": f"(0xFFFFFC0000000000 + ({MIXED} >> 40))",
    },
}


@on_every_isa
def test_wild_pointers_are_faults(each_linux: Guest) -> None:
    wild_pointers(each_linux, 130_000 if FULL else 2_000)


@pytest.mark.skipif(not FULL, reason="boots guests of its own: OPTPROBE_FULL=1")
@pytest.mark.parametrize("options", [{"cpu": "Nehalem"}, {"cpu": "max"}, {"mem": 6144}, {"append": "nokaslr"}], ids=str)
def test_wild_pointers_in_other_guests(boot: Boot, options: dict[str, Any]) -> None:
    """With page-table isolation, five levels of tables, memory on both sides of the hole below 4 GiB, no KASLR."""
    wild_pointers(boot(**options), 20_000)


def wild_pointers(guest: Guest, many: int) -> None:
    """Each read is one or a fault; the guest does not notice."""
    wild = WILD[guest.options.arch]
    actions = [f"count by (*(long *){address} & 0)" for address in wild.values()]
    actions += [f"count by str((char *){next(iter(wild.values()))})"]
    script: list[str | Workload] = [f'optprobe add vfs_read if $comm == "dd" do {action}' for action in actions]
    script += [Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={many}"), keep("list", "optprobe list")]
    script += [report("report"), "optprobe check", "optprobe delete"]
    finished = batch(guest, script, timeout=1200)
    assert finished.status == 0, finished.output
    probes, found = finished.json("list"), maps(finished, "report")
    assert {probe["tier"] for probe in probes} == {"optimized"}
    for name, probe in zip(wild, probes, strict=False):
        ((_, done),) = [item for item in found.items() if item[0][0] == probe["number"]]
        assert probe["hits"] >= many
        assert sum(done.values()) + probe["faults"] == probe["hits"], name
    assert any(0 < probe["faults"] < probe["hits"] for probe in probes)
    assert guest.problems() == []


# What handles a fault; an event that provokes one, at a kernel's address where nothing is; programs that read.
FAULT_PATH = {
    "x86_64": (
        "exc_page_fault search_exception_tables fixup_exception copy_from_kernel_nofault handle_mm_fault",
        "p:wild vfs_read+5 at=-0x380000000000(%dx):u64",
        ("*(long *)$rdi", "*(int *)($rdi + 0x80)", "*(char *)$rsp", f"*(long *){WILD['x86_64']['RAM and devices']}"),
    ),
    "ppc64le": (
        "do_page_fault search_exception_tables search_extable bad_page_fault copy_from_kernel_nofault handle_mm_fault",
        "p:wild vfs_read+16 at=-0x3ff7000000000000(%gpr5):u64",
        ("*(long *)$r3", "*(int *)($r3 + 0x80)", "*(char *)$r1", f"*(long *){WILD['ppc64le']['ioremap']}"),
    ),
    "aarch64": (
        "do_mem_abort search_exception_tables fixup_exception copy_from_kernel_nofault handle_mm_fault",
        "p:wild vfs_read+8 at=-0x100000000000(%x2):u64",
        ("*(long *)$x0", "*(int *)($x0 + 0x80)", "*(char *)$sp", f"*(long *){WILD['aarch64']['the linear map']}"),
    ),
}


@on_every_isa
def test_programs_that_read_run_where_the_kernel_handles_a_fault(each_linux: Guest) -> None:
    """While its own tracer dereferences what is not there."""
    each = 20_000 if FULL else 500
    names, event, reads = FAULT_PATH[each_linux.options.arch]
    actions = ", ".join(f"count by ({read} & 0)" for read in reads)
    script: list[str | Workload] = [f"optprobe add {name} do {actions}" for name in names.split()]
    script += ["optprobe commit"]
    script += [Workload(f"cd {TRACING}; echo '{event}' > kprobe_events; echo 1 > events/kprobes/wild/enable")]
    script += [Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={each}")]
    script += [keep("list", "optprobe list"), report("report"), "optprobe check", "optprobe delete"]
    try:
        finished = batch(each_linux, script, timeout=600)
    finally:
        quiet(each_linux)
    assert finished.status == 0, finished.output
    probes, found = finished.json("list"), maps(finished, "report")
    assert {probe["tier"] for probe in probes} == {"optimized"}
    for name, probe in zip(names.split(), probes, strict=True):
        gathered = sum(sum(done.values()) for (number, _), done in found.items() if number == probe["number"])
        assert gathered + probe["faults"] == len(reads) * probe["hits"], name
    hits = {name: probe["hits"] for name, probe in zip(names.split(), probes, strict=True)}
    assert all(hits[name] >= each for name in names.split()[:3]), hits
    assert each_linux.problems() == []


# Within the routine, at its end, and in the program behind its call.
PLACES = ("cr3|mfmsr", "popfq|blr", "behind the call")


def test_who_is_stopped_within_a_read_is_in_the_probed_function(each_linux: Guest) -> None:
    """Its backtrace says so, a step ends the hit first, and the hit is counted once."""
    with Console(each_linux) as gdb:
        gdb("optprobe add vfs_read if $arg3 == 7 do count by (*(long *)$arg1 & 0)")
        # GDB takes the PC of an outer frame for a return address, so it names what is before an entry.
        entry = gdb.probe(1)["address"]
        for done, place in enumerate(PLACES):
            gdb(stop_at(place))
            gdb.work = each_linux.spawn("dd if=/dev/zero of=/dev/null bs=7 count=3")
            assert "Temporary breakpoint" in gdb("continue")
            frames = gdb("bt 6")
            assert re.search(rf"#[123] +{entry}.*#[234] .* ksys_read ", frames, re.S), frames
            gdb("stepi")
            assert "vfs_read" in gdb("info symbol $pc")
            gdb.finish_work()
            (view,) = gdb.probes()
            assert (view["hits"], view["faults"]) == (3 * done + 3, 0)
        gdb("optprobe delete")
    assert each_linux.problems() == []


def stop_at(place: str) -> str:
    return (
        "python import re; from gdb_optprobe.debugger.attach import current_session; s = current_session(); "
        "r = s.probe_reads[0]; code = s.target.guest.isa.decode(r.data, r.address); "
        f"at = next((insn.address for insn in code if re.search('{place}', insn.text)), None); "
        "d = next(s.registry.branches()).detour; code = s.target.guest.isa.decode(d.data, d.address); "
        "at = at or next(insn.end for insn in code if insn.flow.name == 'CALL'); "
        "gdb.execute(f'tbreak *{at:#x}')"
    )
