"""Bars on a logarithmic scale, in groups, each with its figure behind it.

    break … if, false
    ██████████████████████████ GDB 6,766 µs, 2 stops
    ███ optprobe 0.014 µs, 9 instructions
    0.001  0.1   10   1,000
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.pages.svg import Drawing, Markup, cut, element, percent, text

PLOT = 0.58
"""The part of the width that the scale takes; figures have the rest."""
LEAST = 0.004
LABEL, ROW, BAR, GAP, FOOT = 17, 18, 14, 8, 20
_LONGEST_LABEL = 120


@dataclass(frozen=True, slots=True)
class Bar:
    """kind: its class of colour. value: None of one that is off the scale."""

    kind: str
    value: float | None
    figure: str


@dataclass(frozen=True, slots=True)
class Group:
    label: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Scale:
    """Whole decades: 10**lowest to 10**highest."""

    lowest: int
    highest: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Scale:
        logarithms = [math.log10(value) for value in values if value > 0] or [0.0]
        lowest = math.floor(min(logarithms))
        return cls(lowest, max(math.ceil(max(logarithms)), lowest + 1))

    def share(self, value: float) -> float:
        """Return where a value is: 0 at the lowest, 1 at the highest."""
        if value <= 0:
            return 0.0
        return min(max((math.log10(value) - self.lowest) / (self.highest - self.lowest), 0.0), 1.0)


def logarithmic(title: str, description: str, groups: Sequence[Group]) -> Drawing:
    scale = Scale.of([bar.value for group in groups for bar in group.bars if bar.value is not None])
    foot = sum(LABEL + ROW * len(group.bars) + GAP for group in groups)
    return Drawing(title, description, foot + FOOT, (*_axis(scale, foot), *_groups(groups, scale)), "bars")


def _axis(scale: Scale, foot: int) -> Iterator[Markup]:
    decades = range(scale.lowest, scale.highest + 1)
    # Two labels of eight need 40 pixels each on a narrow page.
    step = 1 + (len(decades) - 1) // 5
    for decade in decades:
        at = percent(PLOT * (decade - scale.lowest) / (scale.highest - scale.lowest))
        yield element("line", {"class": "grid", "x1": at, "x2": at, "y1": 0, "y2": foot})
        if (decade - scale.lowest) % step == 0:
            anchor = "note" if decade == scale.lowest else "note middle"
            yield text(f"{10.0**decade:,g}" if decade < 6 else f"1e{decade}", at, foot + 14, anchor)


def _groups(groups: Sequence[Group], scale: Scale) -> Iterator[Markup]:
    top = 0
    for group in groups:
        yield text(cut(group.label, _LONGEST_LABEL), "0", top + 13)
        top += LABEL
        for bar in group.bars:
            length = PLOT * (1.0 if bar.value is None else max(scale.share(bar.value), LEAST))
            size = {"width": percent(length), "height": BAR}
            yield element("rect", {"class": bar.kind, "y": top, **size}, element("title", {}, bar.figure))
            yield text(bar.figure, percent(length), top + 11, "figure", dx=6)
            top += ROW
        top += GAP
