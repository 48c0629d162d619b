"""Memory is read through any pointer, as the guest's own tracer reads it, and what cannot be read is a fault."""

from __future__ import annotations

from collections import Counter

import pytest

from qemu.guest import Guest
from tests.guest.batch import Finished, Workload, batch, keep
from tests.guest.conftest import FULL
from tests.guest.test_exact import TRACING, quiet
from tests.guest.test_handlers import maps, report

# Where a function's second argument still is, behind the tracer's site at its entry.
BEHIND = {"x86_64": ("do_sys_openat2+5", "%si"), "ppc64le": ("do_sys_openat2+16", "%gpr4")}
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
def test_texts_of_the_user_are_those_that_the_guests_own_event_reads(linux: Guest, tier: str) -> None:
    wanted = f"-tier {tier}" if tier != "optimized" else ""
    opens = OPENS if tier == "optimized" else "find /proc/1 /proc/sys -maxdepth 1"
    script: list[str | Workload] = [
        f'optprobe add do_sys_openat2 {wanted} if $comm == "find" do count by str(filename)',
        "optprobe commit",
        traced(linux),
        Workload(f"{opens}; cat {TRACING}/trace"),
        keep("list", "optprobe list"),
        report("report"),
        "optprobe check",
        "optprobe delete",
        "optprobe check",
    ]
    try:
        finished = batch(linux, script)
    finally:
        quiet(linux)
    assert finished.status == 0, finished.output
    assert finished.output.count("holds what we wrote") == 2
    (probe,) = finished.json("list")
    assert probe["tier"] == tier
    theirs = names_of_events(finished.workloads[1])
    ours = Counter({key[0]: count for key, count in by_key(finished).items()})
    assert ours + Counter({"": probe["faults"]}) == theirs
    assert probe["hits"] == sum(theirs.values()) >= (20 if tier == "optimized" else 2)
    assert linux.problems() == []


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
WILD = {
    "anywhere": MIXED,
    "the user's": f"({MIXED} >> 17)",
    "the kernel's": f"({MIXED} >> 16 | 0xFFFF800000000000)",
    "the direct map": f"(*(unsigned long *)&page_offset_base + ({MIXED} >> 24))",
    "RAM and devices": f"(*(unsigned long *)&page_offset_base + ({MIXED} >> 32))",
    "vmalloc, ioremap": f"(*(unsigned long *)&vmalloc_base + ({MIXED} >> 40))",
    "the image": f"(0xFFFFFFFF80000000 + ({MIXED} >> 33))",
    "the fixmap": f"(0xFFFFFFFFFF000000 | {MIXED} >> 40)",
}
SAFE = "count by (*(long *){} & 0)"


def test_wild_pointers_are_faults(linux: Guest) -> None:
    """Each read is one or a fault; the guest does not notice."""
    many = 130_000 if FULL else 2_000
    script: list[str | Workload] = ["set optprobe exit-on-error on"]
    script += [f'optprobe add vfs_read if $comm == "dd" do {SAFE.format(address)}' for address in WILD.values()]
    script += ['optprobe add vfs_read if $comm == "dd" do count by str((char *)$time)']
    script += [Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={many}"), keep("list", "optprobe list")]
    script += [report("report"), "optprobe check", "optprobe delete"]
    finished = batch(linux, script, timeout=1200)
    assert finished.status == 0, finished.output
    probes, found = finished.json("list"), maps(finished, "report")
    for name, probe in zip(WILD, probes, strict=False):
        ((_, done),) = [item for item in found.items() if item[0][0] == probe["number"]]
        assert probe["hits"] >= many and probe["tier"] == "optimized"
        assert done.get((0,), 0) + probe["faults"] == probe["hits"], name
    assert linux.problems() == []


FAULT_PATH = (
    "exc_page_fault",
    "copy_from_kernel_nofault",
    "fixup_exception",
    "search_exception_tables",
    "search_extable",
    "handle_mm_fault",
)


def test_programs_that_read_run_where_the_kernel_handles_a_fault(linux: Guest) -> None:
    """While its own tracer dereferences what is not there: a kernel address in a hole."""
    each = 20_000 if FULL else 500
    event = "p:wild vfs_read+5 at=-0x380000000000(%dx):u64"
    reads = ("*(long *)$rdi", "*(int *)($rdi + 0x80)", "*(char *)$rsp", f"*(long *){WILD['RAM and devices']}")
    script: list[str | Workload] = [
        f"optprobe add {name} do {', '.join(f'count by ({read} & 0)' for read in reads)}" for name in FAULT_PATH
    ]
    script += ["optprobe commit", keep("before", "optprobe list")]
    script += [Workload(f"cd {TRACING}; echo '{event}' > kprobe_events; echo 1 > events/kprobes/wild/enable")]
    script += [Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={each}; cat {TRACING}/kprobe_profile")]
    script += [keep("list", "optprobe list"), "optprobe check", "optprobe delete"]
    try:
        finished = batch(linux, script, timeout=600)
    finally:
        quiet(linux)
    assert finished.status == 0, finished.output
    hits = {probe["symbol"]: probe["hits"] for probe in finished.json("list")}
    tiers = {probe["symbol"]: probe["tier"] for probe in finished.json("list")}
    assert set(tiers.values()) == {"optimized"}, tiers
    for name in ("exc_page_fault", "fixup_exception", "search_exception_tables"):
        assert hits[name] >= each, hits
    assert linux.problems() == []
