"""Scripts in bpftrace's language run in the guest: what they print is what the guest did."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from qemu.guest import Guest
from tests.booted import answer, calls
from tests.booted.batch import Finished, batch
from tests.booted.conftest import on_every_isa
from tests.booted.gdb import Console
from tests.booted.test_bad_input import attempt
from tests.handlers.oracle import needs_gcc

READS = 300
CALLS = 50
DD = f"dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null"


def script(guest: Guest, program: str, *options: str, work: str = DD) -> Finished:
    line = " ".join(["optprobe script", *options, "-guest", f'"{work}"', "-e", f"'{program}'"])
    return batch(guest, [line])


def values(finished: Finished) -> dict[str, Any]:
    """What the JSON lines of maps have, by their names."""
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"type"')]
    return {name: value for line in lines if line["type"] in ("map", "hist") for name, value in line["data"].items()}


def test_maps_by_key_are_exact(each_linux: Guest) -> None:
    actions = "@[comm, arg2] = count(); @total = count(); @sum[comm] = sum(arg2); @last[comm] = arg2;"
    program = f"kprobe:vfs_read {{ {actions} }}"
    finished = script(each_linux, program, "-json")
    found = values(finished)
    assert finished.status == 0
    assert found["@"]["dd,1"] == found["@sum"]["dd"] == READS
    assert found["@last"]["dd"] == 1
    assert found["@total"] >= READS


def test_a_hit_that_stops_the_guest_changes_the_maps_too(each_linux: Guest) -> None:
    program = 'BEGIN { @word[7] = "seven"; } kprobe:read_zero { @[comm, @word[7]] = count(); }'
    work = "dd if=/dev/zero of=/dev/null bs=1 count=5 2>/dev/null"
    off = [f"set optprobe {tier} off" for tier in ("optimization", "trap")]
    finished = batch(each_linux, [*off, f"optprobe script -json -guest '{work}' -e '{program}'"])
    assert finished.status == 0 and values(finished)["@"] == {"dd,seven": 5}, finished.output


def test_entry_and_return_share_a_map(each_linux: Guest) -> None:
    program = (
        'kprobe:vfs_read /comm == "dd"/ { @s[tid] = nsecs; @in = count(); } '
        "kretprobe:vfs_read /@s[tid]/ { @ns = hist(nsecs - @s[tid]); @r[retval] = count(); delete(@s[tid]); }"
    )
    found = values(script(each_linux, program, "-json"))
    assert found["@in"] == found["@r"]["1"] == READS
    assert sum(bucket["count"] for bucket in found["@ns"]) == READS
    assert min(bucket["min"] for bucket in found["@ns"]) > 0
    assert "@s" not in found


def test_text_streams_in_order_and_ends_with_the_maps(each_linux: Guest) -> None:
    program = (
        'BEGIN { printf("begin %s\\n", comm); @n = 40; } '
        'kprobe:vfs_read /comm == "dd" && arg2 == 1/ '
        '{ @n++; if (@n <= 43) { printf("%d %s %s\\n", @n, comm, probe); } } '
        'END { printf("end %d\\n", @n); }'
    )
    finished = script(each_linux, program)
    text = finished.output[finished.output.index("Attaching") :]
    wanted = ["Attaching 3 probes...", "begin bpftrace", *(f"{n} dd kprobe:vfs_read" for n in (41, 42, 43))]
    assert text.splitlines()[: len(wanted)] == wanted
    assert f"end {40 + READS}\n\n\n@n: {40 + READS}\n" in text


def test_stacks_are_keys_and_texts(each_linux: Guest) -> None:
    """One key for one way to the function, its frames as bpftrace prints them."""
    program = (
        'kprobe:vfs_read /comm == "dd" && arg2 == 1/ { @[kstack] = count(); @by[kstack(2), comm] = count(); '
        '@n++; if (@n == 1) { printf("<%s>", kstack(perf, 2)); } @len[len(kstack), len(kstack(raw, 2))] = count(); }'
    )
    finished = script(each_linux, program, "-json")
    found = values(finished)
    ((stack, count),) = found["@"].items()
    names = [line.partition("+")[0] for line in stack.splitlines()]
    assert count == READS and names[:3] == ["", "    vfs_read", "    ksys_read"] and stack.endswith("\n")
    assert len(names) > 4 and "(callers unknown)" not in names
    assert found["@len"] == {f"{len(names) - 1},2": READS}
    assert found["@by"] == {f"{''.join(line + chr(10) for line in stack.splitlines()[:3])},dd": READS}
    (text,) = [line["data"] for line in map(json.loads, re.findall(r'^{"type": "printf".*', finished.output, re.M))]
    assert re.fullmatch(r"<\n\t[0-9a-f]{16} vfs_read\+\d+\n\t[0-9a-f]{16} ksys_read\+\d+\n>", text)


def test_stacks_go_through_modules(linux: Guest) -> None:
    """The first hits know nothing of a module's code; the later ones have all of their callers."""
    linux.check("insmod /lib/modules/brd.ko rd_nr=1")
    try:
        write = "dd if=/dev/zero of=/dev/ram0 bs=4k count=20 conv=fsync 2>/dev/null"
        work = f"for i in 1 2 3 4 5; do {write}; sleep 0.2; done"
        program = 'kprobe:radix_tree_lookup { @[kstack(6)] = count(); }'
        found = values(script(linux, program, "-json", work=work))["@"]
    finally:
        linux.check("rmmod brd")
    through = {stack: count for stack, count in found.items() if "    brd_submit_bio+" in stack}
    whole = {stack: count for stack, count in through.items() if "(callers unknown)" not in stack}
    assert all("    __submit_bio+" in stack for stack in whole) and sum(whole.values()) > 0
    assert all(stack.splitlines()[-2].startswith("    brd_") for stack in through.keys() - whole.keys())


