"""A recording made by hand, of two threads, two CPUs and what counts; and a hostile one."""

from __future__ import annotations

from gdb_optprobe.exports.recording import (
    Call,
    Distribution,
    Event,
    Mean,
    Measure,
    Number,
    Recording,
    Source,
    Stack,
    Thread,
)
from gdb_optprobe.maps.aggregate import Powers, buckets, update

READ, VERIFY, OPEN = Source(1, "vfs_read"), Source(2, "rw_verify_area"), Source(3, "do_sys_openat2+0x5")
DD, CAT = Thread(412, "dd"), Thread(413, "cat", 400)
SECOND = 1_000_000_000


def distribution(*values: int) -> Distribution:
    words: tuple[int, ...] = (0,) * 66
    for value in values:
        words = update(Powers(signed=False), words, value)
    return Distribution(buckets(Powers(signed=False), words))


CALLS = (
    # dd: a call in a call, and one behind it; cat at the same time; one of an unknown thread.
    Call(VERIFY, SECOND + 1000, SECOND + 1300, 0, DD, (("$pid", 412), ("$comm", "dd"), ("$elapsed", 300))),
    Call(READ, SECOND + 500, SECOND + 3000, 0, DD, (("$pid", 412), ("$comm", "dd"), ("$elapsed", 2500))),
    Call(READ, SECOND + 3000, SECOND + 3100, 1, DD, (("$pid", 412), ("$comm", "dd"), ("$elapsed", 100))),
    Call(READ, SECOND + 700, SECOND + 5700, 1, CAT),
    Call(READ, SECOND + 100, SECOND + 200, 1),
    # Of two threads, on one CPU: neither is in the other.
    Call(READ, SECOND + 150, SECOND + 300, 1),
)
EVENTS = (
    Event(OPEN, SECOND + 200, 0, DD, (("$pid", 412), ("name", "a, \"b\";c")), 'name=a, "b";c'),
    Event(OPEN, SECOND + 100, 1, None, (("flags", 1 << 63), ("file", "0xffff888000000000")), "flags=…"),
    Event(READ, SECOND + 400, 0, None, (), "", ("entry_SYSCALL_64", "ksys_read", "vfs_read")),
    Event(READ, None, 0, None, (("count", 5),), "count=5"),
)
STACKS = (
    Stack(("entry_SYSCALL_64", "ksys_read", "vfs_read"), 12),
    Stack(("entry_SYSCALL_64", "vfs_read"), 3),
)
MEASURES = (
    Measure(READ, "hits", Number(1052)),
    Measure(READ, "active", Number(2, grows=False)),
    Measure(OPEN, "hits", Number(3)),
    Measure(READ, "hist", distribution(0, 1, 1000, 1023, 1024), "hist(count)"),
    Measure(READ, "count", Number(7), "count by ($comm, $pid)", (("$comm", "dd"), ("$pid", 412))),
    Measure(READ, "count", Number(1), "count by ($comm, $pid)", (("$comm", 'a "b"\\n'), ("$pid", 413))),
    Measure(READ, "latency", distribution(900, 1100), "latency", unit="ns"),
    Measure(READ, "avg", Mean(4, 1_500_000_001), "avg($elapsed)", unit="ns"),
    Measure(READ, "sum", Number(-5, grows=False), "sum($retval)"),
    Measure(None, "count", Number(2), "@reads", (("key", "dd, 412"),)),
    Measure(None, "value", Number(-1, grows=False), "@last"),
)
WHOLE = Recording(EVENTS, CALLS, STACKS, MEASURES, lost=36)

NASTY = ("a;b c", "=1+1", "-", "@x", 'q"q', "b\\sl", "<script>", "é\U0001f600", "x" * 600, 'a{b="c"} 1', "1", "le")
"""Names as a guest may have them. from_views has made them printable; each format has its own separators."""


def hostile() -> Recording:
    """Every text is one of NASTY."""
    threads = [Thread(1000 + number, name) for number, name in enumerate(NASTY)]
    sources = [Source(number, name or "f") for number, name in enumerate(NASTY, 1)]
    values = tuple(dict.fromkeys((name or "v", name) for name in NASTY))
    both = list(zip(sources, threads, strict=True))
    return Recording(
        events=tuple(Event(source, 10, 0, thread, values, thread.name, NASTY) for source, thread in both),
        calls=tuple(Call(source, 20, 30, 0, thread, values) for source, thread in both),
        stacks=(Stack(NASTY, 3),),
        measures=tuple(Measure(source, "count", Number(1), source.place, values) for source in sources),
    )
