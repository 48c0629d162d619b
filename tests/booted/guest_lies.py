"""`guest-lies …`: have the guest tell lies about itself, in its own memory.

    guest-lies symbols        each q in the tokens of kallsyms becomes a line end: every name with a q has one
    guest-lies module NAME    the module's name in its struct module becomes a terminal escape
    guest-lies probe JSON     fields of probe 1 in the journal become these, as an attacker would write them
    guest-lies gathered HEX   all memory of probe 1, heads of its ring and table too, is these bytes again and again
    guest-lies modules        the list of modules leads round in a circle that misses its head
    guest-lies tasks          the list of tasks likewise
    guest-lies no-more        all as it was, but for the journal
"""

from __future__ import annotations

import json
import re

import gdb

from gdb_optprobe.debugger.attach import attachments
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.guest import kallsyms
from gdb_optprobe.guest.linux.linux import LinuxGuest

OWNED = b"\x1b]0;mod\n\x07\0"


class Lies(gdb.Command):
    def __init__(self) -> None:
        super().__init__("guest-lies", gdb.COMMAND_USER)
        self._before: list[tuple[int, bytes]] = []

    def invoke(self, argument: str, from_tty: bool) -> None:
        attachment = attachments.seen()
        linux = attachment.linux
        assert linux is not None
        what, _, rest = argument.partition(" ")
        match what:
            case "symbols":
                self._symbols(linux)
            case "module":
                (module,) = (each.module for each in linux.text.modules() if each.module.name == rest)
                at = linux.memory.read(module.address, 512).index(rest.encode() + b"\0")
                self._write(linux, module.address + at, OWNED)
            case "probe":
                journal = attachment.session.optimizer.take_arena().journal
                journal.put(Item.PROBE, 1, {**journal.state[f"{Item.PROBE} 1"], **json.loads(rest)})
                journal.flush()
            case "gathered":
                counter = attachment.session.registry.probes([1])[0].counter
                assert counter is not None
                self._write(linux, counter.address, (bytes.fromhex(rest) * counter.size)[: counter.size])
            case "modules":
                self._circle(linux, linux.kernel.address("modules"))
            case "tasks":
                tasks = linux.kernel.offset("task_struct", "tasks")
                self._circle(linux, linux.kernel.address("init_task") + tasks)
            case "no-more":
                for at, data in reversed(self._before):
                    linux.machine.write(at, data)
                self._before.clear()

    def _symbols(self, linux: LinuxGuest) -> None:
        constants = linux.recovered.image.rodata
        data = linux.memory.read(constants.start, min(constants.size, 8 << 20))
        # Of 256 tokens the digits have their own codes, and tell where the table ends. Its index follows.
        for found in re.finditer(re.escape(kallsyms.DIGITS), data):
            end = found.start()
            for _ in range(256 - ord("0")):
                end = data.index(b"\0", end) + 1
            index = -(-end // 8) * 8 + 2 * ord("0")
            start = found.start() - int.from_bytes(data[index : index + 2], "little")
            if data[start:end].count(b"\0") == 256:
                self._write(linux, constants.start + start, data[start:end].replace(b"q", b"\n"))
                return
        raise gdb.GdbError("no tokens are found")

    def _circle(self, linux: LinuxGuest, head: int) -> None:
        first = linux.kernel.word(head)
        self._write(linux, first, first.to_bytes(8, "little"))

    def _write(self, linux: LinuxGuest, at: int, data: bytes) -> None:
        self._before.append((at, linux.memory.read(at, len(data))))
        linux.machine.write(at, data)


Lies()
