r"""trace.dat, version 6, which `trace-cmd report` and KernelShark open: calls as function_graph's, events as prints.

    17 08 44 "tracing6\0", little endian, 8 bytes a long, 4096 a page
    "header_page\0", "header_event\0", formats of events, systems (none), kallsyms, printk (none), "PID COMM" lines
    CPUs, "options  \0", "flyrecord\0", for each CPU where its pages are │ pages

    page:  │ time, 8 B │ bytes of events, 8 B │ event │ event │ …
    event: │ time since the one before << 5 │ words of data, 4 B │ data │, or 0 and the length in a word of its own
           │ low bits of a longer time << 5 │ 30 │ high bits │ before one that comes later

Functions have made-up addresses, which kallsyms names. A call is on the CPU where it returned, and began where
that is known.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.exports.recording import Event, Recording
from gdb_optprobe.exports.tracks import Edge, Track, edges, tracks

PAGE, HEADER = 4096, 16
FIRST_ADDRESS, STEP = 0xFFFF_FFFF_8100_0000, 16
PRINT, RETURN, ENTRY = 5, 10, 11
"""Numbers of ftrace's own events (enum trace_type in kernel/trace/trace.h)."""
LONGEST_DELTA, LONGEST_EXTENDED = (1 << 27) - 1, (1 << 59) - 1
TIME_EXTEND = 30
LARGEST_SMALL = 28 * 4
LONGEST_TEXT = 1000
"""Characters: an event is within one page."""
LAST_CPU = (1 << 13) - 1
"""The highest number that a kernel can be built for. What claims to be from beyond is put there."""
_NOT_IN_NAMES = re.compile(r"[\s\[\]]")

_HEADER_PAGE = """\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;
"""
_HEADER_EVENT = """\
# compressed entry header
\ttype_len    :    5 bits
\ttime_delta  :   27 bits
\tarray       :   32 bits

\tpadding     : type == 29
\ttime_extend : type == 30
\ttime_stamp : type == 31
\tdata max type_len  == 28
"""
_COMMON = ("unsigned short common_type", "unsigned char common_flags", "unsigned char common_preempt_count")
_GRAPH = ("unsigned long func", "int depth")
_FORMATS: Mapping[tuple[str, int], tuple[Sequence[str], str]] = {
    ("print", PRINT): (("unsigned long ip", "char buf[]"), '"%ps: %s", (void *)REC->ip, REC->buf'),
    ("funcgraph_exit", RETURN): (
        (*_GRAPH, "unsigned int overrun", "unsigned long long calltime", "unsigned long long rettime"),
        '"<-- %ps (%d)", (void *)REC->func, REC->depth',
    ),
    ("funcgraph_entry", ENTRY): (_GRAPH, '"--> %ps (%d)", (void *)REC->func, REC->depth'),
}
_SIZES = {"short": 2, "char": 1, "int": 4, "long": 8}


def encode(recording: Recording) -> bytes:
    trace = _Trace()
    found = tracks(recording)
    for track in found:
        trace.add(track)
    return trace.encode(found)


