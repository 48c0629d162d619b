"""Rows of counts that are columns are printed as the same rows one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdb_optprobe.commands.render_json import Json
from gdb_optprobe.commands.render_text import Text
from gdb_optprobe.probes.views import CountsView, DetourView, ProbeView, ReasonView, Rows, rows
from tests.commands.fake_session import probe
from tests.examples import examples

START, STEP = 0xFFFF_FFFF_8134_CC50, 24
DETOUR = DetourView(0xFFFF_FFFF_8200_0010, 17, 3, 3, 3, START, 3, 3)
NAMES = st.sampled_from(["vfs_read", "", "%s", "%(x)d", "1ee7_0005_0005", "a\\b", 'q"', "\x1b[31m", "é", "x" * 200])
METHODS = [("probes",), ("report",), ("report", False), ("added",), ("added", True)]


def counts(names: Sequence[str], hits: Sequence[int], enabled: bool, first: int, reason: bool) -> CountsView:
    number = len(names)
    originals = [bytes([place, 0x44, 0, 0, 0]) for place in range(number)]
    view = replace(
        probe(),
        number=first,
        location="a%b*",
        address=START,
        symbol=names[0],
        hits=hits[0],
        original_bytes=originals[0],
        patched_bytes=b"\xe9\0\0\0\0" if enabled else b"",
        enabled=enabled,
        state="armed" if enabled else "disabled",
        detour=DETOUR if enabled else None,
        reason=ReasonView("CODE", "words with %s", "a hint") if reason else None,
        objects=(),
        records=(),
    )
    branches = [b"\xe9" + place.to_bytes(4, "little") for place in range(number)] if enabled else []
    addresses = [START + 32 * place for place in range(number)]
    return CountsView(view, addresses, names, hits, originals, branches, STEP)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", [Text, Json])
@settings(max_examples=examples(30), deadline=None)
@given(
    names=st.lists(NAMES, min_size=1, max_size=40),
    hits=st.lists(st.sampled_from([0, 0, 1, 1 << 63]), min_size=40, max_size=40),
    enabled=st.booleans(),
    first=st.integers(2, 1000),
    reason=st.booleans(),
    others=st.booleans(),
)
def test_columns_are_printed_as_rows(
    form: Any, method: tuple[Any, ...], names: list[str], hits: list[int], enabled: bool, first: int, reason: bool,
    others: bool,
) -> None:  # fmt: skip
    many = counts(names, hits[: len(names)], enabled, first, reason)
    around = [replace(probe(), number=1), replace(probe(), number=first + len(names))] if others else []
    together = rows([many, *around])
    alone = list(together)
    assert [view.number for view in alone] == sorted(view.number for view in alone)
    assert [together[place] for place in range(-len(alone), len(alone))] == alone * 2
    assert together[1:3] == alone[1:3] and len(together) == len(alone)
    assert printed(form, together, method) == printed(form, alone, method)


def printed(form: Any, probes: Rows | list[ProbeView], method: tuple[Any, ...]) -> str:
    written: list[str] = []
    name, *arguments = method
    getattr(form(written.append), name)(probes, *arguments)
    return "".join(written)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("size", [1, 5])
def test_columns_in_parts_are_the_same_rows(size: int, enabled: bool) -> None:
    part = counts([f"f{place}" for place in range(size)], [*range(size)], enabled, 7, False)
    assert [*rows(part.first_apart())] == [*part]
    assert [*part.between(size // 2, size)] == part[size // 2 :]