OUTER = {"x86_64": 3, "ppc64le": 3, "aarch64": 8}
"""Lines of the stack where a system call has returned: arm64 makes frames for the handlers of its entry."""


@on_every_isa
def test_stacks_where_functions_return(each_linux: Guest) -> None:
    """They begin at the caller. A frame with a return probe is named as such, and no caller is made up for it."""
    program = (
        'kretprobe:vfs_read /comm == "dd" && retval == 1/ { @[kstack(2)] = count(); } '
        'kretprobe:vfs_read /comm == "dd" && retval == 1/ { @again[kstack(2)] = count(); } '
        'kprobe:rw_verify_area /comm == "dd"/ { @in[kstack(3)] = count(); } '
        'kretprobe:ksys_read /comm == "dd"/ { @outer[kstack] = count(); }'
    )
    found = values(script(each_linux, program, "-json"))
    for name in ("@", "@again"):
        ((stack, count),) = found[name].items()
        assert count == READS and re.match(r"\n    ksys_read\+\d+\n    \(a return probe\)\n$", stack)
    ((outer, _),) = found["@outer"].items()
    assert len(outer.splitlines()) == OUTER[each_linux.options.arch] and "(" not in outer
    inside = [stack.splitlines() for stack in found["@in"] if "    vfs_read+" in stack]
    assert inside and {lines[3] for lines in inside} == {"    (a return probe)"}


def test_stacks_of_programs(each_linux: Guest) -> None:
    program = (
        'kprobe:vfs_read /comm == "dd" && arg2 == 1/ { @[ustack(raw)] = count(); @last[ustack(raw, 1)] = count(); } '
        "kprobe:worker_thread,kprobe:process_one_work { @kernels[ustack] = count(); }"
    )
    if each_linux.options.arch == "x86_64":
        program += ' kprobe:__x64_sys_read /comm == "dd"/ { @ip[((struct pt_regs *)arg0)->ip] = count(); }'
    found = values(script(each_linux, program, "-json"))
    ((stack, count),) = found["@"].items()
    ((last, again),) = found["@last"].items()
    assert count == again == READS and stack.startswith(last)
    assert set(found.get("@kernels", {})) <= {"\n"}
    if "@ip" in found:
        assert found["@ip"][str(int(last, 16))] == READS
    else:
        assert stack.count("\n") >= 5, "the ABI has a back chain, or frame pointers"


