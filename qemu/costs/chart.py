"""The costs as a picture, SVG: GDB, Linux and optprobe side by side, on a logarithmic scale.

    GDB: break … if, false           ██████████████████████████ 6,766 µs, 2 stops of the guest
    optprobe: break … if, false      ███ 0.014 µs, 9.0 instructions
                                     0.001  0.1   10   1,000
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from .estimate import Cost
from .table import number

__all__ = ["PAIRS", "chart"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. maker: "gdb", "linux" or "ours". cost: the name of its row in the table."""

    maker: str
    label: str
    cost: str


PAIRS = (
    (Bar("gdb", "break … if, false", "GDB's break … if"), Bar("ours", "break … if, false", "a break, false")),
    (Bar("linux", "event", "Linux's event, optimized"), Bar("ours", "count", "optimized")),
    (Bar("linux", "event, filter false", "Linux's filter, false"), Bar("ours", "if …, false", "a condition, false")),
    (Bar("linux", "hist trigger", "Linux's hist trigger"), Bar("ours", "hist(…)", "hist($arg3)")),
    (Bar("linux", "event, three words", "Linux's event, three words"), Bar("ours", "record(…)", "record, three words")),
    (Bar("linux", "event of a return", "Linux's event, return"), Bar("ours", "-return, count", "a return")),
    (Bar("linux", "event, by a trap", "Linux's event, by a trap"), Bar("ours", "count, by a trap", "trapped")),
)
"""What does the same work, beside each other."""
MAKERS = {"gdb": "GDB", "linux": "Linux", "ours": "optprobe"}
LOWEST, DECADES = -3, 7
LEFT, TOP, DECADE, WIDTH = 196, 58, 56, 760
BAR, ROW, PAIR = 13, 17, 44
STYLE = """\
  .card { fill: #ffffff; stroke: #d0d7de } text { fill: #1f2328; font: 12px system-ui, sans-serif }
  .head { font-size: 15px; font-weight: 600 } .note { fill: #59636e; font-size: 11px } .grid { stroke: #e4e8ec }
  .gdb { fill: #cf4a3e } .linux { fill: #7d8590 } .ours { fill: #1f883d } .end { text-anchor: end }
  .middle { text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d } text { fill: #e6edf3 } .note { fill: #9198a1 } .grid { stroke: #2a313c }
    .gdb { fill: #f0655a } .linux { fill: #818b98 } .ours { fill: #3fb950 }
  }"""


def chart(costs: Sequence[Cost], arch: str) -> str:
    """Return the SVG of a bench's table."""
    found = {cost.name: cost for cost in costs}
    foot = TOP + len(PAIRS) * PAIR
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {foot + 46}" width="{WIDTH}" role="img">',
            f"<title>What a hit costs, {arch}</title>",
            f"<style>\n{STYLE}\n</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{foot + 45}" rx="6"/>',
            f'<text class="head" x="16" y="26">What a hit costs: µs of the host, logarithmic ({arch})</text>',
            '<text class="note" x="16" y="43">vfs_read of a stock Debian kernel, one vCPU under TCG, GDB attached; '
            "scripts/bench --chart</text>",
            *_axis(foot),
            *(line for place, pair in enumerate(PAIRS) for line in _pair(pair, found, TOP + place * PAIR)),
            f'<text class="note" x="16" y="{foot + 35}">~ too short for the host&apos;s clock: the share of the '
            "instructions in the time of a read</text>",
            "</svg>\n",
        )
    )


def _axis(foot: int) -> Iterator[str]:
    for step in range(DECADES + 1):
        at = LEFT + step * DECADE
        yield f'<path class="grid" d="M{at} {TOP - 4}V{foot}"/>'
        yield f'<text class="note middle" x="{at}" y="{foot + 14}">{10.0 ** (LOWEST + step):,g}</text>'


def _pair(pair: Sequence[Bar], costs: Mapping[str, Cost], top: int) -> Iterator[str]:
    for place, bar in enumerate(pair):
        cost, y = costs[bar.cost], top + place * ROW
        # As printed, so that the picture of a printed table is the same.
        shown = float(number(cost.seconds * 1e6).replace(",", ""))
        length = max(1.0, (math.log10(max(shown, 10.0**LOWEST)) - LOWEST) * DECADE)
        text = f'y="{y + BAR - 2}"'
        yield f'<text class="end" x="{LEFT - 8}" {text}>{escape(f"{MAKERS[bar.maker]}: {bar.label}")}</text>'
        yield f'<rect class="{bar.maker}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}"/>'
        yield f'<text x="{LEFT + length + 6:.1f}" {text}>{_figure(cost)}</text>'


def _figure(cost: Cost) -> str:
    time = f"{'~' if cost.estimated else ''}{number(cost.seconds * 1e6)} µs"
    if cost.instructions is None:
        return f"{time}, {cost.stops:.0f} stops"
    return f"{time}, {round(cost.instructions, 1):,.0f} instructions"
