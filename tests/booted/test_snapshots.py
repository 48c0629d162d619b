"""A snapshot is loaded beneath us: what it holds is told, and nothing stale is written.

In guests of their own: `loadvm` of QEMU 7.2 does not restore when a CPU of ppc64le is next interrupted by its timer, so
that one may never be again, probes or none.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.booted import answer, calls
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import EVERY_ISA, FULL, Boot
from tests.booted.test_bad_input import attempt

READS = 200
WORK = Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null")
SAVED, LOADED = "monitor savevm {}", "monitor loadvm {}"
LIST = "optprobe list"


@pytest.mark.parametrize("arch", ["x86_64", *["ppc64le"] * FULL, *["aarch64"] * EVERY_ISA])
def test_what_is_in_the_guest_is_what_the_snapshot_held(boot: Boot, arch: str) -> None:
    """Snapshots without a probe, with one, and with one more that has gone; each is loaded where another one's are."""
    guest = boot(arch=arch)
    script: list[str | Workload] = ["set optprobe exit-on-error off", "optprobe explain vfs_read"]
    script += [SAVED.format("none"), "optprobe add read_zero", SAVED.format("one"), WORK]
    script += ["optprobe add ksys_read", "optprobe add vfs_read", SAVED.format("three"), "optprobe delete 2"]
    for number, name in enumerate(("one", "none", "three")):
        script += [f"echo @{number}\\n", LOADED.format(name), attempt("optprobe delete"), attempt(LIST)]
        script += [attempt("optprobe add vfs_write"), attempt("optprobe recover"), WORK, keep(name, LIST)]
        script += ["optprobe check", attempt("optprobe add vfs_write")]
    script += [LOADED.format("none"), attempt(LIST), "optprobe add read_zero", WORK, keep("last", LIST)]
    finished = batch(guest, [*script, "optprobe check", "optprobe delete", "optprobe commit"])
    assert finished.status == 0, finished.output
    told = re.split(r"@\d\n", finished.output)[1:]
    for each in told:
        assert each.count("is not the one that was probed (rebooted, or a snapshot?)") >= 1, each
    assert ["Probes of an earlier GDB are in this guest" in each.split("@@")[0] for each in told] == [True, False, True]
    one, none, three = (finished.json(name) for name in ("one", "none", "three"))
    assert [(probe["symbol"].split("+")[0], probe["hits"]) for probe in one] == [("read_zero", READS)]
    assert [probe["symbol"].split("+")[0] for probe in none] == ["vfs_write"]
    assert [probe["symbol"].split("+")[0] for probe in three] == ["read_zero", "ksys_read", "vfs_read"]
    assert three[0]["hits"] == 2 * READS
    assert [probe["hits"] for probe in finished.json("last")] == [READS]
    assert finished.output.count("holds what we wrote") == 4
    assert "internal error" not in finished.output
    assert guest.problems() == []


STOPS = "hrtimer_interrupt"
RUN = "python from gdb_optprobe.debugger.running import run_for; run_for({})"
INSIDE = (
    f"python at = int(gdb.parse_and_eval('(long)&{STOPS}')) & (1 << 64) - 1; "
    "insns = gdb.selected_frame().architecture().disassemble(at, count=3); "
    "[gdb.set_convenience_variable(f'i{n}', insn['addr']) for n, insn in enumerate(insns)]"
)
# What an idle guest runs. The last one stops it, on x86-64 in the middle of a branch, which is out of the text then.
LEFT = [
    "optprobe add tick_nohz_idle_enter -tier boosted",
    "optprobe add tick_nohz_idle_exit -return -tier boosted",
    "optprobe add ktime_get -tier emulated",
    "optprobe add ktime_get_update_offsets_now",
    "break ktime_get_update_offsets_now",
    "disable",
    "enable",
    INSIDE,
    "optprobe add *$i1",
    "optprobe break *$i2",
    "disable",
    RUN.format(5),
    "enable",
    "x/i $pc",
]


