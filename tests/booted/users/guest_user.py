"""Sourced into GDB by tests: `user-NAME ARGUMENT...` finds programs of the guest and writes into them, as probes do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.debugger.running import run_for
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.linux.user.writer import flags
from gdb_optprobe.probes.user.mmap_hook import MmapPatcher
from gdb_optprobe.probes.user.program_text import ProgramText
from gdb_optprobe.probes.user.text_writer import TextWriter

session = current_session()
attachment = attachments.current
assert attachment is not None and attachment.linux is not None
assert session.target.arena_source.left() is None, "what a GDB has left is not written over"
linux = attachment.linux
kernel = linux.user_kernel
programs = Programs.of(
    attachment.machine,
    kernel.kernel,
    kernel.mmu,
    kernel.vcpus,
    linux.structures.btf.constant,
    linux.forget,
)


def run(seconds: float) -> None:
    run_for(seconds)
    linux.forget()


texts = ProgramText(programs, run)
writer = TextWriter(session.target.guest)
arrivals = MmapPatcher(session.target.guest)


class _Command(gdb.Command):
    def __init__(self, name: str, do: Callable[..., None]) -> None:
        super().__init__(name, gdb.COMMAND_DATA)
        self._do = do

    def invoke(self, argument: str, from_tty: bool) -> None:
        linux.forget()
        try:
            self._do(*argument.split())
        except OptprobeError as error:
            gdb.write(f"refused: {error}\n")


def find(path: str, *locations: str) -> None:
    """PATH LOCATION... [file=HOST]"""
    host = next((Path(each[5:]) for each in locations if each.startswith("file=")), None)
    program = programs.find(path, host)
    gdb.write(f"program {program.bits} {program.path} {program.pie} {program.first_code:#x}\n")
    for location in locations:
        if not location.startswith("file="):
            try:
                at = program.resolve(location)
                gdb.write(f"place {location} {at:#x} {program.spell(at)} {program.text(at, 4).hex()}\n")
            except OptprobeError as error:
                gdb.write(f"refused: {error}\n")


def spaces(path: str) -> None:
    for space in programs.mapping(programs.find(path).file):
        gdb.write(f"space {space}\n")


def begin(arena: Arena) -> None:
    """As for the first probe."""
    texts.writer = writer.install(programs, arena, lambda at: False)
    arrivals.install(linux.user_kernel.mmap_hook, flags(programs), arena)
    texts.mmap_patcher = arrivals


def arm(path: str, *changes: str) -> None:
    """PATH LOCATION=HEX..."""
    arena = session.optimizer.take_arena()
    begin(arena)
    program = programs.find(path)
    pairs = (change.split("=") for change in changes)
    texts.install(program, {_address(program, at): bytes.fromhex(data) for at, data in pairs})
    gdb.write("armed\n")


def disarm(path: str, *locations: str) -> None:
    program = programs.find(path)
    texts.remove(program, [_address(program, at) for at in locations])
    gdb.write("disarmed\n")


def rounds(path: str, seconds: str) -> None:
    """Arm and disarm what nobody runs, for so long; what is not as it should be at any stop in between."""
    program = programs.find(path)
    at = program.filler[0]
    begin(session.optimizer.take_arena())
    chance, done, end = random.Random(1), 0, time.monotonic() + float(seconds)
    while time.monotonic() < end:
        texts.install(program, {at + 16: b"\xaa\xbb", at: 8 * b"\xcc"})
        problems()
        run(chance.random() / 2)
        problems()
        texts.remove(program, [at, at + 16])
        for _ in range(2):
            for space in texts.spaces(program.file):
                there = space.address(program.offset(at))
                if (programs.pages.read(space.mm, there, 18) or b"").strip(b"\0"):
                    gdb.write(f"problem {space} has kept something\n")
            run(chance.random() / 4)
        done += 1
    gdb.write(f"rounds {done}\n")


def problems() -> None:
    for problem in texts.problems():
        gdb.write(f"problem {problem}\n")


def _address(program: Program, location: str) -> int:
    """filler+N: so far behind its code."""
    if location.startswith("filler+"):
        return program.filler[0] + int(location.partition("+")[2])
    return program.resolve(location)


def check() -> None:
    problems()
    gdb.write("checked\n")


def leave() -> None:
    """As when the last probe has gone."""
    arena = session.optimizer.arena
    assert arena is not None and writer.writer is not None and writer.writer.is_idle()
    arrivals.remove(arena)
    writer.remove(arena)
    gdb.write("left\n")


for command in (find, spaces, arm, disarm, check, rounds, leave):
    _Command(f"user-{command.__name__}", command)