def test_events_that_functions_serve(each_linux: Guest) -> None:
    """Switches are as many as the kernel counts; faults are counted by each CPU alone; the profile is of busy CPUs."""
    program = (
        'profile:hz:50 /comm == "dd"/ { @dd = count(); @[kstack(2)] = count(); } '
        "profile:s:100 { @slow[cpu] = count(); } "
        "software:faults:1 { @f[cpu] = count(); } software:page-faults:10 { @tenth[cpu] = count(); } "
        "software:cs:1 { @cs = count(); }"
    )
    count = "grep ctxt /proc/stat >>"
    work = f"rm -f /s; {count} /s; dd if=/dev/zero of=/dev/null bs=1 count=100000 2>/dev/null; {count} /s"
    finished = script(each_linux, program, "-json", work=work)
    found = values(finished)
    before, after = (int(line.split()[1]) for line in each_linux.check("cat /s").splitlines())
    assert "profile goes by the tick of the guest's scheduler" in finished.output
    assert found["@dd"] == sum(found["@"].values()) > 0
    assert set(found["@slow"].values()) == {1}
    for cpu, faults in found["@f"].items():
        # The guest may run for a moment between two probes' attachment, to lend memory.
        assert 0 <= faults // 10 - found["@tenth"].get(cpu, 0) <= 3
    assert 0 < after - before <= found["@cs"] <= after - before + 500


def test_events_that_no_function_serves_are_refused_with_the_reason(linux: Guest) -> None:
    for kind, why in (
        ("software:major-faults:1", "the kernel counts it where no function begins"),
        ("software:unheard-of:1", "there is no such event"),
    ):
        finished = batch(linux, [f"optprobe script -e 'kprobe:vfs_read {{ @ = count(); }} {kind} {{ @x = cpu; }}'"])
        assert finished.status == 1 and "Attaching" not in finished.output
        assert f"{kind[:-2]} is not supported: {why}" in finished.output
    finished = batch(linux, ["optprobe script -e 'kprobe:vfs_raed { @ = count(); }'"])
    assert finished.status == 255, "as bpftrace, which attaches by names that it has not looked up"
    assert "nothing matches 'kprobe:vfs_raed'" in finished.output and "did you mean vfs_read" in finished.output


def test_exit_ends_the_script_with_its_status(linux: Guest) -> None:
    program = 'kprobe:vfs_read /comm == "dd"/ { printf("one\\n"); exit(3); printf("two\\n"); }'
    finished = script(linux, program)
    assert finished.status == 3
    assert finished.output.count("one\n") == 1 and "two" not in finished.output


def test_kernel_types_and_strings(linux: Guest) -> None:
    program = (
        'kprobe:vfs_open { @[str(((struct path *)arg0)->dentry->d_name.name)] = count(); @u[uid] = count(); '
        "@c[curtask->comm] = count(); @as[str(uptr(((struct path *)arg0)->dentry->d_name.name))] = count(); }"
    )
    found = values(script(linux, program, "-json", work="cat /proc/version /proc/version"))
    assert found["@"]["version"] == found["@c"]["cat"] - found["@"].get("cat", 0) == 2
    assert [*found["@u"]] == ["0"]
    assert [*found["@as"]] == [""], "an address of the kernel's is none of the program's"


def test_control_groups_are_named_by_their_paths(linux: Guest) -> None:
    linux.check("mkdir -p /tmp/cg; mount -t cgroup2 none /tmp/cg; mkdir -p /tmp/cg/outer/inner")
    try:
        program = 'kprobe:vfs_read /comm == "dd"/ { @[cgroup] = count(); @node[numaid] = count(); @last = cgroup; } '
        program += 'END { printf("%s\\n", cgroup_path(@last)); printf("<%s>\\n", cgroup_path(123456)); }'
        finished = script(linux, program, work=f"echo 0 > /tmp/cg/outer/inner/cgroup.procs; {DD}")
    finally:
        linux.check("rmdir /tmp/cg/outer/inner /tmp/cg/outer; umount /tmp/cg; rmdir /tmp/cg")
    assert "\nunified:/outer/inner\n<>\n" in finished.output, finished.output
    assert re.search(rf"^@\[\d+\]: {READS}$", finished.output, re.MULTILINE)
    assert f"\n@node[0]: {READS}\n" in finished.output


def test_a_wildcard_shares_one_map(linux: Guest) -> None:
    found = values(script(linux, "kprobe:vfs_* { @[func] = count(); @p[probe] = count(); }", "-json"))
    assert found["@"]["vfs_read"] >= READS and found["@"]["vfs_write"] >= READS
    assert found["@p"] == {f"kprobe:{name}": count for name, count in found["@"].items()}


