"""Let a bare-metal guest run its table of hazards, and read what they left, with a stock GDB as a user would."""

from __future__ import annotations

import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from qemu import micro
from qemu.debugger import gdb_program
from qemu.guest import Guest

STATES = 4
TIERS = ("", "emulated", "boosted", "breakpoint")
"""Of a guest without an operating system; "" is the best for each place."""
SCRATCH = bytes((at * 37 + 11) & 0xFF for at in range(256))
"""What the guests' functions find in memory, and its middle."""
MIDDLE = 128


@dataclass(frozen=True)
class Layout:
    """What a guest's results are.

    record:  the size of one.
    varying: what no two rounds share: counts of runs, time.
    most:    how many entries of the table there is room for.
    """

    record: int
    varying: slice
    most: int

    @property
    def size(self) -> int:
        """Of all results."""
        return self.record * STATES * self.most

    def settled(self, data: bytes) -> list[bytes]:
        """The records in `data` without what varies."""
        records = [bytearray(data[at : at + self.record]) for at in range(0, len(data), self.record)]
        for record in records:
            record[self.varying] = bytes(self.varying.stop - self.varying.start)
        return [bytes(record) for record in records]


LAYOUTS = {
    "x86_64": Layout(512, slice(136, 152), 256),
    "ppc64le": Layout(1024, slice(296, 312), 512),
    "aarch64": Layout(1024, slice(296, 312), 512),
}
ENTRY = struct.Struct("<5Q24x")
NAMES_SIZE = 16384


@dataclass(frozen=True)
class Hazard:
    """An entry of the guest's table, with the records that its runs left: one for each input state."""

    name: str
    code: int
    site: int
    end: int
    needs: int
    results: tuple[bytes, ...]

    def words(self, offset: int) -> list[int]:
        """The doubleword at `offset` of every record."""
        return [struct.unpack_from("<Q", result, offset)[0] for result in self.results]


def signed(value: int, bits: int) -> int:
    return (value & ((1 << bits) - 1)) - ((value >> (bits - 1) & 1) << bits)


def number(at: int, size: int) -> int:
    """The number in SCRATCH."""
    return int.from_bytes(SCRATCH[at : at + size], "little")


def run_until_trouble(guest: Guest, *commands: str) -> None:
    """Give GDB commands that make the guest run into an exception, and wait until it says so."""
    lines = [f"target remote {guest.gdb_socket}", *commands, "set var *(long*)&go = 1", "detach"]
    arguments = [part for line in lines for part in ("-ex", line)]
    program = [gdb_program(), "-nx", "-batch", str(micro.build(guest.options.arch)), *arguments]
    run = subprocess.run(program, capture_output=True, text=True, timeout=120)
    deadline = time.monotonic() + 60
    while not guest.problems() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert guest.problems() == ["optprobe-guest: BUG: exception"], run.stdout + run.stderr


def run_rounds(guest: Guest, folder: Path, rounds: int, record: int) -> list[Hazard]:
    """Let the guest run its table so often; record: the size of one result."""
    commands = [
        f"target remote {guest.gdb_socket}",
        f"set var *(long*)&go = {rounds}",
        "tbreak *&done if *(long*)&go == 0",
        "continue",
        f"dump binary memory {folder}/table &hazards &hazards_end",
        f"dump binary memory {folder}/names (char*)&hazards_end ((char*)&hazards_end)+{NAMES_SIZE}",
        "set $count = ((char*)&hazards_end - (char*)&hazards) / 64",
        f"dump binary memory {folder}/results &results ((char*)&results)+{record * STATES}*$count",
        "print/x (long)&hazards_end",
    ]
    arguments = [part for command in commands for part in ("-ex", command)]
    elf = str(micro.build(guest.options.arch))
    run = subprocess.run([gdb_program(), "-nx", "-batch", elf, *arguments], capture_output=True, text=True, timeout=120)
    assert "Temporary breakpoint 1, " in run.stdout, run.stdout + run.stderr
    names_at = int(run.stdout.split("= 0x")[-1].split()[0], 16)
    names, results = (folder / "names").read_bytes(), (folder / "results").read_bytes()
    found = []
    for number, (name, code, site, end, needs) in enumerate(ENTRY.iter_unpack((folder / "table").read_bytes())):
        text = names[name - names_at :].split(b"\0")[0].decode()
        at = record * STATES * number
        left = tuple(results[at + record * state :][:record] for state in range(STATES))
        found.append(Hazard(text, code, site, end, needs, left))
    assert len(found) <= LAYOUTS[guest.options.arch].most, "the guest has room for no more results"
    return found
