"""Files as the viewers show them that take a window or a browser. `scripts/viewers` runs this; the suite does not.

What prints text, trace-cmd and uftrace, is in the suite, as are the schemas of Perfetto and speedscope.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdb_optprobe.exports.formats import encoded
from gdb_optprobe.exports.recording import Recording
from tests.exports import windows
from tests.exports.browser import Browser, browser
from tests.exports.recordings import CALLS, NASTY, hostile
from tests.exports.test_gathered import GRAPH, SAMPLES, WAITS


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def written(folder: Path, word: str, recording: Recording, name: str) -> Path:
    data, _ = encoded(word, recording)
    assert isinstance(data, bytes)
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize(("word", "name"), [("speedscope", "graph.speedscope.json"), ("chrome", "graph.json")])
def test_speedscope_has_the_calls_of_a_graph(chromium: Browser, tmp_path: Path, word: str, name: str) -> None:
    """Of Chrome's JSON it takes the values of a call for a part of the name."""
    file = written(tmp_path, word, GRAPH, name)
    shown = windows.speedscope(chromium, file, windows.SANDWICH, tmp_path)
    assert re.fullmatch(r"dd \(.*412.*\) \(1/2\)", windows.titles(shown))
    found = windows.sandwich(shown)
    by_function: dict[str, list[str]] = {}
    for of, (_, own) in found.items():
        by_function.setdefault(of.partition(" ")[0], []).append(own)
    assert by_function.keys() == {"vfs_read", "rw_verify_area", "__rcu_read_unlock"}
    assert by_function["rw_verify_area"] == ["200.00ns"]
    assert sorted(by_function["vfs_read"]) in (["650.00ns"], ["50.00ns", "600.00ns"])


@pytest.mark.parametrize(
    ("word", "name"), [("speedscope", "waits.json"), ("folded", "waits.folded"), ("pprof", "waits.pb.gz")]
)
def test_speedscope_has_the_time_of_waits(chromium: Browser, tmp_path: Path, word: str, name: str) -> None:
    """Folded stacks have no unit."""
    shown = windows.speedscope(chromium, written(tmp_path, word, WAITS, name), windows.SANDWICH, tmp_path)
    plain = word == "folded"
    found = windows.sandwich(shown)
    assert found["do_wait"][0] == ("5,000" if plain else "5.00µs")
    assert found["schedule"] == (("5,070", "5,070") if plain else ("5.07µs", "5.07µs"))


def test_speedscope_shows_hostile_names_as_text(chromium: Browser, tmp_path: Path) -> None:
    file = written(tmp_path, "speedscope", hostile(), "hostile.json")
    found = windows.sandwich(windows.speedscope(chromium, file, windows.SANDWICH, tmp_path))
    assert set(found) == set(NASTY)


@pytest.mark.parametrize("recording", [SAMPLES, WAITS, GRAPH, Recording(calls=CALLS)])
def test_d3_flame_graph_has_each_path(chromium: Browser, tmp_path: Path, recording: Recording) -> None:
    folded = written(tmp_path, "folded", recording, "x.folded").read_text()
    ours: dict[tuple[str, ...], int] = {}
    for path, _, count in (line.rpartition(" ") for line in folded.splitlines()):
        names = ("all", *path.split(";"))
        for end in range(1, len(names) + 1):
            ours[names[:end]] = ours.get(names[:end], 0) + int(count)
    theirs = [re.fullmatch(r"(.*) \((?:[\d.]+)%, ([\d.]+) \w+\)", one) for one in frames(chromium, folded, tmp_path)]
    assert sorted((one[1], int(one[2])) for one in theirs) == sorted((path[-1], n) for path, n in ours.items())


def frames(chromium: Browser, folded: str, folder: Path) -> list[str]:
    return [*windows.frames(windows.flame_graph(chromium, folded, folder))]


def test_pprof_has_both_numbers_of_a_path_and_its_pages_a_flame_graph(chromium: Browser, tmp_path: Path) -> None:
    waits = written(tmp_path, "pprof", WAITS, "waits.pb.gz")
    assert windows.pprof_top(waits)["schedule"] == ("5070ns", "5070ns")
    assert windows.pprof_top(waits, "-sample_index=waits")["schedule"] == ("3", "3")
    graph = written(tmp_path, "pprof", GRAPH, "graph.pb.gz")
    found = windows.pprof_top(graph)
    assert found["vfs_read"] == ("730ns", "930ns") and found["rw_verify_area"] == ("200ns", "200ns")
    with windows.pprof_pages(waits) as pages:
        shown = windows.pprof_flame_graph(chromium, pages)
        assert {one.partition(" ")[0] for one in windows.frames(shown)} >= {"sh", "dd", "do_wait", "pipe_read"}


def test_kernelshark_has_the_rows_of_a_graph_and_opens_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "trace.dat", GRAPH, "graph.dat")
    found = [re.sub(r" +", " ", row) for row in windows.kernelshark_rows(file) if row.startswith("dd-412")]
    assert found == [
        "dd-412 CPU 0 ftrace/funcgraph_entry | vfs_read() {",
        "dd-412 CPU 0 ftrace/funcgraph_entry | rw_verify_area() {",
        "dd-412 CPU 0 ftrace/funcgraph_entry 0.000 us | __rcu_read_unlock();",
        "dd-412 CPU 0 ftrace/funcgraph_exit 0.000 us | }",
        "dd-412 CPU 0 ftrace/funcgraph_exit 0.200 us | }",
        "dd-412 CPU 1 ftrace/funcgraph_exit 0.800 us | }",
        "dd-412 CPU 1 ftrace/funcgraph_entry 0.050 us | vfs_read();",
        "dd-412 CPU 1 ftrace/funcgraph_exit 0.050 us | }",
    ]
    with windows.kernelshark(file) as environment:
        windows.screen(environment, tmp_path / "seen.png")
    assert (tmp_path / "seen.png").stat().st_size > 5000, "a screen without a window is one colour"
