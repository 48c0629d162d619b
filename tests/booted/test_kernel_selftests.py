"""What Linux's own tests assert of kprobes, asserted of ours; each test here is named after the one it mirrors.

lib/test_kprobes.c, tools/testing/selftests/ftrace/test.d/kprobe/*.tc. What others of our tests assert already:

    test_kprobe_missed                 a hit within a hit is none here: test_reads.py, where_the_kernel_handles_a_fault;
                                       of returns: test_returns.py, every_call_is_accounted_for
    test_kretprobe(s)                  test_returns.py, what_an_entry_keeps, every_call_is_accounted_for, from_python
    test_stacktrace_on_kretprobe,      test_returns.py, backtraces_show_where_calls_really_return; calls within calls:
      …_on_nested_kretprobe            test_returns_nested.py
    kprobe_module.tc                   test_modules.py, pending_gone_and_back_with_every_call_counted
    kretprobe_maxactive.tc             test_returns.py, every_call_is_accounted_for
    kprobe_args_string.tc, …_user.tc   test_reads.py, texts_of_the_user_are_those_that_the_guests_own_event_reads
    (fault) markers                    test_reads.py, wild_pointers_are_faults
    kprobe_syntax_errors.tc            tests/probes/test_bad_input.py, tests/commands/test_parse.py, test_bad_input.py
    kprobe_ftrace.tc                   test_exact.py, test_ppc64le.py: the_guest_s_tracers_go_on_and_off
    add_and_remove.tc, busy_check.tc   test_exact.py: deleted while hits go on; test_rounds.py
"""

from __future__ import annotations

import re

from qemu.bench_target import BENCH_TARGETS
from qemu.guest import Guest
from tests.booted.batch import MARK, Workload, batch, keep
from tests.booted.conftest import on_every_isa
from tests.booted.test_handlers import records, report
from tests.booted.test_ppc64le import ATTEMPT

TRACING = "/sys/kernel/tracing"
READS = 30
WORK = Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null")


def test_kprobe(each_linux: Guest) -> None:
    """pre_handler and post_handler both run, once for each hit, before and behind the instruction."""
    behind = BENCH_TARGETS[each_linux.options.arch].behind
    script: list[str | Workload] = ["python from gdb_optprobe import kprobe; before, after = [], []"]
    script += ["python pc = 'rip' if 'x86' in gdb.selected_inferior().architecture().name() else 'pc'"]
    script += ["python pre = lambda hit: before.append(hit.regs[pc])"]
    script += ["python post = lambda hit: after.append(hit.regs[pc])"]
    script += [f"python p = kprobe('{behind}', pre_handler=pre, post_handler=post)", WORK]
    script += ["python found = [p.hits, len(before), len(after), len(set(before)), len(set(after))]"]
    script += [f'python print("{MARK}seen"); print(found)']
    script += ["python print(f'before: {set(before) == {p.address}}, behind: {0 < min(after) - p.address <= 4}')"]
    finished = batch(each_linux, [*script, "python p.delete()"])
    assert finished.status == 0, finished.output
    hits, before, after, *places = finished.json("seen")
    assert hits == before == after >= READS and places == [1, 1]
    assert "before: True, behind: True" in finished.output
    assert each_linux.problems() == []


def test_kprobes_and_kprobe_multiprobe(each_linux: Guest) -> None:
    """Several addresses in one command, and two of them under one name."""
    script: list[str | Workload] = ["optprobe add vfs_[rw][er][ai][dt]* -name both"]
    script += ["optprobe add read_zero -name both"]
    script += [WORK, keep("list", "optprobe list both"), keep("all", "optprobe list"), "optprobe disable both", WORK]
    script += [keep("off", "optprobe list"), "optprobe delete both", keep("none", "optprobe list")]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    probes = {probe["symbol"].split("+")[0]: probe for probe in finished.json("list")}
    assert {"vfs_read", "vfs_write", "read_zero"} <= probes.keys()
    assert probes["read_zero"]["hits"] == READS and probes["vfs_read"]["hits"] >= READS
    assert len(finished.json("all")) == len(probes) and finished.json("none") == []
    assert [probe["hits"] for probe in finished.json("off")] == [probe["hits"] for probe in finished.json("all")]
    assert each_linux.problems() == []


