from __future__ import annotations

from itertools import pairwise

import pytest

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.guest.linux import control_groups
from gdb_optprobe.guest.linux.kernel import Kernel
from tests.guest.linux.fake_kernel import Pages, kernel

ROOT, GROUPS, NODES, NAMES = 0x10000, 0x20000, 0x40000, 0x60000
OFFSETS = {
    "cgroup_root.cgrp": 64, "cgroup.kn": 256, "cgroup.self": 16, "cgroup_subsys_state.children": 48,
    "cgroup_subsys_state.sibling": 32, "kernfs_node.id": 96, "kernfs_node.name": 24,
}  # fmt: skip
SELF, CHILDREN, SIBLING = 16, 48, 32


def tree(of: dict[str, list[str]]) -> Kernel:
    """Return a kernel with groups. of: the children of each; the numbers are 1 for the root, then as they are named."""
    memory = Pages()
    names = list(of)
    at = {name: ROOT + 64 if not number else GROUPS + 512 * number for number, name in enumerate(names)}
    for number, (name, children) in enumerate(of.items()):
        group, node, text = at[name], NODES + 256 * number, NAMES + 64 * number
        memory.put_words(group + 256, node)
        memory.put_words(node + 96, number + 1)
        memory.put_words(node + 24, text)
        memory.put(text, name.encode() + b"\0")
        head = group + SELF + CHILDREN
        links = [head, *(at[child] + SELF + SIBLING for child in children), head]
        for link, following in pairwise(links):
            memory.put_words(link, following)
    return kernel(memory, {"d_cgrp_dfl_root": ROOT}, OFFSETS)


def test_a_path_leads_from_the_root() -> None:
    found = tree({"": ["a", "b"], "a": ["x"], "b": ["y\n"], "x": [], "y\n": []})
    assert [control_groups.path(found, number) for number in range(1, 7)] == ["/", "/a", "/b", "/a/x", r"/b/y\n", None]


def test_the_groups_of_a_guest_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "MOST", 2)
    with pytest.raises(OverBudget):
        control_groups.path(tree({"": ["a", "b", "c"], "a": [], "b": [], "c": []}), 9)
