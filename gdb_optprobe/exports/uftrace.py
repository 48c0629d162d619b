r"""uftrace's data: a folder that `uftrace replay`, `report`, `graph`, `tui` and `dump` open with -d.

    info            "Ftrace!\0", version, sizes, what follows; which tasks there are
    task.txt        a session and a task for each track, by its number
    sid-….map       where the one binary is mapped, of each session
    kernel.sym      its functions, which have made-up addresses: uftrace keeps 48 bits of one
    NUMBER.dat      of a task: │ time, 8 B │ kind, 2 bits │ 0 │ magic, 3 bits │ depth, 10 bits │ address, 48 bits │ …

The session of a task has its thread's name for that of the program: uftrace shows no other.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gdb_optprobe.exports.recording import Recording
from gdb_optprobe.exports.tracks import Edge, Track, edges, tracks

BINARY = "kernel"
BASE, STEP = 0x400000, 16
STACK = "7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]"
ENTRY, EXIT = 0, 1
MAGIC = 5
MOST_DEPTH = (1 << 10) - 1
SECOND = 1_000_000_000
VERSION, HEADER = 4, 40
FEATURES = 1 << 1 | 1 << 5 | 1 << 6
"""TASK_SESSION, SYM_REL_ADDR, MAX_STACK (enum uftrace_feat_bits of its uftrace.h)."""
EXE_NAME, TASKINFO = 1 << 0, 1 << 7
"""What lines the info has (enum uftrace_info_bits)."""
_NOT_IN_NAMES = re.compile(r"[^\w.:+()-]")


def encode(recording: Recording) -> Mapping[str, bytes]:
    """Return the files by their names."""
    found = [track for track in tracks(recording) if track.calls]
    symbols = _Symbols()
    data = {f"{track.number}.dat": b"".join(map(symbols.record, edges(track.calls))) for track in found}
    maps = {f"sid-{_session(track)}.map": symbols.mapping() for track in found}
    return {"info": _info(found), "task.txt": _tasks(found), f"{BINARY}.sym": symbols.file(), **maps, **data}


@dataclass(slots=True)
class _Symbols:
    """places: the offsets of functions in the binary, by name."""

    places: dict[str, int] = field(default_factory=dict)

    def record(self, edge: Edge) -> bytes:
        name = re.sub(r"\s", "_", edge.placed.call.source.place)
        address = BASE + self.places.setdefault(name, STEP * (len(self.places) + 1))
        kind, depth = ENTRY if edge.begins else EXIT, min(edge.placed.depth, MOST_DEPTH)
        return struct.pack("<QQ", edge.time, kind | MAGIC << 3 | depth << 6 | address << 16)

    def file(self) -> bytes:
        head = f"# symbols: {len(self.places)}\n# path name: /{BINARY}\n# build-id: \n"
        lines = (f"{place:016x} T {name}\n" for name, place in self.places.items())
        return f"{head}{''.join(lines)}{self._end:016x} ? __sym_end\n".encode()

    def mapping(self) -> bytes:
        end = BASE + (self._end + 0xFFF & ~0xFFF)
        # Without a stack, uftrace takes every address for the kernel's own.
        return f"{BASE:012x}-{end:012x} r-xp 00000000 00:00 0 /{BINARY}\n{STACK}\n".encode()

    @property
    def _end(self) -> int:
        return STEP * (len(self.places) + 1)


def _session(track: Track) -> str:
    return f"{track.number:016x}"


def _tasks(found: Iterable[Track]) -> bytes:
    lines = []
    for track in found:
        seconds, below = divmod(track.calls[0].call.begin, SECOND)
        time, name = f"{seconds}.{below:09}", _NOT_IN_NAMES.sub("_", track.name)
        lines.append(f"SESS timestamp={time} pid={track.number} sid={_session(track)} exename=\"{name}\"\n")
        lines.append(f"TASK timestamp={time} tid={track.number} pid={track.number}\n")
    return "".join(lines).encode()


def _info(found: Iterable[Track]) -> bytes:
    numbers = [str(track.number) for track in found]
    tasks = f"taskinfo:lines=2\ntaskinfo:nr_tid={len(numbers)}\ntaskinfo:tids={','.join(numbers)}\n"
    sizes = struct.pack("<IHBBQQHHI", VERSION, HEADER, 1, 2, FEATURES, EXE_NAME | TASKINFO, MOST_DEPTH + 1, 0, 0)
    return b"Ftrace!\0" + sizes + f"exename:/{BINARY}\n{tasks}".encode()
