"""The table of costs as a page for a browser, of the parts that a report has."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.pages.page import NUMBER, Column, Figure, Page, Paragraph, Section, Table, encode

from .chart import ESTIMATED, drawing
from .estimate import Cost
from .table import COLUMNS, cells

__all__ = ["page"]


def page(costs: Sequence[Cost], unit: Cost, arch: str, notes: Sequence[str], verdict: Sequence[str]) -> bytes:
    """Return the page. unit: as `table` has it. notes, verdict: what a bench prints below its table."""
    columns = [Column(title, NUMBER if title else "") for title in COLUMNS]
    whole = Table("A hit of each", columns, cells(costs, unit))
    beside = Figure(drawing(costs, arch), "µs of the host, logarithmic")
    sections = (
        Section("Beside GDB and Linux", [beside, Paragraph(ESTIMATED)]),
        Section("All", [whole, *map(Paragraph, notes)]),
        Section("Targets", [*map(Paragraph, verdict)]),
    )
    facts = [("Measured", f"vfs_read of a stock Debian kernel, {arch}, one vCPU under TCG, GDB attached")]
    return encode(Page("What a hit costs", facts, sections))
