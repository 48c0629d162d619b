"""`guest-journal KEY FIELD VALUE`: have the guest write another value into the journal of an earlier GDB's probes.

`guest-journal`: have the first one back, byte for byte. `guest-digest`: print a hash of the kernel's text and of all
memory for detours.
"""

from __future__ import annotations

import hashlib
import json

import gdb

from gdb_optprobe.debugger.attach import attachments
from gdb_optprobe.maps import journal_format as form
from gdb_optprobe.probes.linux_arena import LinuxArena
from tests.booted import bulk


def arena() -> LinuxArena:
    found = attachments.seen().session.target.arena_source
    assert isinstance(found, LinuxArena)
    return found


class GuestJournal(gdb.Command):
    def __init__(self) -> None:
        super().__init__("guest-journal", gdb.COMMAND_USER)
        self._before = b""

    def invoke(self, argument: str, from_tty: bool) -> None:
        here, memory = arena(), arena().linux.memory
        here._asked = False
        earlier = here._look_back() if not self._before else None
        if earlier is not None:
            self._place, self._found = earlier.room, earlier.found
            start, end = self._place.journal
            self._before = memory.read(start, end - start)
        start, end = self._place.journal
        region = self._before
        if argument:
            key, field, value = argument.split(maxsplit=2)
            key = key.replace("_", " ")
            state = {**self._found.state, key: {**self._found.state[key], field: json.loads(value)}}
            half = (end - start) // 2
            data = form.header(self._found.generation) + form.record(form.body(state), self._found.generation)
            at = self._found.half * half
            filled = data.ljust(half, bytes([self._place.fill]))
            region = region[:at] + filled + region[at + half :]
        memory.write(start, region)
        here._asked = False


class GuestDigest(gdb.Command):
    def __init__(self) -> None:
        super().__init__("guest-digest", gdb.COMMAND_USER)

    def invoke(self, argument: str, from_tty: bool) -> None:
        here, linux = arena(), arena().linux
        here._asked = False
        earlier = here._look_back()
        assert earlier is not None
        text = linux.kernel.range("_stext", "_etext")
        pieces = [text, *earlier.room.code, earlier.room.data]
        print(hashlib.sha256(b"".join(bulk.read(start, end - start) for start, end in pieces)).hexdigest())


GuestJournal()
GuestDigest()
