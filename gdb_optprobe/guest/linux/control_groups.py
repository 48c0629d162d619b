"""The paths of control groups, by the numbers that programs of BPF have of them (kernel/cgroup/cgroup.c).

    cgrp_dfl_root ─ cgrp ─► self.children ─► css.sibling of each child: a `struct cgroup` begins with its css
                     └ kn: id, name
"""

from __future__ import annotations

from gdb_optprobe.budget import Budget
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.list_head import members
from gdb_optprobe.guest_text import until_zero

MOST = 1 << 14
"""A limit (budget.py), of groups. A machine with 500 containers has about 3,000."""
DEEPEST = 64
LONGEST = 256
_PAGE = 4096


def path(kernel: Kernel, number: int) -> str | None:
    """Return a group's path from the root, "/" for the root itself; None where no group has the number.

    Raises OptprobeError.
    """
    root = kernel.address("cgrp_dfl_root") + kernel.offset("cgroup_root", "cgrp")
    budget = Budget(MOST, "the tree of control groups", "groups")
    waiting = [(root, "", 0)]
    while waiting:
        group, where, depth = waiting.pop()
        node = kernel.word(group + kernel.offset("cgroup", "kn"))
        if kernel.word(node + kernel.offset("kernfs_node", "id")) == number:
            return where or "/"
        if depth < DEEPEST:
            css = group + kernel.offset("cgroup", "self")
            head, link = (kernel.offset("cgroup_subsys_state", name) for name in ("children", "sibling"))
            inside = members(kernel, css + head, kernel.offset("cgroup", "self") + link, budget)
            waiting += [(child, f"{where}/{_name(kernel, child)}", depth + 1) for child in inside]
    return None


def _name(kernel: Kernel, group: int) -> str:
    node = kernel.word(group + kernel.offset("cgroup", "kn"))
    at = kernel.word(node + kernel.offset("kernfs_node", "name"))
    return until_zero(kernel.memory.read(at, min(LONGEST, _PAGE - at % _PAGE)))
