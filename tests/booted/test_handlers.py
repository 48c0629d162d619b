"""Conditions and actions run in the guest: what they gather is what the guest did, in every tier alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from qemu.bench_target import BENCH_TARGETS
from qemu.guest import Guest
from tests.booted.batch import MARK, Finished, Workload, at_once, batch, keep
from tests.booted.conftest import FULL, on_every_isa
from tests.booted.test_patch_storm import background

EACH = 20_000 if FULL else 400
FEW = 20
FITS = {"aarch64": "HINT: set optprobe max-memory 8"}
"""The hint for a table of 4.2 MiB, where no smaller one fits into the memory that is beside the kernel's image."""
SCRATCH = {"x86_64": "$r10, $r11", "ppc64le": "$r11, $r12", "aarch64": "$x10, $x11"}
"""Registers that the ABI lets a program overwrite at an entry."""


def reads(guest: Guest, counts: Mapping[int, int]) -> Workload:
    """Two processes at once that read some bytes some times, by number of bytes, and one more that reads others."""
    dd = "dd if=/dev/zero of=/dev/null bs={} count={} 2>/dev/null"
    each = "; ".join(dd.format(size, count) for size, count in counts.items())
    return at_once(guest, f"({each}) & ({each}) & wait; head -c 12345 /dev/zero > /dev/null")


def report(name: str) -> str:
    return f'python print("{MARK}{name}"); gdb.execute("optprobe report -json"); print("{MARK}end")'


def reported(finished: Finished, name: str) -> list[dict[str, Any]]:
    text = finished.output.split(f"{MARK}{name}\n")[1].split(f"{MARK}end")[0]
    return [json.loads(line) for line in text.splitlines()]


def records(finished: Finished, name: str) -> list[dict[str, Any]]:
    return [line for line in reported(finished, name) if line["type"] == "record"]


def maps(finished: Finished, name: str) -> dict[tuple[int, str], Any]:
    """By probe and action, what was gathered: by key, or one value."""
    found: dict[tuple[int, str], Any] = {}
    for line in reported(finished, name):
        if line["type"] == "map":
            assert line["lost"] == 0
            by_key = {tuple(entry["key"]): entry["value"] for entry in line["entries"]}
            found[line["number"], line["action"]] = by_key[()] if set(by_key) == {()} else by_key
    return found


# $arg3 is the size, $arg1 the file.
ACTIONS = ["sum($arg3)", "min($arg3)", "max($arg3)", "avg($arg3)", "hist($arg3)", "lhist($arg3, 0, 8000, 1000)"]


