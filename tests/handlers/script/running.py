"""Run scripts of BEGIN, END and interval on the host, as the command does it: by the interpreter, no guest."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import CHAR, INT, Array, Member, Pointer, Struct
from gdb_optprobe.handlers.scope import Rvalue
from gdb_optprobe.handlers.script.compile import Attached, Script, compile_script
from gdb_optprobe.handlers.script.host import HostNames, HostScope, NoFiles, run_on_host
from gdb_optprobe.handlers.script.output import JsonOutput, TextOutput
from gdb_optprobe.handlers.script.runtime import Runtime
from gdb_optprobe.maps.host_map import HostMap
from tests.handlers.script.kernel import FakeKernel

BOOTED = 1_700_000_000 * 10**9
STARTED = 5 * 10**9
MOST_TIMES = 100
PID = 4242
MEMBERS = {"pid": Member("pid", 0, INT), "comm": Member("comm", 8, Array(CHAR, 16))}
TASK = Struct("task_struct", 64, lookup=MEMBERS.get, names=lambda: tuple(MEMBERS))
NUMBERS = {"uid": 0, "gid": 0, "cpu": 0, "numaid": 0, "cgroup": 1, "jiffies": 4_300_000_000}
POINTER = Rvalue(fold.constant(0xFFFF_8880_0000_1000), Pointer(TASK))
HOST = HostScope(started=STARTED, pid=PID, numbers=NUMBERS, meanings={"curtask": POINTER})


class Files(NoFiles):
    """The host's files and shell."""

    def cat(self, name: str, most: int) -> str:
        try:
            return Path(name).read_text()[:most]
        except OSError as error:
            raise OptprobeError(error.strerror or "") from error

    def shell(self, command: str) -> str:
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout


@dataclass
class Ran:
    printed: str
    status: int | None
    script: Script


def compiled(text: str, arguments: Sequence[str] = (), unsafe: bool = False) -> Script:
    kernel = FakeKernel(host=HOST, absent=("kprobe:absent_function", "asdfzzz"))
    return compile_script(text, kernel, arguments, unsafe=unsafe)


def ran(text: str, arguments: Sequence[str] = (), json: bool = False, quiet: bool = False, unsafe: bool = False) -> Ran:
    """Run a script: BEGIN, its intervals until exit, END, all maps."""
    script = compiled(text, arguments, unsafe)
    names = HostNames(BOOTED)
    maps = {name[1:]: HostMap(script.settings.max_map_keys) for name in script.maps}
    runtime = Runtime(script, JsonOutput(names) if json else TextOutput(names), Files(), maps)
    clock = STARTED

    def once(probe: Attached) -> str:
        nonlocal clock
        clock += 10**9
        return run_on_host(probe.program, runtime, maps, clock)

    printed = "" if quiet else runtime.attached()
    printed += "".join(map(once, script.of("BEGIN")))
    for _ in range(MOST_TIMES):
        for probe in script.of("interval"):
            if runtime.status is None:
                printed += once(probe)
    printed += "".join(map(once, script.of("END")))
    return Ran(printed + runtime.output.before_maps() + runtime.at_end(), runtime.status, script)
