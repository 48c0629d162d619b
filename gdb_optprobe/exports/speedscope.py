"""speedscope's own JSON (its file-format-schema.json): a profile for each track of calls, and one of the stacks.

    {"shared": {"frames": [{"name": "vfs_read"}]},
     "profiles": [{"type": "evented", …, "events": [{"type": "O", "frame": 0, "at": 0}, {"type": "C", …}]},
                  {"type": "sampled", …, "samples": [[0]], "weights": [12]}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gdb_optprobe.exports.recording import Recording, Stack
from gdb_optprobe.exports.tracks import Track, edges, tracks

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_Profile = Mapping[str, object]


def encode(recording: Recording) -> bytes:
    frames: dict[str, int] = {}
    profiles = [_calls(track, frames) for track in tracks(recording) if track.calls]
    if recording.stacks:
        profiles.insert(0, _stacks(recording.stacks, frames))
    shared = {"frames": [{"name": name} for name in frames]}
    found = {"$schema": SCHEMA, "exporter": "optprobe", "shared": shared, "profiles": profiles}
    return f"{json.dumps(found)}\n".encode()


def _calls(track: Track, frames: dict[str, int]) -> _Profile:
    found = [*edges(track.calls)]
    start = found[0].time
    events = [
        {
            "type": "O" if edge.begins else "C",
            "frame": _frame(edge.placed.call.source.place, frames),
            "at": edge.time - start,
        }
        for edge in found
    ]
    name = f"{track.name} ({track.number})" if track.process else track.name
    span = {"startValue": 0, "endValue": found[-1].time - start}
    return {"type": "evented", "name": name, "unit": "nanoseconds", **span, "events": events}


def _stacks(stacks: Sequence[Stack], frames: dict[str, int]) -> _Profile:
    samples = [[_frame(name, frames) for name in one.frames] for one in stacks]
    weights = [one.weight for one in stacks]
    span = {"startValue": 0, "endValue": sum(weights)}
    unit = "nanoseconds" if any(one.time is not None for one in stacks) else "none"
    return {"type": "sampled", "name": "stacks", "unit": unit, **span, "samples": samples, "weights": weights}


def _frame(name: str, frames: dict[str, int]) -> int:
    return frames.setdefault(name, len(frames))
