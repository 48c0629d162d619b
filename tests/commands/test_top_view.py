"""The screen of `optprobe top`: from samples to lines of any size."""

from __future__ import annotations

import unicodedata
from functools import partial, reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.commands import top_view
from gdb_optprobe.commands.top_view import HEADER, HELP, SORTS, Top, block, cut, screen, short, trend
from gdb_optprobe.maps.aggregate import Average, Count, Powers, update
from gdb_optprobe.probes.sampler import Sample, Shown
from gdb_optprobe.probes.views import NANOSECONDS, ObjectView, RowView, SessionMapView

LABELS = ("vfs_read", "vfs_write", "ksys_lseek%return", "do_exit")
POWERS = Powers(signed=False)
BY_COMM = ObjectView(
    "count by $comm",
    Count(),
    tuple(RowView((name,), (count,), f"[{name}]") for name, count in (("cat", 10), ("dd", 70), ("sh", 20))),
    keys=1,
)
LATENCY = ObjectView(
    "latency", POWERS, (RowView((), reduce(partial(update, POWERS), (1500, 1500, 9000), (0,) * 66)),), unit=NANOSECONDS
)


def top(*samples: tuple[int, ...], lost: dict[int, int] | None = None) -> Top:
    """A state after one sample a second."""
    found = Top(LABELS, (1, 2, 3, 4), "by /proc/7/mem")
    for second, hits in enumerate(samples):
        found.add(Sample(hits, lost or {}), second)
    return found


def columns(line: str) -> int:
    """How many columns of a terminal a line takes."""
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in line
    )


RUNNING = ((100, 50, 0, 0), (400, 150, 0, 0), (1000, 350, 0, 5))


def test_a_screen_has_totals_rates_shares_and_losses() -> None:
    state = top(*RUNNING, lost={0: 12})
    lines = screen(state, 100, 12)
    assert lines[0].startswith("optprobe top, 2 s: 4 probes, 805/s, 1,355 hits, 12 lost")
    assert lines[1] == "read by /proc/7/mem"
    assert lines[HEADER].split() == ["#", "RATE/S*", "SHARE", "HITS", "LOST", "TREND", "PROBE"]
    rows = [line.split() for line in lines[HEADER + 1 : HEADER + 5]]
    assert rows[0] == ["1", "600", "74.5%", "1,000", "12", trend([300, 600]), "vfs_read"]
    assert [row[-1] for row in rows] == ["vfs_read", "vfs_write", "do_exit", "ksys_lseek%return"]
    assert lines[-1] == HELP and len(lines) == 12


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("rate", ["vfs_write", "do_exit", "vfs_read", "ksys_lseek%return"]),
        ("hits", ["vfs_read", "vfs_write", "do_exit", "ksys_lseek%return"]),
        ("lost", ["ksys_lseek%return", "vfs_read", "vfs_write", "do_exit"]),
        ("number", ["vfs_read", "vfs_write", "ksys_lseek%return", "do_exit"]),
        ("name", ["do_exit", "ksys_lseek%return", "vfs_read", "vfs_write"]),
    ],
)
def test_the_order_is_the_one_that_was_chosen(sort: str, order: list[str]) -> None:
    state = top((900, 0, 0, 0), (900, 300, 0, 100), lost={2: 1})
    state.sort = sort
    assert [LABELS[place] for place in state.first(9)] == order and sort in SORTS
    assert [line.split()[-1] for line in screen(state, 100, 12)[HEADER + 1 : HEADER + 5]] == order


def test_rates_are_of_the_last_interval_and_in_the_end_of_all() -> None:
    state = top((100, 0, 0, 0), (300, 0, 0, 0))
    state.add(Sample((400, 0, 0, 0)), 5)
    assert state.rates[0] == 25
    state.end(Sample((1100, 0, 0, 0)), 10)
    assert state.rates[0] == 100 and state.total_rate == 100


def test_a_count_that_was_cleared_meanwhile_has_no_rate_below_zero() -> None:
    assert list(top((100, 5, 5, 5), (0, 6, 5, 5)).rates) == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (100, ["#", "RATE/S*", "SHARE", "HITS", "TREND", "PROBE"]),
        (80, ["#", "RATE/S*", "SHARE", "HITS", "PROBE"]),
        (48, ["RATE/S*", "SHARE", "HITS", "PROBE"]),
        (40, ["RATE/S*", "HITS", "PROBE"]),
        (30, ["RATE/S*", "PROBE"]),
    ],
)
def test_a_narrow_screen_has_fewer_columns(width: int, titles: list[str]) -> None:
    lines = screen(top(*RUNNING), width, 12)
    assert lines[HEADER].split() == titles
    assert lines[HEADER + 1].split()[-1] == "vfs_read"


