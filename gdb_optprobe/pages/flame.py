"""Flame graphs: a box for each path of calls, as wide as its share, callers above what they call.

Or a box for each call, where and as wide as it was in time.

    │              all              │
    │ ksys_read          │ ksys_write │
    │ vfs_read    │

Each box is an SVG of its own, which cuts its name off. page.js lets one be zoomed; without it, all is there to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from gdb_optprobe.exports.recording import Stack
from gdb_optprobe.pages.svg import Drawing, Markup, cut, element, percent, text

ROW = 18
TINTS = 4
DEEPEST = 60
_NARROWEST = 0.0005


@dataclass(slots=True)
class Node:
    """A path. value: of it and of all that it leads to. own: without the latter."""

    name: str
    value: int = 0
    own: int = 0
    children: dict[str, Node] = field(default_factory=dict)


Share = tuple[str, int, int]
"""A function, its own value, and that of all paths on which it is."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A box. left, width: shares of the whole."""

    name: str
    depth: int
    left: float
    width: float
    value: int


@dataclass(frozen=True, slots=True)
class Span:
    """A call, from one time to another. depth: how many are around it."""

    name: str
    depth: int
    begin: int
    end: int


def tree(stacks: Sequence[Stack]) -> Node:
    """Return the root, which has the value of all stacks."""
    root = Node("all")
    for stack in (one for one in stacks if one.weight > 0):
        node = root
        node.value += stack.weight
        for name in stack.frames:
            node = node.children.setdefault(name, Node(name))
            node.value += stack.weight
        node.own += stack.weight
    return root


def frames(root: Node, most: int) -> tuple[Sequence[Frame], int]:
    """Return the widest boxes, at most so many and so deep, and how many are left out."""
    return _widest([*_frames(root, root.value or 1, 0, 0.0)], most)


def in_time(boxes: Sequence[Span], most: int) -> tuple[Sequence[Frame], int]:
    """Return what came within the first box in the order of time: the widest, at most so many, how many are left out.
    """
    begin, whole = boxes[0].begin, max(boxes[0].end - boxes[0].begin, 1)
    found = [
        Frame(one.name, one.depth, (one.begin - begin) / whole, (one.end - one.begin) / whole, one.end - one.begin)
        for one in boxes
    ]
    return _widest(found, most)


def flame(title: str, description: str, shown: Sequence[Frame], spell: Callable[[int], str]) -> Drawing:
    deepest = max((one.depth for one in shown), default=0)
    boxes = tuple(_box(one, spell) for one in shown)
    return Drawing(title, description, ROW * (deepest + 1), boxes, "flame")


def by_function(root: Node) -> Sequence[Share]:
    """Return each function with its own value, and with that of all paths on which it is; the greatest own first."""
    own: dict[str, int] = {}
    whole: dict[str, int] = {}
    todo: list[tuple[Node, frozenset[str]]] = [(child, frozenset()) for child in root.children.values()]
    while todo:
        node, above = todo.pop()
        own[node.name] = own.get(node.name, 0) + node.own
        # A function that calls itself is counted once on a path.
        whole[node.name] = whole.get(node.name, 0) + (0 if node.name in above else node.value)
        todo += [(child, above | {node.name}) for child in node.children.values()]
    found = ((name, value, whole[name]) for name, value in own.items())
    return sorted(found, key=lambda one: (-one[1], -one[2], one[0]))


def _widest(boxes: Sequence[Frame], most: int) -> tuple[Sequence[Frame], int]:
    found = sorted(boxes, key=lambda one: (-one.value, one.depth, one.left))
    shown = [one for one in found[:most] if one.width >= _NARROWEST and one.depth <= DEEPEST]
    return sorted(shown, key=lambda one: (one.depth, one.left)), len(found) - len(shown)


def _frames(root: Node, total: int, depth: int, left: float) -> Iterator[Frame]:
    todo = [(root, depth, left)]
    while todo:
        node, depth, left = todo.pop()
        yield Frame(node.name, depth, left, node.value / total, node.value)
        for child in sorted(node.children.values(), key=lambda one: one.name):
            todo.append((child, depth + 1, left))
            left += child.value / total


def _box(one: Frame, spell: Callable[[int], str]) -> Markup:
    name = cut(one.name)
    said = element("title", {}, f"{name}: {spell(one.value)}, {100 * one.width:.1f} %")
    tint = "k" if not one.depth else f"k{crc32(one.name.encode()) % TINTS}"
    # A box that is zoomed is magnified, and so is what its place is rounded by.
    left, width = percent(one.left, 4), percent(one.width, 4)
    place = {"x": left, "y": ROW * one.depth, "width": width, "height": ROW}
    rect = element("rect", {"class": tint, "width": "100%", "height": "100%"})
    return element("svg", place, said, rect, text(name, "4", 13))
