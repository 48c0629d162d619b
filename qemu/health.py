"""Find signs of trouble in a kernel's log."""

from __future__ import annotations

import re

__all__ = ["problems"]

SIGNS = re.compile(
    r"\bWARNING\b|\bBUG\b|\bOops\b|\b[Ss]tall(s|ed)?\b|ftrace (bug|failed|faulted)|general protection"
    r"|\b(soft|hard) lockup\b|\blockup\b|[Kk]ernel panic|unable to handle|[Uu]nable to handle"
    r"|double fault|stack (segment|guard|overflow)|invalid opcode|bad page|blocked for more than"
    r"|Modules linked in|Call [Tt]race|Internal error: |cut here|use-after-free|scheduling while atomic|suspicious RCU"
    r"|self-detected|hung task|unexpected machine check|Unrecoverable|softlockup|Disabling IRQ"
)
# Lines every healthy boot prints that hold one of the words above.
HARMLESS = re.compile(
    r"report a bug|Command line:|\bpanic=|NMI watchdog|[Rr]CU.*stall.*(timeout|suppress)|\bdebug_"
    r"|nvram corruption detected: 0-length partition"
)


def problems(log: str) -> list[str]:
    """Return the lines of a kernel log that report a WARNING, BUG, Oops, stall, lockup, ftrace failure …"""
    return [line for line in log.splitlines() if SIGNS.search(line) and not HARMLESS.search(line)]