def test_intervals_fire_where_the_host_runs_them(linux: Guest) -> None:
    program = (
        'interval:ms:100 { @n++; printf("%d\\n", @n); @at[cpu, pid == curtask->tgid, comm == curtask->comm] = count(); '
        "if (@n == 3) { exit(); } } BEGIN { @begun[pid, uid, comm] = count(); } "
        "kprobe:vfs_read { @r = count(); }"
    )
    finished = script(linux, program, "-for", "20", work="sleep 20")
    assert re.search(r"^1\n2\n3\n", finished.output, re.MULTILINE)
    assert "\n@at[0, 1, 1]: 3\n" in finished.output and "\n@begun[0, 0, bpftrace]: 1\n" in finished.output


def test_a_file_and_its_parameters(linux: Guest, tmp_path: Path) -> None:
    path = tmp_path / "tool.bt"
    path.write_text(
        "#!/usr/bin/env bpftrace\nkprobe:$1\n/comm == str($2)/\n{\n\t@[comm] = count();\n}\n"
    )
    finished = batch(linux, [f'optprobe script -guest "{DD}" {path} vfs_read dd'])
    assert "\n@[dd]: " in finished.output


def test_errors_attach_nothing(linux: Guest) -> None:
    program = "kprobe:vfs_read { @a = 1; @a = comm; }"
    finished = batch(linux, [f"optprobe script -e '{program}'"])
    assert finished.status == 1 and "Attaching" not in finished.output
    assert "optprobe: Type mismatch for @a" in finished.output
    assert "    kprobe:vfs_read { @a = 1; @a = comm; }\n                              ^~~~~~~~~" in finished.output
    finished = batch(linux, ["optprobe list", "optprobe script -e ''"])
    assert "No probes." in finished.output and "the script has no probe" in finished.output


def test_no_probe_is_left(linux: Guest) -> None:
    line = f"optprobe script -guest \"{DD}\" -e 'kprobe:vfs_read {{ @[comm] = count(); }}'"
    finished = batch(linux, [line, "optprobe check", "optprobe list"])
    assert finished.status == 0 and "No probes." in finished.output


def test_what_cannot_be_attached_is_refused_before_begin_runs(linux: Guest) -> None:
    program = 'BEGIN { printf("begun"); } kprobe:vfs_read { @ = count(); } kretprobe:__switch_to_asm { @r = count(); }'
    finished = batch(linux, [f"optprobe script -for 1 -e '{program}'"])
    assert finished.status == 1
    assert "__switch_to_asm returns on another stack" in finished.output
    assert "begun" not in finished.output and "Attaching" not in finished.output


def test_system_calls_are_events(each_linux: Guest) -> None:
    program = (
        'tracepoint:syscalls:sys_enter_read /comm == "dd"/ { @asked[args->count] = count(); } '
        'tracepoint:syscalls:sys_exit_read /comm == "dd"/ { @got[args->ret] = count(); } '
        'tracepoint:syscalls:sys_enter_write,tracepoint:syscalls:sys_enter_close /comm == "dd"/ { @[probe] = count(); }'
    )
    found = values(script(each_linux, program, "-json"))
    assert found["@asked"]["1"] == found["@got"]["1"] == READS
    assert found["@"]["tracepoint:syscalls:sys_enter_write"] >= READS, "and what dd has to say"
    assert found["@"]["tracepoint:syscalls:sys_enter_close"] > 0


def test_tracepoints_have_their_fields(linux: Guest) -> None:
    program = (
        "tracepoint:sched:sched_switch { @[args->prev_comm] = count(); @all = count(); @from[kstack(2)] = count(); } "
        "rawtracepoint:sched_switch { @raw = count(); } "
        "tracepoint:s*:sched_process_ex*,tracepoint:*:sys_enter_execv* { @p[probe] = count(); }"
    )
    finished = script(linux, program, "-json", work=f"{DD}; sleep 0.1; sleep 0.1")
    found = values(finished)
    assert found["@all"] == sum(found["@"].values()) > 0 and found["@"]["sleep"] >= 2
    assert {stack.split("+")[0].strip() for stack in found["@from"]} <= {"__schedule", "__traceiter_sched_switch"}
    events = "sched:sched_process_exec", "sched:sched_process_exit", "syscalls:sys_enter_execve"
    assert {*found["@p"]} == {f"tracepoint:{each}" for each in events}
    assert min(found["@p"].values()) >= 3
    # Handlers are registered one behind the other, while the guest runs.
    assert min(found["@raw"], found["@all"]) > 0 and finished.status == 0
    assert "No probes." in batch(linux, ["optprobe list"]).output


