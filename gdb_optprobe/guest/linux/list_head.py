"""The kernel's circular lists. One of a stopped guest may be half changed, but never in the direction that is walked.

`list_add` and `list_del` complete the new member before the one store that links it in, or out, forwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.budget import Budget
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel

MOST = 1 << 19
"""A limit (budget.py), of threads. Linux starts with 32,768 (pid_max), with 1,024 for each CPU where that is more.

Lists of anything else have a smaller limit of their own.
"""


def members(kernel: Kernel, head: int, node: int, budget: Budget | None = None) -> Iterator[int]:
    """Yield the structures in the list at `head`; `node` is the offset of their links. Raises OptprobeError when
    broken.

    An empty list may be one that was never set up. budget: of several lists together.
    """
    seen: set[int] = set()
    budget = budget or Budget(MOST, f"the list at {head:#x}", "members")
    at = kernel.word(head)
    while at not in (0, head):
        if at in seen:
            raise NoSuchKernel(f"the list at {head:#x} is broken at {at:#x}")
        seen.add(at)
        budget.spend()
        yield at - node
        at = kernel.word(at)
    if not at and seen:
        raise NoSuchKernel(f"the list at {head:#x} is broken at its end")