@pytest.mark.parametrize("tier", ["optimized", "emulated", "breakpoint"])
def test_what_is_gathered(each_linux: Guest, tier: str) -> None:
    forced = f"-tier {tier}" if tier != "optimized" else ""
    each = EACH if tier == "optimized" else FEW
    of_one = {100: each, 5_000: each // 2, 7_777: 3}
    script: list[str | Workload] = [
        f'optprobe add ksys_read {forced} if $comm == "dd" && $arg3 >= 100 do {", ".join(ACTIONS)}',
        f'optprobe add ksys_read {forced} if $comm == "dd" do count by $arg3, max($arg3) by ($comm, $arg1)',
        f"optprobe add ksys_read {forced} if $arg3 == 7777 && $pid > 1",
        f"optprobe add ksys_read {forced} if $arg3 / ($arg3 == 5000 ? 0 : 1) == 7777",
        "optprobe commit",
    ]
    script += [reads(each_linux, of_one), keep("list", "optprobe list"), report("report"), "optprobe delete"]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    probes = finished.json("list")
    assert {probe["tier"] for probe in probes} == {tier}, finished.output
    counts = {size: 2 * count for size, count in of_one.items()}
    number, total = sum(counts.values()), sum(size * count for size, count in counts.items())
    assert probes[0]["hits"] == number
    assert probes[2]["hits"] == probes[3]["hits"] == counts[7777]
    assert [probe["faults"] for probe in probes] == [0, 0, 0, counts[5000]]
    found = maps(finished, "report")
    value = {action: found[probes[0]["number"], action] for action in ACTIONS}
    assert value["sum($arg3)"] == total
    assert (value["min($arg3)"], value["max($arg3)"]) == (100, 7777)
    assert value["avg($arg3)"] == total // number
    in_powers = {bucket["low"]: bucket["count"] for bucket in value["hist($arg3)"]}
    assert in_powers == {64: counts[100], 4096: counts[5000] + counts[7777]}
    in_thousands = {bucket["low"]: bucket["count"] for bucket in value["lhist($arg3, 0, 8000, 1000)"]}
    assert in_thousands == {0: counts[100], 5000: counts[5000], 7000: counts[7777]}
    by_size = found[probes[1]["number"], "count by $arg3"]
    assert {size: by_size[(size,)] for size in counts} == counts
    assert found[probes[1]["number"], "max($arg3) by ($comm, $arg1)"][("dd", 0)] == 7777
    assert each_linux.problems() == []


@pytest.mark.parametrize("tier", ["optimized", "breakpoint"])
def test_records(each_linux: Guest, tier: str) -> None:
    """Each read in its order, with its time; what finds no room is counted; cleared ones come no more."""
    forced = f"-tier {tier}" if tier != "optimized" else ""
    many = 700 if tier == "optimized" else 20
    both = 'if $comm == "dd" && $arg3 >= 100 do print("%s reads %5ld\\n", $comm, $arg3), record($arg3 * 2, $pid)'
    stack = f"optprobe add vfs_read {forced} if $comm == \"dd\" && $arg3 == 7777 do stack"
    script: list[str | Workload] = [f"optprobe add ksys_read {forced} {both}", stack, "optprobe commit"]
    few = "dd if=/dev/zero of=/dev/null bs=100 count=2; dd if=/dev/zero of=/dev/null bs=7777 count=1"
    script += [at_once(each_linux, few, "few")]
    script += [report("first"), "optprobe report -clear", report("cleared")]
    script += [at_once(each_linux, f"dd if=/dev/zero of=/dev/null bs=101 count={many}", "many")]
    script += [report("many"), "optprobe delete"]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    *first, taken = records(finished, "first")
    assert [one["text"] for one in first[::2]] == ["dd reads   100\n"] * 2 + ["dd reads  7777\n"], finished.output
    assert [one["values"][0] for one in first[1::2]] == [200, 200, 15554]
    assert len({one["values"][1] for one in first[1::2]}) == 2
    functions = [frame["symbol"].split("+")[0] for frame in taken["stack"]]
    assert functions[:2] == ["vfs_read", "ksys_read"], taken
    times = [one["time"] for one in first]
    assert times == sorted(times) if tier == "optimized" else not any(times)
    assert records(finished, "cleared") == []
    probe = next(line for line in reported(finished, "many") if line["type"] == "probe")
    assert len(records(finished, "many")) + probe["dropped"] == 2 * many
    assert (probe["dropped"] > 0) is (tier == "optimized")


def test_what_one_probe_reads_another_one_leaves_alone(each_linux: Guest) -> None:
    """Registers that the ABI lets a program overwrite at an entry, read a few instructions on, in another detour."""
    subject, names = BENCH_TARGETS[each_linux.options.arch], SCRATCH[each_linux.options.arch]
    keys = f"count by ({names})"
    some = Workload("dd if=/dev/zero of=/dev/null bs=77 count=50")
    reader = f'optprobe add *{subject.behind} if $comm == "dd" && {subject.size} == 77 do {keys}'
    script: list[str | Workload] = [reader, "optprobe commit", some, report("alone"), "optprobe report -clear"]
    script += ['optprobe add vfs_read if $comm == "dd" do count by $pid, hist($arg3)', "optprobe commit"]
    script += [some, report("both"), keep("list", "optprobe list"), "optprobe delete"]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    assert [probe["tier"] for probe in finished.json("list")] == ["optimized"] * 2, finished.output
    number = finished.json("list")[0]["number"]
    alone, both = (maps(finished, name)[number, keys] for name in ("alone", "both"))
    assert sum(alone.values()) == sum(both.values()) == 50
    # An interrupt that the kernel replays on the way in changes some, probed or not: 16 in 50,000 on ppc64le.
    most = max(alone, key=lambda key: alone[key])
    assert alone[most] >= 45 and both.get(most, 0) >= 45, (alone, both)


@on_every_isa
def test_what_finds_no_memory_leaves_others_as_they_are(each_linux: Guest) -> None:
    fits_never = "optprobe add vfs_read do lhist($arg3, 0, 1000, 1) by $pid"
    attempt = f"python\ntry:\n  gdb.execute({fits_never!r})\nexcept gdb.error as e: print(e)\nend"
    script: list[str | Workload] = ["set optprobe max-memory 0", "optprobe add vfs_read", "optprobe commit", attempt]
    script += [keep("list", "optprobe list"), "optprobe check", "optprobe delete"]
    finished = batch(each_linux, ["set optprobe exit-on-error off", *script])
    assert finished.status == 0, finished.output
    assert "optprobe: the memory for detours is full" in finished.output
    assert FITS.get(each_linux.options.arch, "this fits: set optprobe table-keys ") in finished.output
    assert [probe["tier"] for probe in finished.json("list")] == ["optimized"], finished.output


def test_from_python(each_linux: Guest) -> None:
    """A Python handler is called where the condition holds; a text of several actions is several."""
    script: list[str | Workload] = [
        "python from gdb_optprobe import kprobe; sizes, after = [], []",
        f"python name = '{BENCH_TARGETS[each_linux.options.arch].size[1:]}'",
        "python pre = lambda hit: sizes.append(hit.regs[name])",
        "python post = lambda hit: after.append(1)",
        "python p = kprobe('ksys_read', when='$arg3 == 7777', pre_handler=pre, post_handler=post)",
        "python q = kprobe('ksys_read', when='$comm == \"dd\"', do='sum($arg3), count by $arg3')",
        Workload("dd if=/dev/zero of=/dev/null bs=7777 count=3; dd if=/dev/zero of=/dev/null bs=5 count=4"),
        f'python print("{MARK}seen"); print([sizes, len(after), p.hits])',
        report("report"),
        "python p.delete(); q.delete()",
    ]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    assert finished.json("seen") == [[7777] * 3, 3, 3]
    found = {action: value for (_, action), value in maps(finished, "report").items()}
    assert found["sum($arg3)"] > 3 * 7777 and found["count by $arg3"][(7777,)] == 3


def test_values_and_types_where_the_guest_is_stopped(each_linux: Guest) -> None:
    """The kernel of ppc64le has no types: registers, the running thread and C's own types are known."""
    typed = ["print count", "print file->f_path.dentry->d_name.name", "print *file->f_op", "type file->f_path"]
    asked = ["print $arg3", "print $comm", "type u64 *", *(typed if each_linux.options.arch == "x86_64" else ())]
    said = [line for each in asked for line in (f"echo {MARK}{each}\\n", f"optprobe {each}")]
    script = ['optprobe break vfs_read if $comm == "dd" && $arg3 == 77', "optprobe commit"]
    script += ["optprobe run -until-hits 1:1", *said, f"echo {MARK}end\\n", "optprobe delete"]
    # The reader is no workload of the script: the Ctrl-C that ends one would meet a hit now and then.
    each_linux.check(f"touch /tmp/reader; {background('reader', 'dd if=/dev/zero bs=77 count=9')}")
    try:
        finished = batch(each_linux, script)
    finally:
        each_linux.check("rm /tmp/reader; wait")
    assert finished.status == 0, finished.output
    _, *parts = finished.output.split(MARK)
    found = {name: lines for name, *lines in (part.splitlines() for part in parts)}
    assert found["print $arg3"] == ["77"] and found["print $comm"] == ['"dd"']
    assert found["type u64 *"] == ["unsigned long *  /* size 8 */"]
    if each_linux.options.arch == "x86_64":
        assert found["print count"] == ["77"]
        assert found["print file->f_path.dentry->d_name.name"][0].endswith('"zero"')
        assert any(line.endswith("<read_zero>") for line in found["print *file->f_op"])
        assert found["type file->f_path"][0] == "struct path {" and "dentry;" in "".join(found["type file->f_path"])