@on_every_isa
def test_a_program_and_the_kernel_share_maps(each_linux: Guest, tmp_path: Path) -> None:
    """The program's memory is read, its returns are seen, and what BEGIN stores is there before the first hit."""
    built = calls.build(tmp_path, CALLS, each_linux.options.arch)
    answer.put(each_linux, built, "/tmp/calls")
    program = (
        "BEGIN { @n = 1000; } "
        "uprobe:/tmp/calls:test { @n++; @sum = sum(arg0); @s[tid] = arg0; @f[func, comm] = count(); } "
        "uretprobe:/tmp/calls:test /@s[tid]/ { @n++; @r[func, probe] = count(); @got = sum(retval); delete(@s[tid]); } "
        'uprobe:/tmp/calls:_start { @argv[str(*(uint64 *)(reg("sp") + 8))] = count(); } '
        "uprobe:/tmp/calls:i*n*r { @w[probe] = count(); } "
        'kprobe:vfs_read /comm == "dd"/ { @n++; }'
    )
    finished = script(each_linux, program, "-json", work=f"/tmp/calls; /tmp/calls; {DD}")
    found, calls_ = values(finished), 2 * CALLS
    assert finished.status == 0, finished.output
    assert found["@sum"] == 2 * sum(range(CALLS + 1))
    assert found["@f"] == {"test,calls": calls_} and found["@argv"] == {"/tmp/calls": 2}
    assert found["@r"] == {"test,uretprobe:/tmp/calls:test": calls_} and found["@got"] != 0
    assert found["@w"] == {"uprobe:/tmp/calls:inner": calls_}
    reads = found["@n"] - 1000 - 2 * calls_
    assert READS <= reads < READS + 20 and "@s" not in found
    finished = batch(each_linux, ["optprobe check", "optprobe list"])
    assert finished.status == 0 and "No probes." in finished.output
    assert each_linux.run("rm /tmp/calls")[0] == 0 and each_linux.problems() == []


def test_a_programs_stack_begins_where_it_is_probed(each_linux: Guest, tmp_path: Path) -> None:
    """Where a function is entered frame pointers lead past its caller. LR has it, but not where a call has returned."""
    arch = each_linux.options.arch
    built = calls.build(tmp_path, CALLS, arch)
    answer.put(each_linux, built, "/tmp/calls")
    program = (
        "uprobe:/tmp/calls:inner { @in[ustack(raw, 1)] = count(); @callers[ustack(raw, 3)] = count(); } "
        "uretprobe:/tmp/calls:leaf { @back[ustack(raw, 2)] = count(); }"
    )
    found = values(script(each_linux, program, "-json", work="/tmp/calls"))
    elf = calls.elf(built, arch)
    assert {stack.strip(): hits for stack, hits in found["@in"].items()} == {f"{elf.resolve('inner'):x}": CALLS}
    places = {elf.resolve(name): name for name in ("call_test", "_start", *calls.FUNCTIONS)}

    def functions(name: str) -> list[str]:
        ((stack, hits),) = found[name].items()
        assert hits == CALLS, stack
        addresses = [int(each, 16) for each in stack.split()]
        return [places[max(place for place in places if place <= address)] for address in addresses]

    callers = ["test", "call_test"] if arch == "ppc64le" else ["call_test"]
    assert functions("@callers") == ["inner", *callers]
    assert functions("@back") == ["inner", callers[0]], "where leaf returns to, and its caller"
    assert each_linux.run("rm /tmp/calls")[0] == 0


SERVED = r"""
struct request { int kind; char name[8]; struct request *next; };
static struct request second = { 9, "two", 0 }, first = { -4, "one", &second };
__attribute__((noinline)) long serve(const struct request *request, short size, unsigned char flags, double weight)
{ __asm__ volatile("" ::: "memory"); return request->kind + size + flags + weight; }
void _start(void)
{
    long sum = *(volatile int *)&first.kind; /* what is not in memory yet reads as 0 */
    for (int at = 0; at < 50; at++) sum += serve(at & 1 ? &first : &second, -7, 200, 1);
    __asm__ volatile("syscall" :: "a"(60), "D"(sum & 0));
}
"""


