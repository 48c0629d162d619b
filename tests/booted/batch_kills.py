"""GDB is killed while it puts in, switches or takes out thousands of probes; each time another GDB puts it right.

    a GDB ─► add all ─► run ─► one command ── kill -9 at any instant of it ──► the guardian frees the guest ──┐
      ▲                                                                                                       │
      └── delete, commit: text and flags are as they were ◄── recover, check: counts are what they were ◄─────┘
The guest works all the while.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from qemu.debugger import Debugger, DebuggerError
from qemu.guest import Guest
from tests.booted.test_guardian import lives, running

HELPERS = Path(__file__).with_name("guest_batch.py")
MARK = "@@batch "
COMMANDS = ("add", "delete", "disable", "enable", "some", "beside", "clear")
"""Where GDB is killed; some: members of blocks are disabled or deleted; beside: other probes come to their functions.
"""
SOON = 120.0
LOAD = (
    "touch /tmp/load; (while [ -e /tmp/load ]; do dd if=/dev/zero of=/tmp/other bs=512 count=20 2>/dev/null; "
    "cat /proc/uptime > /dev/null; /bin/true; usleep 20000; done) & "
    "(while [ -e /tmp/load ]; do ping -q -c 5 -i 0.01 127.0.0.1 > /dev/null; usleep 50000; done) &"
)
NO_ROOM = r"^probe (\d+), .* is not recovered: the memory for detours is full"
IN_USE = "memory for detours is in use"
NONE = "no probes of an earlier GDB are in this guest"


class Kills:
    """One guest, and the GDBs that are killed."""

    def __init__(
        self,
        guest: Guest,
        folder: Path,
        seed: int,
        tell: Callable[[str], object],
        glob: str,
        commands: Sequence[str],
        handler: str = "",
    ) -> None:
        self.guest, self.tell, self.seed, self.glob, self.commands = guest, tell, seed, glob, commands
        self.handler = handler
        self.kept = folder / "kept"
        self.chance = Random(seed)
        self.told: Counter[str] = Counter()
        self.gdb: Debugger | None = None

    def run(self, kills: int) -> None:
        self.guest.check(LOAD)
        self._connect()
        self("optprobe add vfs_read")  # what the first probe of a boot changes is changed by now
        self._leave()
        self(f"batch-keep {self.kept}")
        line = ""
        try:
            for number in range(kills):
                line = self._prepare()
                before = self._state()
                self._kill(line)
                self._recover(line, before)
                self.told["kills"] += 1
                self.tell(f"kill {number + 1}: {line[:60]}: {dict(self.told)}")
        except BaseException as error:
            error.add_note(f"OPTPROBE_SEED={self.seed}, kill {self.told['kills'] + 1}, at {line}")
            raise
        finally:
            if self.gdb is not None:
                self.gdb.close()
        self.guest.check("rm /tmp/load; sleep 1")

    def _connect(self) -> None:
        self.gdb = Debugger(self.guest.gdb_socket)
        self("set optprobe max-probes 100000")
        self(f"source {HELPERS}")

    def __call__(self, line: str) -> str:
        assert self.gdb is not None
        return self.gdb(line, SOON)

    def _ask(self, line: str) -> Any:
        return json.loads(self(line).split(MARK)[1].splitlines()[0])

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("batch-state")
        return found

    def _prepare(self) -> str:
        """Bring the probes to where the next command can be killed, and return it."""
        what = self.chance.choice(self.commands)
        self.told[what] += 1
        add = f"optprobe add -glob {self.glob} {self.handler}".strip()
        if what == "add":
            if self.chance.random() < 0.5:
                self("optprobe add vfs_write -name other")
            return add
        self(add)
        if self.chance.random() < 0.7:
            self("optprobe run -for 0.1")
        if what == "some":
            verb = self.chance.choice(("disable", "delete"))
            return f"optprobe {verb} {self._some(200)}"
        if self.chance.random() < 0.4:
            self(f"optprobe {self.chance.choice(('disable', 'delete'))} {self._some(30)}")
        if what == "enable":
            self("optprobe disable")
        if what == "beside":
            return f"optprobe add -glob 'do_*' {self.handler}".strip()
        if what == "clear":
            return "optprobe report -clear -top 1"
        return f"optprobe {what}"

    def _some(self, count: int) -> str:
        numbers = [*self._state()["hits"]]
        return " ".join(sorted(self.chance.sample(numbers, min(count, len(numbers) // 4)), key=int))

    def _kill(self, line: str) -> None:
        assert self.gdb is not None
        begun = time.monotonic()
        self.gdb.begin(line)
        time.sleep(self.chance.uniform(0, self._longest(line)))
        self.gdb.kill()
        self.gdb = None
        while not running(self.guest) or self._guarded():
            assert time.monotonic() < begun + SOON, "the guest does not run"
            time.sleep(0.02)
        self.guest.check("dd if=/dev/zero of=/tmp/x bs=64 count=50 2>/dev/null; /bin/true", SOON)
        assert self.guest.problems() == []

    def _longest(self, line: str) -> float:
        return {"add": 1.8, "delete": 0.9, "disable": 0.9, "enable": 1.3, "report": 0.3}[line.split()[1]]

    def _guarded(self) -> bool:
        """Whether a guardian lives that is to free this guest."""
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = place.read_bytes().split(b"\0")
            except OSError:
                continue
            name = str(self.guest.gdb_socket).encode()
            if any(word.endswith(b"recovery/guardian.py") for word in words) and any(
                word.endswith(name) for word in words
            ):
                return lives(int(place.parent.name))
        return False

    def _recover(self, line: str, before: dict[str, Any]) -> None:
        self._connect()
        way = self.chance.choice(("recover", "recover", "recover -remove"))
        begun = time.monotonic()
        try:
            said = self(f"optprobe {way}")
        except DebuggerError as error:
            if NONE not in str(error):
                raise
            assert line.split()[1] in ("add", "delete"), error
            said = NONE
            self.told["none"] += 1
        else:
            self.told[way] += 1
            self.told["lost"] += (lost := "not recovered" in said)
            assert not lost or line.split()[1] in ("add", "delete"), said
            if way == "recover":
                self._compare(line, before, self._state(), said)
        self.told["seconds"] += round(time.monotonic() - begun)
        assert "holds what we wrote" in (held := self("optprobe check")), held
        self("optprobe run -for 0.1")
        self._leave()
        late = time.monotonic() + SOON
        while IN_USE in str(changed := self._ask(f"batch-diff {self.kept}")):
            assert time.monotonic() < late, changed
            self("optprobe run -for 0.1")  # a CPU is on the way to the handler of traps
        assert changed == [], f"{changed}, after {said[-600:]}"

    def _compare(self, line: str, before: dict[str, Any], now: dict[str, Any], said: str) -> None:
        """Each probe that was there and was not to be deleted is there, with at least what it had counted."""
        words = line.split()
        may_be_gone = {*(before["hits"] if not words[2:] else words[2:])} if words[1] == "delete" else set()
        if words[1] == "add":  # a return that leaves its block for another needs a table of its own
            may_be_gone |= {*re.findall(NO_ROOM, said, re.M)}
        gone = before["hits"].keys() - now["hits"].keys()
        assert gone <= may_be_gone, f"{len(gone)} are gone: {sorted(gone, key=int)[:20]}, {said[-500:]}"
        cleared = words[1] == "report"
        less = [number for number in now["hits"] if now["hits"][number] < before["hits"].get(number, 0)]
        assert cleared or not less, f"{len(less)} have counted less: {less[:20]}"
        if words[1] not in ("disable", "enable"):
            assert {*now["disabled"]} <= {*before["disabled"]}

    def _leave(self) -> None:
        """Leave nothing in the guest. A thread that is in a call, and not at rest, returns to a trampoline first."""
        self("optprobe delete")
        late = time.monotonic() + SOON
        while "under way" in (said := self("optprobe commit -timeout 60")):
            assert time.monotonic() < late, said
            self("optprobe run -for 0.1")


def kills(
    guest: Guest,
    folder: Path,
    seed: int,
    count: int,
    tell: Callable[[str], object],
    glob: str,
    commands: Sequence[str] = COMMANDS,
    handler: str = "",
) -> Counter[str]:
    """Kill GDB `count` times, with probes on the functions of `glob`; return what was done.

    handler: what `add` has behind the glob.
    """
    all_of_it = Kills(guest, folder, seed, tell, glob, commands, handler)
    all_of_it.run(count)
    return all_of_it.told
