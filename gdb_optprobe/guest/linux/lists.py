"""The kernel's circular lists. A stopped guest's may be half changed, but never in the direction that is walked.

`list_add` and `list_del` complete the new member before the one store that links it in, or out, forwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.budget import Budget
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel

# A limit (budget.py): a guest with 32,768 processes, the kernel's default limit of them, has no longer list.
MOST = 1 << 16


def members(kernel: Kernel, head: int, node: int, budget: Budget | None = None) -> Iterator[int]:
    """The structures in the list at `head`; `node` is where each has its links. Raises OptprobeError when broken.

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
