"""A program that everybody runs is probed: processes begin, become another program, fork, and are killed."""

from __future__ import annotations

from pathlib import Path

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.x86_64 import X86_64
from qemu.guest import Guest
from qemu.kernels import busybox
from tests.booted import answer, calls
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL
from tests.booted.gdb import TRACING, Console

BUSYBOX = "/bin/busybox"
ROUNDS = 200 if FULL else 15
LIVES = (
    f"for i in $(seq {ROUNDS}); do sh -c 'exec {BUSYBOX} echo ok'; {BUSYBOX} sleep 100 & kill -9 $!; "
    "wait $! 2>/dev/null; echo 3 > /proc/sys/vm/drop_caches; done"
)
LIVED = "ok\n" * ROUNDS
THEIRS = f"read x < {TRACING}/uprobe_profile; echo $x"
ISAS: dict[str, Isa] = {"x86_64": X86_64, "ppc64le": PPC64LE, "aarch64": AARCH64}
DEBIAN = {"x86_64": "amd64", "ppc64le": "ppc64el", "aarch64": "arm64"}


def test_processes_come_and_go(each_linux: Guest, tmp_path: Path) -> None:
    """Each runs the program's first instruction once, and the guest's own event counts the second."""
    arch = each_linux.options.arch
    (tmp_path / "busybox").write_bytes(busybox(DEBIAN[arch]))
    program = calls.elf(tmp_path / "busybox", arch)
    first, second = ISAS[arch].decode(program.text(program.entry, 32), program.entry)[:2]
    ours, theirs = (program.offset(insn.address) for insn in (first, second))
    digest = each_linux.check(f"md5sum {BUSYBOX}")
    event = f"p:begun {BUSYBOX}:{theirs:#x}"
    each_linux.check(f"cd {TRACING}; echo '{event}' > uprobe_events; echo 1 > events/uprobes/enable")
    try:
        script: list[str | Workload] = [f"optprobe add -user {BUSYBOX}:{ours:#x}", Workload(THEIRS)]
        script += [keep("before", "optprobe list"), Workload(f"({LIVES}) & ({LIVES}) & wait"), Workload(THEIRS)]
        script += [keep("after", "optprobe list"), "optprobe check"]
        script += [Workload(f"({LIVES}) > /tmp/lives 2>&1 & echo $! > /tmp/living")]
        script += ["optprobe delete", "optprobe check"]
        script += [Workload("while kill -0 $(cat /tmp/living); do sleep 0.1; done 2>/dev/null; cat /tmp/lives")]
        finished = batch(each_linux, script)
    finally:
        each_linux.check(f"cd {TRACING}; echo 0 > events/uprobes/enable; echo > uprobe_events; rm -f /tmp/liv*")
    assert finished.status == 0, finished.output
    begun, lived, ended, _, deleted = finished.workloads
    assert (lived, deleted) == (2 * LIVED, LIVED), finished.workloads
    counted = finished.json("after")[0]["hits"] - finished.json("before")[0]["hits"]
    seen = int(ended.split()[-1]) - int(begun.split()[-1])
    # Who is killed between the two instructions has run the first one only.
    assert seen <= counted <= seen + 2 * ROUNDS and seen >= 4 * ROUNDS, (counted, seen)
    assert finished.output.count("holds what we wrote") == 2
    assert each_linux.check(f"md5sum {BUSYBOX}") == digest
    assert each_linux.problems() == []


def test_a_file_that_is_written_over_is_another_program(linux: Guest, tmp_path: Path) -> None:
    """Nothing of ours gets into it, which check tells; and it is not probed as what it was."""
    first, second, path = answer.build(tmp_path, 64), calls.build(tmp_path, 100), "/tmp/changing"
    answer.put(linux, first, path)
    answer.put(linux, second, "/tmp/changed")
    expected = linux.run("/tmp/changed")[0]
    try:
        with Console(linux) as gdb:
            assert "trapped" in gdb(f"optprobe add -user {path}:answer", 60)
            gdb.send("continue")
            assert linux.run(f"{path}")[0] == 7
            linux.check(f"cat /tmp/changed > {path}")
            assert linux.run(f"{path}")[0] == expected
            gdb.interrupt()
            assert "1 new mappings did not get what belongs there" in gdb("optprobe check")
            assert "is another program than when it was probed" in gdb(f"optprobe add -user {path}:test", 60)
            assert gdb.hits(1) == 1
            gdb("optprobe delete")
            assert "trapped" in gdb(f"optprobe add -user {path}:test", 60)
            gdb.send("continue")
            assert linux.run(f"{path}")[0] == expected
            gdb.interrupt()
            assert gdb.hits(2) == 100
    finally:
        linux.run(f"rm -f {path} /tmp/changed")
    assert linux.problems() == []