@pytest.mark.parametrize("arch", ["x86_64", "ppc64le", *["aarch64"] * EVERY_ISA])
def test_who_goes_on_from_a_snapshot_without_a_command_of_ours_finds_nothing_of_ours(boot: Boot, arch: str) -> None:
    """What is left of a guest that is no more moves nobody to code that is not there, and writes no branch to it."""
    guest = boot(arch=arch)
    script = ["optprobe explain vfs_read", SAVED.format("clean"), *LEFT, keep("left", LIST)]
    script += [LOADED.format("clean"), "delete", "stepi", RUN.format(1), "echo @@@\\n"]
    script += ["set optprobe optimization off", attempt(LIST), "optprobe check", "monitor delvm clean"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    left = [(probe["tier"], probe["hits"] > 0) for probe in finished.json("left")]
    assert [tier for tier, _ in left[:3]] == ["boosted", "boosted", "emulated"], left
    assert left[3][0] != "optimized" and left[4:] == [("optimized", True)] * 2, left
    assert f"<{STOPS}+" in finished.output
    before, after = finished.output.split("@@@")
    assert before.count("the guest was reset, or put back to a snapshot: its 6 probes may be gone") == 1
    assert after.count("is not the one that was probed (rebooted, or a snapshot?)") == 1
    assert "No probes." in after and "holds what we wrote" in after
    assert not re.search("Traceback|Python Exception|internal error|cannot access", finished.output), finished.output
    assert guest.problems() == []


PROGRAM = "/tmp/snapshot"
PROBES = [f"optprobe add -user {PROGRAM}:test", f"optprobe add -user {PROGRAM}:inner -return", "optprobe add vfs_read"]
TEXT = """python
from gdb_optprobe.debugger.attach import attachments
from tests.booted import bulk
def text():
    if attachments.current is None:
        gdb.execute("optprobe list", to_string=True)
    kernel = attachments.current.linux.kernel
    start, end = kernel.range("_stext", "__kprobes_text_end")
    return start, bulk.read(start, end - start)
def differs(name):
    import json
    start, now = text()
    places = [start + at for at in range(0, len(now), 4) if now[at : at + 4] != kept[at : at + 4]]
    names = {gdb.execute(f"info symbol {at:#x}", to_string=True).split()[0] for at in places}
    print(f"@@{name}")
    print(json.dumps(sorted(names)))
end
"""


@pytest.mark.parametrize("arch", ["x86_64", *["ppc64le"] * FULL, *["aarch64"] * EVERY_ISA])
def test_text_of_a_snapshot_differs_where_its_probes_are_and_nowhere_once_they_are_gone(
    boot: Boot, arch: str, tmp_path: Path
) -> None:
    """Of probes on programs that is where the kernel maps files and ends processes: its calls lead to code of ours."""
    guest, functions = boot(arch=arch), tmp_path / "text.gdb"
    answer.put(guest, calls.build(tmp_path, 20, arch), PROGRAM)
    functions.write_text(TEXT)
    run = Workload(PROGRAM + "; true")

    def differs(name: str) -> str:
        return f"python differs({name!r})"

    gone = [attempt(LIST), attempt("optprobe recover -remove")]
    script: list[str | Workload] = ["set optprobe exit-on-error off", "optprobe explain vfs_read"]
    script += [f"source {functions}", SAVED.format("clean"), *PROBES, run, SAVED.format("probed"), "optprobe delete"]
    script += ["optprobe commit", "python kept = text()[1]", LOADED.format("probed"), differs("loaded"), *gone]
    script += [differs("removed"), LOADED.format("probed"), attempt(LIST), attempt("optprobe recover"), run]
    script += [differs("recovered"), "optprobe delete", "optprobe commit", differs("deleted"), *PROBES, run]
    script += [LOADED.format("clean"), attempt("optprobe delete"), differs("clean"), attempt("optprobe add vfs_write")]
    script += [differs("other"), "optprobe delete", "optprobe commit", differs("last"), "optprobe check"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    names = ("loaded", "removed", "recovered", "deleted", "clean", "other", "last")
    found = {name: finished.json(name) for name in names}
    assert found["loaded"] == found["recovered"] and len(found["loaded"]) > 3, found
    assert [name for name in found["loaded"] if "vfs_" in name] == ["vfs_read"], found
    assert [found[name] for name in ("removed", "deleted", "clean", "last")] == [[], [], [], []], found
    assert [name for name in found["other"] if not name.startswith("vfs_write")] == [], found
    assert guest.problems() == []
