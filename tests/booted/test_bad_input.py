"""Bad input gets one clear line and status 1, and the guest is as it was."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdb_optprobe.guest.channel import READY
from qemu.debugger import gdb_program
from qemu.guest import Guest
from tests.booted.batch import MARK, ROOT, Finished, batch, keep
from tests.booted.conftest import EVERY_ISA, Boot, on_every_isa

HASH = (
    f'python import hashlib; print("{MARK}{{}}"); '
    "t = int(gdb.parse_and_eval('(long)&_stext')) & (1 << 64) - 1; print('\"' + hashlib.sha256(b''.join("
    "bytes(gdb.selected_inferior().read_memory(t + (i << 16), 1 << 16)) for i in range(64))).hexdigest() + '\"')"
)

# What is typed, and what its one line must name.
WRONG = {
    "optprobe add no_such_function": "no_such_function",
    "optprobe add vfs_raed": "vfs_raed",
    "optprobe add *nosuch": "nosuch",
    "optprobe add *(1": "never closed",
    "optprobe add *(1+)": "*(1+)",
    "optprobe add vfs_read+0x100000": "outside",
    "optprobe add vfs_read+6": "in the middle of the instruction",
    "optprobe add *0x400000": "not in the guest's code",
    "optprobe add *0": "not in the guest's code",
    "optprobe add *0xffffffff00000000": "not in the guest's code",
    "optprobe add *-1": "not in the guest's code",
    "optprobe add *0x1ffffffffffffffff": "0xffffffffffffffff",
    "optprobe add nothing_*_like_this": "nothing_*_like_this",
    "optprobe add *": "no address",
    "optprobe add": "location",
    "optprobe add vfs_read -tier fastest": "fastest",
    "optprobe add vfs_read if coun > 3": "'coun'",
    "optprobe add vfs_read if $arg1 >": "an expression is missing",
    "optprobe add vfs_read if $arg9x": "'$arg9x'",
    "optprobe add vfs_read do sum()": "sum",
    "optprobe add vfs_read do count by ($arg1, $arg2, $arg3, $pid, $tgid)": "too many keys",
    "optprobe add vfs_read do lhist($arg3, 0, 10, 3)": "no multiple of the step",
    "optprobe add vfs_read do stack()": "stack takes no parentheses",
    "set optprobe table-keys 1": "table-keys cannot be 1",
    'optprobe add vfs_read do print("%d")': "the format takes 1 argument",
    "optprobe add vfs_read do conut": "conut",
    "optprobe add vfs_read,no_such_function do count": "no_such_function",
    "optprobe explain vfs_read,no_such_function": "no_such_function",
    "optprobe add vfs_read,": "a location is missing here",
    "optprobe add vfs_read -return -maxactive 1000000": "a table with room for 1000000 calls",
    "optprobe add '*(char *)0x10'": "0x10",
    "optprobe show 7": "7",
    "optprobe delete 7": "7",
    "optprobe explain no_such_function": "no_such_function",
    "optprobe run -until-hits 7:1": "7",
    "optprobe expect 1 == 2": "1 == 2",
    "optprobe frobnicate": "frobnicate",
}
OF_ARCH = {
    "x86_64": {
        "optprobe add init_task": "not in the guest's code",
        "optprobe add __memcpy -tier trapped": "runs between a trap and its handler",
        "optprobe add entry_SYSCALL_64": "entry text",
        "optprobe add *vfs_read+9 if count == 3": "not available at this address",
    },
    "ppc64le": {
        "optprobe add init_task": "init_task",
        "optprobe add *vfs_read+12 if $arg1 == 3": "not available at this address",
        "optprobe add vfs_read+0x12": "in the middle of the instruction",
        "optprobe add *0xc000000000000500": "entry text",
        "optprobe add *0xc008000000000000": "in memory for modules",
    },
    "aarch64": {
        "optprobe add init_task": "init_task",
        "optprobe add *vfs_read+12 if $arg1 == 3": "not available at this address",
        "optprobe add vfs_read+0x12": "in the middle of the instruction",
        "optprobe add el1h_64_sync": "entry text",
        "optprobe add el1_abort -tier trapped": "runs between a trap and its handler",
        "optprobe add *vfs_read-0x8000000": "in memory for modules",
        "optprobe add *0xffffffff00000000": "not in the guest's code",
    },
}


def errors(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("optprobe: ")]


def assert_one_line(finished: Finished, named: str) -> None:
    assert finished.status == 1, finished.output
    (line,) = errors(finished.output)
    assert named in finished.output.split(line)[0] + line + finished.output.split(line)[1]
    assert "Traceback" not in finished.output and "internal error" not in finished.output


@on_every_isa
def test_every_mistake_is_one_line_and_changes_nothing(each_linux: Guest) -> None:
    wrong = WRONG | OF_ARCH[each_linux.options.arch]
    script = ["set optprobe exit-on-error off", "set optprobe max-memory 0"]
    script += ["optprobe explain vfs_read", HASH.format("before")]
    for number, line in enumerate(wrong):
        # GDB ends a script at its first error; each mistake is made from Python and its message kept.
        script.append(
            f'python\ntry:\n  gdb.execute({line!r})\n  print("{MARK}{number}\\naccepted")\n'
            f'except gdb.error as e:\n  print("{MARK}{number}\\n" + str(e))\nend'
        )
    finished = batch(each_linux, [*script, f'python print("{MARK}end")', HASH.format("after")])
    assert finished.status == 0, finished.output
    for number, (line, named) in enumerate(wrong.items()):
        said = finished.output.split(f"{MARK}{number}\n")[1].split(MARK)[0]
        assert said.startswith("optprobe: "), f"{line}: {said}"
        assert len([text for text in said.splitlines() if text.startswith("optprobe: ")]) == 1, f"{line}: {said}"
        assert named in said, f"{line}: {said}"
        assert "Traceback" not in said and "internal error" not in said, f"{line}: {said}"
    assert finished.json("before") == finished.json("after")


@pytest.mark.parametrize("line", ["optprobe add no_such_function", "optprobe add *nosuch", "optprobe add vfs_read+6"])
def test_the_first_failure_ends_a_batch_with_status_1(each_linux: Guest, line: str) -> None:
    finished = batch(each_linux, [line, "echo not reached\\n"])
    assert finished.status == 1
    assert len(errors(finished.output)) == 1 and "not reached" not in finished.output


def gdb_alone(*lines: str) -> subprocess.CompletedProcess[str]:
    command = [gdb_program(), "-nx", "-batch"]
    for line in lines:
        command += ["-ex", line]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )


def test_no_target() -> None:
    finished = gdb_alone(f"source {ROOT}/scripts/optprobe.py", "optprobe add vfs_read")
    assert finished.returncode == 1
    assert errors(finished.stdout) == ["optprobe: no guest is connected"]


@pytest.fixture(params=OF_ARCH)
def newborn(boot: Boot, request: pytest.FixtureRequest) -> Iterator[Guest]:
    """A guest before its first instruction."""
    yield boot(arch=request.param, paused=True)


def test_not_booted_yet(newborn: Guest) -> None:
    finished = batch(newborn, ["optprobe add vfs_read"])
    assert finished.status == 1
    (line,) = errors(finished.output)
    assert any(words in line for words in ("mode", "not booted", "no Linux kernel is mapped")), line


def attempt(line: str) -> str:
    """Return lines that run another and print its error; GDB runs the next line then."""
    return f"python\ntry:\n  gdb.execute({line!r})\nexcept gdb.error as e: print(e)\nend"


@pytest.mark.parametrize("arch", [*OF_ARCH] if EVERY_ISA else ["x86_64", "ppc64le"])
def test_guest_rebooted_meanwhile(boot: Boot, arch: str) -> None:
    guest = boot(arch=arch)
    log, ready = guest.directory / "console.log", READY
    # As soon as the old kernel's memory is gone, there is nothing to run with a session.
    booting = (
        f"python\nimport time\nfor _ in range(60):\n  try: gdb.execute('optprobe run -for 1')\n"
        "  except gdb.error:\n    gdb.execute('detach')\n    time.sleep(1)\n"
        f"    gdb.execute('target remote {guest.gdb_socket}')\n"
        f"  if open({str(log)!r}, errors='replace').read().count({ready!r}) > 1: break\nend"
    )
    script = ["set optprobe exit-on-error off", "optprobe add vfs_read", "monitor system_reset"]
    script += [attempt("optprobe list"), booting, attempt("optprobe add vfs_write")]
    finished = batch(guest, [*script, "optprobe add vfs_read", "optprobe list", "optprobe check"])
    assert finished.status == 0, finished.output
    assert "is not the one that was probed" in finished.output
    assert "holds what we wrote" in finished.output.split("is not the one")[-1]
    assert guest.problems() == []


PUT_BACK = "python gdb.selected_inferior().write_memory(data, kept)"


def small_arena(guest: Guest) -> tuple[int, list[str]]:
    """Where memory for detours begins, and lines that set 64 bytes of it for code and 32 for data.

    The data are what `PUT_BACK` puts back: who probes with an arena of its own finds bytes of nobody else there.
    """
    # A hole in the kernel's filler would do too; this is a page that nobody reads: the arena's own end.
    finished = batch(guest, ["optprobe add vfs_read", keep("probes", "optprobe list"), "optprobe delete"])
    assert finished.status == 0
    start = int(finished.json("probes")[0]["detour"]["address"], 16)
    data = start + 0x1000
    keeps = f"python data, kept = {data}, bytes(gdb.selected_inferior().read_memory({data}, 32))"
    return start, [keeps, f"set optprobe arena code={start:#x}-{start + 64:#x} data={data:#x}-{data + 0x20:#x}"]


def test_detour_memory_exhausted(each_linux: Guest) -> None:
    _, arena = small_arena(each_linux)
    finished = batch(
        each_linux,
        [
            "set optprobe exit-on-error off",
            *arena,
            "optprobe explain vfs_read",
            *[f"optprobe add {name}" for name in ("vfs_read", "vfs_write", "ksys_read", "ksys_write", "vfs_open")],
            attempt("optprobe add vfs_llseek -tier optimized"),
            keep("probes", "optprobe list"),
            "optprobe delete",
            PUT_BACK,
        ],
    )
    assert finished.status == 0, finished.output
    assert "ARENA_FULL" in finished.output
    assert "> cannot be optimized: the memory for detours is full" in finished.output
    assert len(finished.json("probes")) == 5


def test_arena_moves_once_it_is_empty(each_linux: Guest) -> None:
    start, arena = small_arena(each_linux)
    other = arena[-1].replace(f"{start:#x}-{start + 64:#x}", f"{start + 0x800:#x}-{start + 0x840:#x}")
    script = [*arena, "optprobe add vfs_read", other, "optprobe delete", "optprobe commit", other]
    script += ["optprobe add vfs_read", keep("probes", "optprobe list"), "optprobe delete", PUT_BACK]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    told = errors(finished.output)
    assert len(told) == 1, finished.output
    (line,) = told
    assert "the arena stays where it is" in line
    (probe,) = finished.json("probes")
    assert int(probe["detour"]["address"], 16) == start + 0x800


@pytest.mark.parametrize("package", ["capstone", "keystone"])
def test_a_package_is_missing(linux: Guest, tmp_path: Path, package: str) -> None:
    # A folder before ours in which the package cannot be imported.
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise ImportError('not here')\n")
    hide = f"python import sys; sys.modules[{package!r}] = None"
    finished = batch(linux, [hide, f"source {ROOT}/scripts/optprobe.py", "optprobe add vfs_read"], source=False)
    assert finished.status == 1, finished.output
    (line,) = errors(finished.output)
    assert package in line and "Traceback" not in finished.output
