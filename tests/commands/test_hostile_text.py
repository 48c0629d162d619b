"""Whatever the guest's, typed or a journal's text is: nothing that a terminal obeys is printed, no row is forged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gdb_optprobe.commands.render_json import Json
from gdb_optprobe.commands.render_text import Text
from gdb_optprobe.guest_text import one_line, printable
from gdb_optprobe.handlers.format import render
from gdb_optprobe.handlers.ir import Column, Form
from gdb_optprobe.maps.aggregate import Count
from gdb_optprobe.probes.probe_views import _key, _parts
from gdb_optprobe.probes.views import ActiveCallView, CallsView, ObjectView, RecordView, RowView
from tests.commands.fake_session import EXPLAINED, SHOWN, boosted, probe

OWNED = b"\x1b]0;owned\x07"
ROW = b"dd]: 9\n  [init"
TEXT = Column("$comm", Form.TEXT, 16)


def told(method: str, *arguments: object) -> str:
    written: list[str] = []
    getattr(Text(written.append), method)(*arguments)
    return "".join(written)


def values(method: str, *arguments: object) -> list[Any]:
    written: list[str] = []
    getattr(Json(written.append), method)(*arguments)
    assert "".join(written).isascii() and all(line.isprintable() for line in "".join(written).splitlines())
    return [json.loads(line) for line in "".join(written).splitlines()]


def gathered(*comms: bytes) -> Any:
    keys = [_key((TEXT,), comm.ljust(16, b"\0")) for comm in comms]
    rows = tuple(RowView(key, (9 + at,), f"[{key[0]}]") for at, key in enumerate(keys))
    texts = [render("%s|%8.20s|\n", [comm, comm]) for comm in comms]
    records = tuple(RecordView(0, 1, key, text) for key, text in zip(keys, texts, strict=True))
    out = tuple(ActiveCallView("", at, printable(comm)) for at, comm in enumerate(comms))
    calls = CallsView(3, 1, len(out), 0, 0, out)
    return replace(probe(), objects=(ObjectView("count by $comm", Count(), rows),), records=records, calls=calls)


def test_a_comm_sets_no_title_and_makes_no_row_of_a_report() -> None:
    plain = told("report", [gathered(b"owned", b"dd", b"dd ")])
    found = told("report", [gathered(OWNED, ROW, b"dd\r\x1b[1A")])
    assert len(found.splitlines()) == len(plain.splitlines())
    assert all(line.isprintable() for line in found.split("\n"))
    assert r"[\033]0;owned\007]: 9" in found and r"[dd]: 9\n  [init]: 10" in found
    assert r"[0] 1: dd]: 9\n  [init|dd]: 9\n  [init|" in found


def test_json_has_the_same_form_as_text() -> None:
    _, found, record, *_ = values("report", [gathered(ROW)])
    assert found["entries"][0]["key"] == [r"dd]: 9\n  [init"]
    assert record["values"] == [r"dd]: 9\n  [init"] and record["text"].startswith(r"dd]: 9\n  [init|")


@pytest.mark.parametrize(
    ("format", "value", "shown"),
    [
        ("%s", b"a\x1b[2Jb", r"a\033[2Jb"),
        ("%s", b"\xc3", r"\303"),
        ("%.3s", "aé€".encode(), "aé"),  # bytes, as C has it
        ("[%6s]", b"\n", r"[     \n]"),  # the width is of bytes too
        ("%c", 0x1B, r"\033"),
        ("%c", 0x9B, r"\233"),
        ("%c", 0x10A, r"\n"),
        ("%c%c", None, "AB"),
    ],
)
def test_formats_print_what_a_terminal_obeys_as_c_writes_it(format: str, value: Any, shown: str) -> None:
    assert render(format, [value] if value is not None else [65, 66]) == shown


def test_a_format_of_a_journal_forges_no_row() -> None:
    """The format is the probe's, which a guest may have written too."""
    record = RecordView(0, 5, (), "x\n  [init]: 9\n[0] 6: y\tz\n")
    found = told("report", [replace(probe(), records=(record,))]).splitlines()
    assert found[-3:] == ["    [0] 5: x", "        |   [init]: 9", "        | [0] 6: y      z"]


def spoiled(value: Any, text: str) -> Any:
    """A view with `text` in every string that is free text."""
    if isinstance(value, str):
        return text if value not in ("optimized", "boosted", "armed", "kprobe", "kretprobe") else value
    if isinstance(value, tuple):
        return tuple(spoiled(each, text) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: spoiled(getattr(value, each.name), text) for each in fields(value)})
    return value


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


VIEWS = {
    "probes": [probe(), boosted()],
    "report": [gathered(b"dd")],
    "show": [SHOWN],
    "explanation": [EXPLAINED],
    "added": [probe(), boosted()],
}


@pytest.mark.parametrize("method", VIEWS)
@given(text=some.text(max_size=20))
def test_nothing_that_a_terminal_obeys_is_printed_of_any_view(method: str, text: str) -> None:
    views = [spoiled(view, text) for view in VIEWS[method]]
    assert all(line.isprintable() for line in told(method, views).split("\n"))
    values(method, views)


@pytest.mark.parametrize("method", VIEWS)
@given(data=some.binary(min_size=1, max_size=20))
def test_text_of_the_guests_is_one_line_of_any_view(method: str, data: bytes) -> None:
    views = [spoiled(view, printable(data)) for view in VIEWS[method]]
    found = values(method, views)
    assert all(text.isprintable() for text in strings(found)) or method == "report"
    assert one_line(printable(data)) == printable(data)


def test_a_string_behind_a_pointer_is_escaped_once() -> None:


    (part,) = _parts((TEXT,), OWNED.ljust(16, b"\0"))
    assert part == OWNED and render("%s", [part]) == _key((TEXT,), OWNED)[0] == r"\033]0;owned\007"
