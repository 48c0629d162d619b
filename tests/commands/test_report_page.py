"""The page of a report: what its sections have, of a recording made by hand, of a hostile one and of any."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings

from gdb_optprobe.commands.options import REPORT_OPTIONS, parse_selection
from gdb_optprobe.commands.report_page import RECORDS, ROWS, Found, page
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.exports.recording import Call, Event, Mean, Measure, Number, Recording, Source, Stack, Thread
from gdb_optprobe.guest.linux.arch.registry import ARCHES
from gdb_optprobe.maps.aggregate import Powers, update
from gdb_optprobe.pages.page import LARGEST, Table, encode, fitting
from gdb_optprobe.probes.views import CallView, GatheredView, GuestView, SessionMapView, StackView
from tests.commands.fake_session import boosted, probe
from tests.commands.in_gdb import ROOT, shared_gdb
from tests.commands.test_export import GRAPH
from tests.examples import examples
from tests.exports.recordings import NASTY, READ, SECOND, WHOLE, distribution, hostile
from tests.exports.test_any_recording import RECORDINGS
from tests.pages.reading import SVG, drawings, is_on_its_own, read

GUEST = GuestView("some ISA", 2, "Linux version 6.1", {"kprobe": 751, "kretprobe": 1050, "uprobe": 1673})
PROBES = (probe(1, hits=1052), boosted(2, hits=3, stops=3), probe(3, kind="kretprobe", hits=70))


def powers(*nanoseconds: int) -> tuple[int, ...]:
    """Return the words of a histogram of times; none where there is no value."""
    words: tuple[int, ...] = (0,) * Powers(True).words if nanoseconds else ()
    for one in nanoseconds:
        words = update(Powers(True), words, one)
    return words


def found(recording: Recording, *probes: object, guest: GuestView = GUEST) -> Found:
    return Found(probes or PROBES, {"vfs_*": 75}, recording, (), guest, "2026-01-02 03:04 UTC")


def shown(recording: Recording, *probes: object) -> tuple[bytes, str]:
    data = encode(page(found(recording, *probes)))
    return data, read(data).text


def sections(data: bytes) -> list[str]:
    return re.findall(r'<h2 id="s\d+">(.*?)</h2>', data.decode())


def classes(data: bytes) -> set[str]:
    return {one.attrib["class"] for one in drawings(data) if "class" in one.attrib}


def test_each_section_has_what_was_recorded() -> None:
    data, text = shown(WHOLE)
    assert sections(data) == [
        "Probes", "Cost of a hit", "Counts and values", "Histograms", "Calls", "Stacks", "By CPU", "Records", "Lost",
        "Not optimized",
    ]  # fmt: skip
    assert classes(data) == {"chart bars", "chart heat", "chart flame", "chart time", "share", "chart"}
    for one in (
        *("78 probes, 6 calls, 4 events and 15 stacks", "75 of vfs_* were never hit.", "1,052"),
        *("vfs_read: count by ($comm, $pid)", 'a "b"\\n', "avg($elapsed)", "375ms of 4", "dd, 412"),
        *("vfs_read: hist(count)", "[1K, 2K)", "[512, 1K)", "vfs_read: latency", "[1.02us, 2.05us)"),
        *("1.000000 s", "name=a, \"b\";c", "vfs_read < ksys_read < entry_SYSCALL_64"),
        *("TOO_SHORT", "the instruction has 1 bytes and the branch needs 5", "probe vfs_read+0x5 instead"),
    ):
        assert one in text, one
    assert is_on_its_own(data)


def test_costs_are_beside_linux_s_own_of_the_same_kinds() -> None:
    data, _ = shown(WHOLE)
    (drawing,) = (one for one in drawings(data) if one.get("class") == "chart bars")
    texts = [one.text for one in drawing.iter(f"{SVG}text")]
    assert {"751 instructions", "1,050 instructions", "3 instructions", "a stop (boosted)"} <= {*texts}
    assert "1,673 instructions" not in texts
    kinds = [bar.attrib["class"] for bar in drawing.iter(f"{SVG}rect")]
    assert kinds == ["linux", "linux", "ours", "stop", "ours"]
    unknown = encode(page(found(WHOLE, guest=GuestView())))
    assert "Linux's own" not in read(unknown).text


def test_what_linux_s_events_take_is_what_the_figures_say() -> None:
    figures = (ROOT / "docs/internals/figures.md").read_text()
    for arch in ARCHES:
        assert {"kprobe", "kretprobe"} <= {*arch.event_costs} <= {"kprobe", "kretprobe", "uprobe", "uretprobe"}
        for cost in arch.event_costs.values():
            assert re.search(rf"\b{cost:,}\b", figures) or re.search(rf"\b{cost - 1:,}\.[5-9]", figures), cost


def test_what_was_lost_is_there_and_so_is_that_nothing_was() -> None:
    assert "Nothing: every hit, record and value found room" in shown(WHOLE)[1]
    lost = (
        Measure(READ, "dropped", Number(36)),
        Measure(READ, "lost", Number(5), "count by $pid"),
        *(Measure(Source(number, "f"), "missed_together", Number(7)) for number in (1, 2, 3)),
    )
    _, text = shown(Recording(measures=lost))
    table = text[text.index("What is not on this page") :]
    assert "Nothing:" not in text
    for what in ("records that found no room, or calls", "values that found no room: count by $pid"):
        assert what in table
    assert table.count("of all functions of the glob") == 1, "each of them says the same"


def test_without_records_there_are_no_pictures_of_them() -> None:
    data, text = shown(Recording(measures=(Measure(READ, "hits", Number(1052)),)))
    assert sections(data) == ["Probes", "Cost of a hit", "Lost", "Not optimized"]
    assert classes(data) == {"chart bars", "share"} and "78 probes" in text


def test_probes_are_in_the_order_that_was_asked_for() -> None:
    probes = [probe(1, hits=5), probe(2, hits=7), probe(3, hits=6)]
    for order, caption, numbers in (("", "By hits", [2, 3, 1]), ("number", "By number", [1, 2, 3])):
        (table,) = page(Found.of(probes, (), GuestView(), "", order)).sections[0].parts
        assert isinstance(table, Table)
        assert (table.caption, [row[0] for row in table.rows]) == (caption, numbers)


def test_a_mean_is_rounded_as_a_report_rounds_it() -> None:
    _, text = shown(Recording(measures=(Measure(READ, "avg", Mean(2, -7), "avg($retval)"),)))
    assert "avg($retval)\n-3 of 2\n" in text


def test_maps_without_probes_are_a_page() -> None:
    printed = SessionMapView("@x[dd]: (1, 2)\n@x[cat]: (3, 4)", "", "@x")
    data = encode(page(Found((), {}, Recording(), (printed,), GuestView(), "")))
    assert sections(data) == ["Counts and values", "Lost"]
    text = read(data).text
    assert "@x[dd]: (1, 2)\n@x[cat]: (3, 4)" in text and "\n1 map\n" in text


def test_hostile_names_are_text_everywhere() -> None:
    names = [probe(number, symbol=name, location=name, condition=name) for number, name in enumerate(NASTY, 1)]
    data, text = shown(hostile(), *names)
    assert is_on_its_own(data)
    assert not {tag for tag, _ in read(data).tags} & {"img", "b"} and "<script>" in text
    assert [tag for tag, _ in read(data).tags].count("script") == 1
    evil = "</script><img src=x onerror=alert(1)>"
    recording = Recording(
        events=(Event(Source(1, evil), 10, 0, Thread(1, evil), ((evil, evil),), evil, (evil,)),),
        calls=(Call(Source(1, evil), 20, 30, 0, Thread(1, evil), ((evil, evil),)),),
        stacks=(Stack((evil,), 3),),
        measures=(
            Measure(Source(1, evil), "count", Number(1), evil, ((evil, evil),)),
            Measure(Source(1, evil), "hist", distribution(3), evil, ((evil, evil),)),
        ),
    )
    one = probe(1, symbol=evil, location=evil, name=evil, condition=evil, actions=(evil,), hits=1)
    printed = SessionMapView(f"@x: {evil}", "", f"@{evil}")
    data = encode(page(replace(found(recording, one, guest=GuestView(evil, 1, evil)), maps=(printed,))))
    parsed = read(data)
    assert is_on_its_own(data) and parsed.text.count(evil) > 20
    assert [tag for tag, _ in parsed.tags].count("script") == 1


def test_a_large_report_is_a_page_that_is_no_larger_than_others() -> None:
    """Long names, many probes, calls, stacks, events, keys and histograms."""
    names = [f"{number}_{'f' * 100}" for number in range(300)]
    sources = [Source(number, name) for number, name in enumerate(names)]
    recording = Recording(
        events=tuple(Event(source, 1000 * n, n % 16, text="x" * 300) for n, source in enumerate(sources)),
        calls=tuple(
            Call(sources[n % 300], 977 * n, 977 * n + (n * 7919) % 100_000, n % 16, Thread(n % 50, f"thread {n % 50}"))
            for n in range(6000)
        ),
        stacks=tuple(Stack((*names[number : number + 20],), 1) for number in range(280)),
        measures=tuple(
            Measure(source, word, value, f"{word} by key", (("key", source.place),))
            for source in sources
            for word, value in (("count", Number(1)), ("hist", distribution(*range(0, 10_000, 100))))
        ),
    )
    probes = [probe(number, symbol=name, hits=1) for number, name in enumerate(names)]
    whole = found(recording, *probes)
    data = fitting(partial(page, whole))
    size, unbounded = len(data), len(encode(page(whole)))
    assert LARGEST / 4 < size <= LARGEST and unbounded < 4 * LARGEST
    text = read(data).text
    for what in ("probes", "boxes", "maps", "histograms", "functions", "CPUs", "places"):
        assert re.search(rf"\band [\d,]+ {what} more", text), what
    assert drawings(data)


def test_what_has_no_room_is_counted() -> None:
    many = [probe(number, symbol=f"f{number}", hits=number) for number in range(ROWS + 7)]
    events = tuple(Event(READ, number, 0, text=f"record {number}") for number in range(RECORDS + 3))
    _, text = shown(Recording(events=events), *many)
    assert "and 7 probes more" in text and "and 3 earlier records more" in text
    assert f"record {RECORDS + 2}" in text and "record 2\n" not in text


def of_last(view: GatheredView) -> tuple[bytes, str]:
    data = fitting(partial(page, Found.of_last(view, GUEST, "2026-01-02 03:04 UTC")))
    return data, read(data).text


def graphed(*names: str, took: int = 1800, pid: int = 412) -> tuple[CallView, ...]:
    """A call in a call in a call."""
    return tuple(
        CallView(name, SECOND + 10 * level, SECOND + took - 10 * level, 0, 0, level, pid, "dd", (("count", 4096),))
        for level, name in enumerate(names)
    )


def test_a_graph_s_calls_are_drawn_in_the_order_of_time() -> None:
    calls = [call for took in (1800, 900, 2400) for call in graphed("vfs_read", "rw_verify_area", "f", took=took)]
    data, text = of_last(GatheredView("graph vfs_read", tuple(calls), lost=2, notes=("1 call had not returned.",)))
    assert sections(data) == ["Call graph", "Calls", "By CPU", "Lost"] and is_on_its_own(data)
    assert "optprobe graph vfs_read" in text and "9 calls" in text
    longest, typical, *_ = (one for one in drawings(data) if one.get("class") == "chart flame")
    boxes = [(box.get("x"), box.get("width"), box.get("y")) for box in longest.iter(f"{SVG}svg")][1:]
    assert boxes == [("0%", "100%", "0"), ("0.4167%", "99.1667%", "18"), ("0.8333%", "98.3333%", "36")]
    assert "The longest of 3 calls of vfs_read: 2.4us, dd 412, at 1.000000 s since boot" in text
    assert "median length, of 3 calls of vfs_read: 1.8us" in text and typical is not longest
    assert "\n2\nf\n+20ns\n2.36us\ncount=4096\n" in text, "the same as a table"
    assert "2 records found no room." in text and "1 call had not returned." in text


def test_one_call_of_a_graph_is_drawn_once() -> None:
    data, text = of_last(GatheredView("graph f", graphed("f", "g")))
    assert "The call of f: 1.8us" in text and "typical" not in text
    assert sum(one.get("class") == "chart flame" for one in drawings(data)) == 2, "the call, and the paths"


def test_a_latency_is_a_heat_map_over_its_intervals() -> None:
    intervals = [powers(*times) for times in ((300, 300, 5000), (), (600,))]
    total = tuple(map(sum, zip(*filter(None, intervals), strict=True)))
    view = GatheredView("latency vfs_read", function="vfs_read", words=total, intervals=tuple(intervals), every=0.5)
    data, text = of_last(view)
    assert sections(data) == ["Histograms", "Over time"] and is_on_its_own(data)
    (heat,) = (one for one in drawings(data) if one.get("class") == "chart heat")
    told = [title.text for title in heat.iter(f"{SVG}title")][1:]
    assert told == ["2 calls from 256ns, at 0", "1 call from 4.1us, at 0", "1 call from 512ns, at +1s"]
    assert "latency [vfs_read]" in text and "4 calls and 3 intervals" in text
    assert "\n0\n3\n512ns\n8.19us\n8.19us\n+500ms\n0\n+1s\n1\n1.02us\n" in re.sub(r"\n+", "\n", text)


def test_more_intervals_than_columns_are_added_up() -> None:
    view = GatheredView("latency f", function="f", intervals=(powers(300),) * 100, skipped=1000, every=1.0)
    data, text = of_last(view)
    (heat,) = (one for one in drawings(data) if one.get("class") == "chart heat")
    told = [title.text for title in heat.iter(f"{SVG}title")][1:]
    assert len(told) == 34 and told[0] == "3 calls from 256ns, at +1000s" and "Every 3s" in text


def test_waits_are_drawn_by_their_time_and_samples_by_their_number() -> None:
    stacks = StackView(("dd", "pipe_read"), 10, 3_000_000), StackView(("sh", "do_wait"), 30, 1_000_000)
    data, text = of_last(GatheredView("offcpu", stacks=stacks))
    assert sections(data) == ["Stacks"] and "Time of each stack" in text and "\n3ms\n75.0 %\n" in text
    _, text = of_last(GatheredView("profile", stacks=tuple(replace(one, time=None) for one in stacks)))
    assert "How often each stack was seen" in text and "\n30\n75.0 %\n" in text


def test_what_a_guest_calls_things_is_text_on_the_page_of_a_graph_too() -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    calls = tuple(replace(one, comm=evil, values=((evil, evil),)) for one in graphed(evil, evil))
    stacks = (StackView((evil,), 1, 5),)
    view = GatheredView(f"graph {evil}", calls, stacks, evil, powers(3), (powers(3),), every=1.0, notes=(evil,))
    data, text = of_last(view)
    assert is_on_its_own(data) and text.count(evil) > 20
    assert [tag for tag, _ in read(data).tags].count("script") == 1 and "img" not in {tag for tag, _ in read(data).tags}


def test_an_empty_graph_is_a_page_and_a_long_one_is_no_larger_than_others() -> None:
    data, text = of_last(GatheredView("graph f"))
    assert sections(data) == [] and "nothing" in text
    names = [f"{number}_{'f' * 90}" for number in range(150)]
    calls = tuple(call for pid in range(30) for call in graphed(*names, took=100_000 + pid, pid=pid))
    data, text = of_last(GatheredView("graph f", calls, stacks=(StackView(tuple(names), 1),)))
    assert LARGEST / 8 < len(data) <= LARGEST and re.search(r"and \d+ calls more", text)


def test_the_last_graph_is_a_page_where_it_is_asked_for_or_no_probe_is_there(tmp_path: Path) -> None:
    ended = shared_gdb(
        GRAPH, f"optprobe report -html {tmp_path}/alone", "optprobe add vfs_read",
        f"optprobe report -html {tmp_path}/probes", f"optprobe report -html {tmp_path}/last -last",
    )  # fmt: skip
    told = [line for line in ended.out.splitlines() if line.startswith("Wrote")]
    assert [line.partition(" to ")[0] for line in told] == [
        "Wrote a page of 2 calls", "Wrote a page of 1 probe", "Wrote a page of 2 calls",
    ], ended  # fmt: skip


@settings(max_examples=examples(40))
@given(RECORDINGS)
def test_whatever_was_recorded_is_a_page(recording: Recording) -> None:
    data = encode(page(found(recording)))
    assert is_on_its_own(data) and len(data) < LARGEST
    drawn = classes(data)
    assert ("chart flame" in drawn) >= any(stack.count and stack.frames for stack in recording.stacks)
    assert ("chart heat" in drawn) == bool(recording.calls)
    assert ("chart time" in drawn) == bool(recording.calls or [one for one in recording.events if one.time is not None])


def test_a_page_is_written_as_a_whole_and_what_is_in_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "all probes.html"
    ended = shared_gdb(
        "optprobe add vfs_read", "optprobe add gathers", f'optprobe report -clear -html "{file}"',
        f"optprobe report -top 1 -html {tmp_path}/one.html",
    )  # fmt: skip
    *_, first, second = ended.out.splitlines()
    size = len(file.read_bytes()) // 1000
    assert first == f"Wrote a page of 2 probes and 1 event to '{file}', {size} kB.", ended
    assert second.startswith("Wrote a page of 1 probe to ")
    text = read(file.read_bytes()).text
    assert "1,000" in text and "sum(count) by" in text and "UTC, by optprobe" in text
    assert "1,000" not in read((tmp_path / "one.html").read_bytes()).text, "cleared before"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == [file.name, "one.html"], "nothing is left aside"


def test_what_cannot_be_a_page(tmp_path: Path) -> None:
    nothing = shared_gdb("set optprobe exit-on-error off", f"optprobe report -html {tmp_path}/x")
    assert nothing.err.startswith("optprobe: there are no probes for a page\nHINT: optprobe add LOCATION")
    ended = shared_gdb(
        "set optprobe exit-on-error off", "optprobe add vfs_read", f"optprobe report -html {tmp_path}/no/file",
        f"optprobe report -html {tmp_path}",
    )  # fmt: skip
    errors = [line for line in ended.err.splitlines() if line.startswith("optprobe: ")]
    assert errors == [
        f"optprobe: '{tmp_path}/no/file' cannot be written: No such file or directory",
        f"optprobe: '{tmp_path}' is no file that can be replaced",
    ]
    assert not [*tmp_path.iterdir()]


def test_arguments() -> None:
    assert parse_selection("1 -html 'a b' -top 3", REPORT_OPTIONS).html == "a b"
    for other in ("-json", "-timeline", "-folded"):
        with pytest.raises(OptprobeError, match=f"{other} and -html exclude each other"):
            parse_selection(f"-html x {other}", REPORT_OPTIONS)
    assert parse_selection("-html x -last", REPORT_OPTIONS).last
    for typed, why in (("-last", "-last is for -html"), ("-html x -last 1", "-last takes no probes")):
        with pytest.raises(OptprobeError, match=why):
            parse_selection(typed, REPORT_OPTIONS)
    for typed in ("-html", "-html ''"):
        with pytest.raises(OptprobeError, match="-html needs"):
            parse_selection(typed, REPORT_OPTIONS)
