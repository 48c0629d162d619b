"""The kernel's load averages, as /proc/loadavg shows them."""

from __future__ import annotations

FILE = "/proc/loadavg"
VARIABLE = "avenrun"
WORD, COUNT = 8, 3
SIZE = WORD * COUNT
FRACTION = 11  # bits, include/linux/sched/loadavg.h: FSHIFT


def shown(data: bytes) -> str:
    """Return the line of the averages in the bytes of the variable, each rounded to hundredths."""
    return " ".join(_average(data[at : at + WORD]) for at in range(0, SIZE, WORD)) + "\n"


def _average(data: bytes) -> str:
    value = int.from_bytes(data, "little") + (1 << FRACTION) // 200
    return f"{value >> FRACTION}.{(value & (1 << FRACTION) - 1) * 100 >> FRACTION:02}"