@dataclass(slots=True)
class _Trace:
    """events: times and data, of each CPU. addresses: of functions."""

    events: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)

    def add(self, track: Track) -> None:
        for edge in edges(track.calls):
            call = edge.placed.call
            cpu = call.entered if edge.begins and call.entered is not None else call.cpu
            self._add(cpu, edge.time, track, self._edge(edge))
        for event in track.events:
            self._add(event.cpu, event.time or 0, track, self._event(event))

    def encode(self, found: Iterable[Track]) -> bytes:
        # With the sort stable, what has one time stays in the order in which it nests.
        cpus = range(max(self.events, default=0) + 1)
        pages = [_pages(sorted(self.events.get(cpu, []), key=lambda one: one[0])) for cpu in cpus]
        head = self._head(found, len(pages))
        at = _aligned(len(head) + len(pages) * HEADER)
        places = []
        for one in pages:
            places.append(struct.pack("<QQ", at, len(one)))
            at += len(one)
        head += b"".join(places)
        return b"".join([head.ljust(_aligned(len(head)), b"\0"), *pages])

    def _head(self, found: Iterable[Track], cpus: int) -> bytes:
        formats = [_format(name, number) for name, number in _FORMATS]
        symbols = (f"{address:x} T {name}\n" for name, address in self.addresses.items())
        names = (f"{track.number} {track.name}\n" for track in found if track.name)
        return b"".join(
            [
                b"\x17\x08\x44tracing6\0" + struct.pack("<BBI", 0, 8, PAGE),
                b"header_page\0" + _sized("Q", _HEADER_PAGE),
                b"header_event\0" + _sized("Q", _HEADER_EVENT),
                struct.pack("<I", len(formats)),
                *(_sized("Q", one) for one in formats),
                struct.pack("<I", 0),
                _sized("I", "".join(symbols)),
                _sized("I", ""),
                _sized("Q", "".join(names)),
                struct.pack("<I", cpus) + b"options  \0" + struct.pack("<H", 0) + b"flyrecord\0",
            ]
        )

    def _add(self, cpu: int, time: int, track: Track, data: _Data) -> None:
        self.events.setdefault(min(cpu, LAST_CPU), []).append((time, _common(track, data)))

    def _edge(self, edge: Edge) -> _Data:
        call, depth = edge.placed.call, edge.placed.depth
        head = struct.pack("<Qi", self._address(call.source.place), depth)
        return (ENTRY, head) if edge.begins else (RETURN, head + struct.pack("<IQQ", 0, call.begin, call.end))

    def _event(self, event: Event) -> _Data:
        text = event.callers or event.text
        return PRINT, struct.pack("<Q", self._address(event.source.place)) + text[:LONGEST_TEXT].encode() + b"\0"

    def _address(self, place: str) -> int:
        """Return the address of a function, which kallsyms can name."""
        return self.addresses.setdefault(_NOT_IN_NAMES.sub("_", place), FIRST_ADDRESS + STEP * len(self.addresses))


_Data = tuple[int, bytes]
"""The number of the event, and what follows its common fields."""


def _common(track: Track, data: _Data) -> bytes:
    number, fields = data
    return struct.pack("<HBBi", number, 0, 0, track.number) + fields


def _format(name: str, number: int) -> str:
    fields, shown = _FORMATS[name, number]
    lines, at = [], 0
    for each in (*_COMMON, "int common_pid", "", *fields):
        if not each:
            lines.append("")
            continue
        size = _SIZES[each.rpartition(" ")[0].rpartition(" ")[2]]
        at += -at % size
        whole = 0 if each.endswith("[]") else size
        signed = int(not each.startswith("unsigned") and "char" not in each)
        lines.append(f"\tfield:{each};\toffset:{at};\tsize:{whole};\tsigned:{signed};")
        at += whole
    text = "\n".join(lines)
    return f"name: {name}\nID: {number}\nformat:\n{text}\n\nprint fmt: {shown}\n"


def _pages(events: Iterable[tuple[int, bytes]]) -> bytes:
    """Return whole pages of events, which are in the order of time."""
    pages: list[bytes] = []
    held, start, last = bytearray(), 0, 0
    for time, data in events:
        one = _written(time - last, data) if time - last <= LONGEST_EXTENDED else b""
        if not held or not one or len(held) + len(one) > PAGE - HEADER:
            if held:
                pages.append(_page(start, bytes(held)))
            held, start, one = bytearray(), time, _written(0, data)
        held += one
        last = time
    if held:
        pages.append(_page(start, bytes(held)))
    return b"".join(pages)


def _page(start: int, held: bytes) -> bytes:
    return (struct.pack("<QQ", start, len(held)) + held).ljust(PAGE, b"\0")


def _written(delta: int, data: bytes) -> bytes:
    """Return an event so long after the one before it."""
    late = b""
    if delta > LONGEST_DELTA:
        late = struct.pack("<II", (delta & LONGEST_DELTA) << 5 | TIME_EXTEND, delta >> 27)
        delta = 0
    data = data.ljust(len(data) + -len(data) % 4, b"\0")
    if len(data) <= LARGEST_SMALL:
        return late + struct.pack("<I", delta << 5 | len(data) // 4) + data
    return late + struct.pack("<II", delta << 5, len(data) + 4) + data


def _sized(size: str, text: str) -> bytes:
    data = text.encode()
    return struct.pack(f"<{size}", len(data)) + data


def _aligned(at: int) -> int:
    return at + -at % PAGE