@needs_gcc
def test_parameters_of_a_program_have_their_names_and_types(linux: Guest, tmp_path: Path) -> None:
    """The debug information is in the guest's file, which is in memory there."""
    (tmp_path / "served.c").write_text(SERVED)
    built = tmp_path / "served"
    words = ["gcc", "-g", "-O1", "-static", "-nostdlib", "-fno-stack-protector"]
    subprocess.run([*words, "-o", built, tmp_path / "served.c"], check=True)
    answer.put(linux, built, "/tmp/served")
    program = (
        "uprobe:/tmp/served:serve { @[args.request->kind, str(args.request->name), args.size, args.flags] = count(); "
        "if (args.request->kind < 0) { @next[args.request->next->kind] = count(); } }"
    )
    found = values(script(linux, program, "-json", work="/tmp/served"))
    assert found["@"] == {"-4,one,-7,200": 25, "9,two,-7,200": 25} and found["@next"] == {"9": 25}
    refusals = {
        "nothing": "no parameter 'nothing'",
        "weight": "where 'weight' is passed is not known",
        "request->nothing": "does not contain a field named 'nothing'",
    }
    lines = [f"optprobe script -e 'uprobe:/tmp/served:serve {{ print(args.{name}); }}'" for name in refusals]
    finished = batch(linux, ["set optprobe exit-on-error off", *map(attempt, lines)])
    assert all(why in finished.output for why in refusals.values()) and "Attaching" not in finished.output
    assert linux.run("rm /tmp/served")[0] == 0


def test_a_program_is_found_by_its_name(linux: Guest) -> None:
    """Of busybox, which has no symbols, a place is an address."""
    entry = linux.check("busybox od -An -tx8 -j24 -N8 /bin/busybox").split()[0]
    program = f"uprobe:busybox:0x{entry} {{ @[probe] = count(); }}"
    found = values(script(linux, program, "-json", work="busybox true; busybox true"))
    (name,) = found["@"]
    assert name.startswith("uprobe:/bin/busybox:0x") and found["@"][name] >= 2
    for named, why in (
        ("busybox:main", "/bin/busybox has no symbols: it is stripped"),
        (f"busybox:0x{entry} {{ @k = kstack; }} uprobe:/bin/sh:x", "the kernel's stack is empty where a program is"),
        ("libnothere:f", "the guest has no program or library 'libnothere' in memory"),
        ("/nowhere:f", "the guest has no file /nowhere in memory"),
    ):
        finished = batch(linux, [f"optprobe script -e 'uprobe:{named} {{ @ = count(); }}'"])
        assert finished.status == 1 and f"optprobe: {why}" in finished.output, finished.output


def test_keys_that_were_deleted_make_room_for_others(linux: Guest) -> None:
    """Of 256 keys, 300 reads use one each; those of an earlier look at the rings are freed."""
    program = (
        "config = { max_map_keys = 256 } "
        'kprobe:vfs_read /comm == "dd"/ { @n++; @by[@n] = 1; @kept[@by[@n]] = count(); delete(@by[@n]); }'
    )
    work = "for i in 1 2 3 4 5 6; do dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null; sleep 0.6; done"
    found = values(script(linux, program, "-json", work=work))
    assert found["@n"] == 600 and found["@kept"] == {"1": 600}


def test_a_kind_of_probes_that_is_not_there_is_named(linux: Guest) -> None:
    finished = batch(linux, ["optprobe script -e 'kprobe:vfs_read { @ = count(); } iter:task { @x = 1; }'"])
    assert finished.status == 1 and "Attaching" not in finished.output
    assert "optprobe: iter probes are not supported: the guest's own iterators" in finished.output, finished.output


def session_maps(finished: Finished) -> dict[str, Any]:
    """What a report's JSON has of the session's maps, by their names."""
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"type": "session_map"')]
    return {name: value for line in lines for name, value in line["map"]["data"].items()}


