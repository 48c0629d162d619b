"""The time that calls took by themselves, without the calls in them, by the path that led there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.exports.recording import Recording
from gdb_optprobe.exports.tracks import Track, tracks

Path = tuple[str, ...]
"""The name of a track, and functions, the outermost first."""


@dataclass(slots=True)
class Own:
    """calls: how many. time: of all of them together, in nanoseconds."""

    calls: int = 0
    time: int = 0


def own_times(recording: Recording) -> Mapping[Path, Own]:
    found: dict[Path, Own] = {}
    for track in tracks(recording):
        _add(track, found)
    return dict(sorted(found.items()))


def _add(track: Track, found: dict[Path, Own]) -> None:
    path = [track.name]
    for placed in track.calls:
        call = placed.call
        del path[placed.depth + 1 :]
        if placed.depth:
            found[*path,].time -= call.end - call.begin
        path.append(call.source.place)
        own = found.setdefault((*path,), Own())
        own.calls += 1
        own.time += call.end - call.begin