def test_kprobe_opt_types_and_multiple_kprobes(each_linux: Guest) -> None:
    """Of the offsets 0 to 255 some are optimized; all that are accepted are probed, run and cleared, at once."""
    script: list[str | Workload] = [*ATTEMPT, "set optprobe optimization off", "optprobe explain ksys_read"]
    script += ["python for offset in range(256): attempt(f'optprobe add *(long)&ksys_write+{offset}')"]
    script += ["set optprobe optimization on", "optprobe commit", WORK, keep("list", "optprobe list")]
    script += ["optprobe check", "optprobe delete", "optprobe commit", "optprobe check", WORK]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    assert finished.output.count("holds what we wrote") == 2
    probes = finished.json("list")
    refused = re.findall(r"optprobe: .* is in the middle of the instruction at ", finished.output)
    assert len(probes) >= 40 and len(refused) >= 100
    assert [probe["tier"] for probe in probes].count("optimized") >= 0.9 * len(probes), finished.output
    assert max(probe["hits"] for probe in probes) >= READS
    assert each_linux.problems() == []


def test_probepoint(each_linux: Guest) -> None:
    """An address, a symbol, and the next symbol by an offset are accepted; what lies before or nowhere is refused."""
    table = each_linux.check("grep -A1 ' [tT] vfs_write$' /proc/kallsyms").splitlines()
    this, following = (int(line.split()[0], 16) for line in table[:2])
    good = [f"*{this:#x}", "vfs_write", f"*(long)&vfs_write+{following - this}"]
    bad = {"vfs_write+-16": "vfs_write+-16", "vfs_write-16": "vfs_write-16"}
    bad |= {f"vfs_write+{(1 << 64) - 16:#x}": "is outside of it", "vfs_write+0x100000": "is outside of it"}
    script = [*ATTEMPT, "optprobe explain vfs_read", *(f"optprobe add {place}" for place in good)]
    script += [keep("good", "optprobe list"), "optprobe delete"]
    for number, place in enumerate(bad):
        script += [f"echo bad {number}:\\n", f"python attempt('optprobe add {place}')"]
    finished = batch(each_linux, [*script, "echo bad end\\n", keep("bad", "optprobe list")])
    assert finished.status == 0, finished.output
    addresses = [int(probe["address"], 16) for probe in finished.json("good")]
    assert addresses[0] == this and this <= addresses[1] < following == addresses[2], finished.output
    assert finished.json("bad") == []
    for said, words in zip(re.split(r"bad (?:\d+:|end)\n", finished.output)[1:-1], bad.values(), strict=True):
        assert said.startswith("optprobe: ") and words in said, said
        assert "Traceback" not in said and "internal error" not in said
    assert each_linux.problems() == []


# Its low byte, half and word are negative as signed numbers, and positive as unsigned ones.
OFFSET = 0xB2D08AC8
WIDTHS = {"u8": "unsigned char", "s8": "signed char", "u16": "unsigned short", "s16": "short"}
WIDTHS |= {"u32": "unsigned int", "s32": "int", "u64": "unsigned long", "s64": "long"}


@on_every_isa
def test_kprobe_args_type(each_linux: Guest) -> None:
    """One register in every width and sign: as the guest's own event has it."""
    register = {"x86_64": "%si", "ppc64le": "%gpr4", "aarch64": "%x1"}[each_linux.options.arch]
    seek = f"dd if=/bin/busybox of=/dev/null bs=1 skip={OFFSET} count=0 2>/dev/null"
    fields = " ".join(f"{name}={register}:{name}" for name in WIDTHS)
    each_linux.check(f"cd {TRACING}; echo 'p:own/seek generic_file_llseek_size {fields}' > kprobe_events")
    each_linux.check(f"cd {TRACING}; echo 1 > events/own/enable; {seek}; echo 0 > events/own/enable")
    trace = each_linux.check(f"cd {TRACING}; grep ' dd-' trace; echo > kprobe_events; echo > trace")
    theirs = [re.findall(rf"(?:{'|'.join(WIDTHS)})=(-?\d+)", line) for line in trace.splitlines()]
    values = ", ".join(f"({kind})$arg2" for kind in WIDTHS.values())
    script: list[str | Workload] = [f'optprobe add generic_file_llseek_size if $comm == "dd" do record({values})']
    finished = batch(each_linux, [*script, "optprobe commit", Workload(seek), report("report"), "optprobe delete"])
    assert finished.status == 0, finished.output
    ours = [record["values"] for record in records(finished, "report")]
    assert ours == [list(map(int, line)) for line in theirs] != []
    assert ours[0][:2] == [OFFSET & 0xFF, (OFFSET & 0xFF) - 256]
    assert each_linux.problems() == []