def test_blocks_of_several_probes_share_the_sessions_maps(each_linux: Guest) -> None:
    """A later GDB takes them over with what they have counted."""
    first = batch(
        each_linux,
        [
            "set optprobe on-exit keep",
            'optprobe add vfs_read do { if (comm == "dd") { @by[func, arg2] = count(); @s[tid] = 1; '
            "@k[kstack(2)] = count(); } }",
            "optprobe add vfs_read -return do { if (@s[tid]) { @got = sum(retval); delete(@s[tid]); } }",
            'optprobe add vfs_w* do { if (comm == "dd" && !@s[tid]) { @by[func, arg2] = count(); } }',
            f"optprobe run -guest '{DD}'",
            "optprobe report -json",
            "optprobe report",
        ],
    )
    found = session_maps(first)
    assert found["@by"]["vfs_read,1"] == found["@by"]["vfs_write,1"] == READS and found["@s"] == {}
    assert READS <= found["@got"] < READS + 100_000 and f"\n@by[vfs_read, 1]: {READS}" in first.output
    assert ' do { if (comm == "dd")' in re.sub(r"\s+", " ", first.output)
    second = batch(
        each_linux,
        [
            "optprobe recover",
            f"optprobe run -guest '{DD}'",
            "optprobe report -json",
            "optprobe report -clear",
            "python print('cleared')",
            *("optprobe report -json", "optprobe check", "optprobe delete", "optprobe list"),
        ],
    )
    found = session_maps(Finished(second.output.partition("cleared")[0], 0, ()))
    assert found["@by"]["vfs_read,1"] == found["@by"]["vfs_write,1"] == 2 * READS, second.output
    assert sum(found["@k"].values()) >= 2 * READS and all("vfs_read" in stack for stack in found["@k"])
    assert session_maps(Finished(second.output.partition("cleared")[2], 0, ()))["@by"] == {}
    assert second.status == 0 and "No probes." in second.output


def test_a_script_whose_gdb_is_killed_is_taken_out(linux: Guest) -> None:
    """Its probes count on, which harms no one, until the next GDB takes them out, and their functions off events."""
    program = (
        'kprobe:vfs_read /comm == "dd"/ { @s[tid] = nsecs; } kretprobe:vfs_read /@s[tid]/ { delete(@s, tid); } '
        "tracepoint:sched:sched_switch { @[args.prev_comm] = count(); } kprobe:ksys_read { @k[kstack] = count(); } "
        'profile:hz:20 { @p = count(); } interval:ms:100 { printf("%s\\n", "tick"); }'
    )
    with Console(linux) as gdb:
        gdb.send(f"optprobe script -e '{program}'")
        gdb.until(r"\ntick\n")
        gdb.kill()
    linux.check(f"{DD}; sleep 0.1")
    lines = ["set optprobe exit-on-error off", "optprobe recover", "optprobe list", "optprobe check"]
    finished = batch(linux, [*lines, attempt("optprobe recover")])
    assert finished.status == 0, finished.output
    for said in ("5 probes (1 to 5) are taken out", "or their script, went", "has taken what was registered off",
                 "No probes.", "holds what we wrote", "no probes of an earlier GDB are in this guest"):  # fmt: skip
        assert said in finished.output, (said, finished.output)


def test_a_script_that_is_kept_counts_on(linux: Guest) -> None:
    program = (
        'BEGIN { @n = 40; printf("begun\\n"); } kprobe:vfs_read /comm == "dd" && arg2 == 1/ '
        '{ @n++; @r = count(); if (@n == 42) { printf("%s %d\\n", comm, arg2); } } '
        'kretprobe:vfs_read /comm == "dd"/ { @ret[retval] = count(); } END { printf("never\\n"); }'
    )
    refusals = {
        "script -e 'BEGIN { @n = 1; }'": "@n is a map of other probes, which would go with the script",
        "add vfs_write do { @n[1] = count(); }": "Argument mismatch for @n: trying to access with arguments: 'int64'",
        "add vfs_write do { @n = 1; clear(@n); }": "clear() is carried out while a script runs, and these probes stay",
        "add vfs_write if count > 1 do { @x = 1; }": "a block in braces has no condition before it",
        "add vfs_write do count, { @x = 1; }": "a block in braces is the only action",
        "script -keep -e 'interval:s:1 { @i = 1; }'": "interval probes fire while a script runs",
    }
    lines = ["set optprobe exit-on-error off", f"optprobe script -keep -e '{program}'", f"optprobe run -guest '{DD}'"]
    lines += ["optprobe report -json", "optprobe add vfs_write do { if (@n == 1) { @other = 1; } }"]
    lines += [*(attempt(f"optprobe {line}") for line in refusals), "optprobe delete", "optprobe report"]
    finished = batch(linux, lines)
    text, found = finished.output, session_maps(finished)
    assert "Attaching 4 probes...\nbegun\n" in text and "never" not in text
    assert found == {"@n": 40 + READS, "@r": READS, "@ret": {"1": READS} | found["@ret"]}
    assert '"text": "dd 1"' in text
    for why in refusals.values():
        assert f"optprobe: {why}" in text, text
    assert "\nNo probes.\n" in text and not session_maps(Finished(text.partition("No probes.")[2], 0, ()))
