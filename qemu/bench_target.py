"""The function that costs are measured on, vfs_read, as it is on each architecture."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BENCH_TARGETS", "BREAK", "FUNCTION", "PROGRAMS", "RECORDS", "BenchTarget", "hits"]

FUNCTION = "vfs_read"
# A read of the bench asks for one byte.
PROGRAMS = {
    "a condition, false": "if $arg3 == 7777",
    "a condition, true": "if $arg3 == 1",
    "hist($arg3)": "do hist($arg3)",
    "count by $pid": "do count by $pid",
    "record, three words": "do record($arg1, $arg2, $arg3)",
    "count by f_flags": "do count by *(unsigned *)($arg1 + 0x40)",
    "a return": "-return do count",
    "a return, latency": "-return do latency",
}
"""The programs of which the cost is measured, at FUNCTION's entry: clauses of `optprobe add`."""
RECORDS = 8192
"""Records that a probe's ring has room for, where the guest has: a record that is dropped costs less."""


def hits(clause: str, most: int, records: int = RECORDS) -> int:
    """Return the number of hits to measure, at most `most`: other reads of the guest are recorded too."""
    return min(most, records * 4 // 5) if "record" in clause else most


BREAK = 'if $comm == "dd" && $arg3 == 7777 do stop'
"""A condition with which no read of the bench stops."""


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """vfs_read on one architecture.

    entry:     the location of GDB's own breakpoint: the address that every call passes.
    size:      the register that holds how many bytes a read asks for.
    behind:    the instruction behind the site of the function tracer; Linux optimizes a probe on it too.
    emulated:  an instruction that is emulated.
    trapped:   instructions that a trap with a count may take.
    most:      instructions that a count at a function's entry may take.
    elsewhere: those that one anywhere else may take; None where no target is set.
    programs:  those that PROGRAMS may take, in their order.
    field:     the size, as a field of Linux's event. words: three of its arguments. flags: of the file.
    optimizes: whether Linux has probes there that are no traps: by ftrace, or optimized.
    records:   that a ring has room for.
    """

    entry: str
    size: str
    behind: str
    emulated: str
    trapped: int
    most: int
    elsewhere: int | None
    programs: tuple[int, ...]
    field: str
    words: str
    flags: str
    optimizes: bool = True
    records: int = RECORDS


BENCH_TARGETS = {
    "x86_64": BenchTarget(
        entry=FUNCTION,
        size="$rdx",
        behind=f"{FUNCTION}+5",
        emulated=f"{FUNCTION}+5",
        trapped=150,
        most=6,
        elsewhere=None,
        programs=(10, 14, 40, 70, 60, 100, 60, 110),
        field="size=%dx",
        words="file=%di buffer=%si size=%dx",
        flags="flags=+0x40(%di):u32",
    ),
    # A function of ppc64le begins with two instructions that set up r2; calls within the kernel skip them.
    "ppc64le": BenchTarget(
        entry=f"{FUNCTION}+8",
        size="$r5",
        behind=f"{FUNCTION}+16",
        emulated=f"{FUNCTION}+20",
        trapped=150,
        most=16,
        elsewhere=30,
        programs=(20, 26, 60, 100, 90, 140, 90, 150),
        field="size=%gpr5",
        words="file=%gpr3 buffer=%gpr4 size=%gpr5",
        flags="flags=+0x40(%gpr3):u32",
    ),
    # The site is two instructions; a probe on a function is on the first.
    "aarch64": BenchTarget(
        entry=FUNCTION,
        size="$x2",
        behind=f"{FUNCTION}+8",
        emulated=FUNCTION,
        trapped=60,
        most=7,
        elsewhere=12,
        programs=(6, 14, 16, 70, 60, 100, 25, 110),
        field="size=%x2",
        words="file=%x0 buffer=%x1 size=%x2",
        flags="flags=+0x40(%x0):u32",
        optimizes=False,
    ),
}
