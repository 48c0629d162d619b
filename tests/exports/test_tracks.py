"""Calls nest on their tracks, whatever was recorded; their own times add up."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as some

from gdb_optprobe.exports.own_time import own_times
from gdb_optprobe.exports.recording import Call, Recording, Source, Thread
from gdb_optprobe.exports.tracks import BEYOND_THREADS, edges, tracks
from tests.exports.recordings import READ, VERIFY, WHOLE

THREADS = [None, Thread(0, "swapper/0"), Thread(7, "dd", 5), Thread(8), Thread(BEYOND_THREADS), Thread(-1)]


@some.composite
def calls(draw: some.DrawFn) -> Call:
    begin, took = draw(some.integers(0, 20)), draw(some.integers(0, 20))
    source, thread = Source(1, draw(some.sampled_from("fgh"))), draw(some.sampled_from(THREADS))
    depth = draw(some.none() | some.integers(0, 2))
    return Call(source, begin, begin + took, draw(some.integers(0, 1)), thread, depth=depth)


def test_threads_first_then_cpus_and_lanes_behind_them() -> None:
    found = tracks(WHOLE)
    assert [(one.name, one.process) for one in found] == [
        ("dd", 412), ("cat", 400), ("CPU 0", 0), ("CPU 1", 0), ("CPU 1 (2)", 0),
    ]  # fmt: skip
    assert [one.number for one in found] == [412, 413, *range(BEYOND_THREADS, BEYOND_THREADS + 3)]
    dd = found[0]
    assert [(one.call.source.place, one.depth) for one in dd.calls] == [
        ("vfs_read", 0), ("rw_verify_area", 1), ("vfs_read", 0),
    ]  # fmt: skip
    assert [len(one.events) for one in found] == [1, 0, 1, 1, 0], "the one without a time is on none"


@given(some.lists(calls(), max_size=30))
def test_every_call_is_on_one_track_and_nests_there(found: list[Call]) -> None:
    made = tracks(Recording(calls=tuple(found)))
    assert len({one.number for one in made}) == len(made)
    placed = [one.call for track in made for one in track.calls]
    ends = [[(one.end, one.cpu, one.thread, one.source) for one in some] for some in (placed, found)]
    assert sorted(ends[0], key=repr) == sorted(ends[1], key=repr)
    for track in made:
        open: list[Call] = []
        last = 0
        for edge in edges(track.calls):
            assert edge.time >= last, "in the order of time"
            last = edge.time
            if edge.begins:
                assert len(open) == edge.placed.depth
                open.append(edge.placed.call)
            else:
                assert open.pop() is edge.placed.call
        assert not open


def test_a_call_that_seems_to_begin_in_another_and_ends_last_is_around_it() -> None:
    dd = Thread(7, "dd")
    late, inner, apart = Call(READ, 5, 20, 0, dd), Call(VERIFY, 3, 9, 0, dd), Call(VERIFY, 20, 30, 0, dd)
    (track,) = tracks(Recording(calls=(late, inner, apart)))
    assert [(one.call, one.depth) for one in track.calls] == [(replace(late, begin=3), 0), (inner, 1), (apart, 0)]
    # Of a CPU, it is not known that they are of one thread.
    assert len(tracks(Recording(calls=tuple(replace(one, thread=None) for one in (late, inner))))) == 2


def test_where_depths_are_known_nothing_is_guessed() -> None:
    """By their times alone, what takes none would be behind the call that it is in."""
    dd = Thread(7, "dd")
    outer, inner = Call(READ, 5, 9, 0, dd, depth=0), Call(VERIFY, 9, 9, 0, dd, depth=1)
    (track,) = tracks(Recording(calls=(outer, inner)))
    assert [(one.call, one.depth) for one in track.calls] == [(outer, 0), (inner, 1)]
    (track,) = tracks(Recording(calls=(replace(outer, depth=None), replace(inner, depth=None))))
    assert [one.depth for one in track.calls] == [0, 0]
    # They are not believed where they cannot be.
    (track,) = tracks(Recording(calls=(inner, outer)))
    assert [one.depth for one in track.calls] == [0, 0]


@given(some.lists(calls(), max_size=30))
def test_calls_that_nest_stay_as_they_are(found: list[Call]) -> None:
    once = [one.call for track in tracks(Recording(calls=tuple(found))) for one in track.calls]
    again = [one.call for track in tracks(Recording(calls=tuple(once))) for one in track.calls]
    assert again == once
    threads = {one.thread.id for one in found if one.thread is not None and 0 < one.thread.id < BEYOND_THREADS}
    assert len([one for one in tracks(Recording(calls=tuple(found))) if one.process]) == len(threads), "no lanes"


@given(some.lists(calls(), max_size=30))
def test_own_times_add_up_to_those_of_the_outer_calls(found: list[Call]) -> None:
    recording = Recording(calls=tuple(found))
    own = own_times(recording)
    outer = [one.call for track in tracks(recording) for one in track.calls if not one.depth]
    assert sum(one.time for one in own.values()) == sum(call.end - call.begin for call in outer)
    assert all(one.time >= 0 for one in own.values())
    assert sum(one.calls for one in own.values()) == len(found)