@given(st.integers(1, 200), st.integers(1, 60), st.integers(0, 3))
def test_no_screen_is_larger_than_the_terminal(width: int, height: int, rows: int) -> None:
    state = top(*RUNNING, lost={1: 10**15})
    state.gathered = [("vfs_read", Shown((BY_COMM, LATENCY), "名前 = \u0301x")) for _ in range(rows)]
    state.maps = [SessionMapView("\n".join(f"@[{number}]: {number}" for number in range(40)), "")] * rows
    lines = screen(state, width, height)
    assert len(lines) <= height and all(columns(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)


def test_what_rows_gather_begins_with_the_greatest() -> None:
    state = top(*RUNNING)
    state.gathered = [("vfs_read", Shown((BY_COMM, LATENCY), "read of 77"))]
    lines = screen(state, 100, 30)
    at = lines.index("vfs_read count by $comm: 3 keys")
    assert [line.split() for line in lines[at + 1 : at + 4]] == [
        ["70", "70.0%", "[dd]"],
        ["20", "20.0%", "[sh]"],
        ["10", "10.0%", "[cat]"],
    ]
    assert lines[at + 4] == f"vfs_read latency: 1.02us {trend([2, 0, 0, 1])} 16.4us (3 values)"
    assert lines[at + 5] == "vfs_read newest: read of 77"
    assert top_view.MAY_DIFFER in lines[1]


def test_a_low_screen_has_fewer_keys_of_each_map() -> None:
    state = top(*RUNNING)
    state.gathered = [("vfs_read", Shown((BY_COMM,))), ("vfs_write", Shown((BY_COMM,)))]
    state.maps = [SessionMapView("@[cat]: 1\n@[dd]: 7", "")]
    shown = "\n".join(screen(state, 100, 13))
    assert shown.count("[dd]") == 3 and "[sh]" not in shown and "@[dd]: 7" in shown and "@[cat]" not in shown


def test_a_map_of_histograms_ends_as_its_text_does() -> None:
    state = top(*RUNNING)
    state.maps = [SessionMapView("@us[dd]:\n[1]   5 |@@@|\n[2]   3 |@@ |", "")]
    lines = screen(state, 100, 30)
    assert lines[lines.index("@us[dd]:") + 1] == "[1]   5 |@@@|"


def test_shares_are_of_what_adds_up() -> None:
    averages = ObjectView("avg($arg3) by $comm", Average(False), (RowView(("dd",), (2, 10), "[dd]"),) * 2, keys=1)
    state = top(*RUNNING)
    state.gathered = [("vfs_read", Shown((averages,)))]
    assert "             5        [dd]" in screen(state, 100, 30)


def test_a_block_has_the_rows_that_were_hit() -> None:
    state = top(*RUNNING)
    state.gathered = [("vfs_read", Shown((BY_COMM,)))]
    lines = block(state, 0)
    assert lines[0] == "2.0 s: 805/s, 1,355 hits"
    assert [line.split()[-1] for line in lines[2:5]] == ["vfs_read", "vfs_write", "do_exit"]
    assert lines[5] == "  vfs_read count by $comm: 3 keys"
    assert block(top((0, 0, 0, 0)), 0) == ["0.0 s: 0/s, 0 hits"]
    assert block(top((1, 0, 0, 0)), 0, "in all ")[0] == "in all 0.0 s: 0/s, 1 hit"
    assert max(map(len, block(state, 30))) <= 30


def test_numbers_have_nine_characters_at_most() -> None:
    assert [short(number) for number in (0, 0.5, 12.4, 999_999, 9_999_999, 10_000_000, 1.5e12, 2**64)] == [
        *("0", "0.5", "12", "999,999", "9,999,999", "10M", "1.5T", "18.4E"),
    ]


def test_text_of_the_guests_is_cut_and_printable() -> None:
    assert cut("名前x", 3) == "名" and cut("a\x1b[2Jb", 20) == r"a\033[2Jb"


def test_a_trend_ends_with_the_greatest_as_a_whole_block() -> None:
    assert trend([]) == "" and trend([0, 0]) == "  " and trend([1, 4, 8]) == "▂▅█"
