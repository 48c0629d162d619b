"""pprof's profile.proto, gzipped: of stacks, how often each was seen, and their time where it was taken; of calls, how
many, and their own time.

    Profile   1 sample_type {1 type, 2 unit}, 2 sample, 3 mapping, 4 location, 5 function, 6 string_table
    Sample    1 location_id, the innermost first; 2 value, one for each sample_type
    Mapping   1 id, 5 filename, 7 has_functions: the one there is, so that pprof looks for no program here
    Location  1 id, 2 mapping_id, 4 line {1 function_id}
    Function  1 id, 2 name

Texts are numbers in the table of strings, where the first is "".
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field

from gdb_optprobe.exports.own_time import own_times
from gdb_optprobe.exports.protobuf import data, integer, packed, text
from gdb_optprobe.exports.recording import Recording

MAPPING, PROGRAM = 1, "guest"


def encode(recording: Recording) -> bytes:
    profile = _Profile()
    if recording.stacks:
        is_timed = any(stack.time is not None for stack in recording.stacks)
        profile.type_of_sample("waits" if is_timed else "samples", "count")
        if is_timed:
            profile.type_of_sample("time", "nanoseconds")
        for stack in recording.stacks:
            profile.sample(stack.frames, (stack.count, stack.time or 0) if is_timed else (stack.count,))
    else:
        profile.type_of_sample("calls", "count")
        profile.type_of_sample("time", "nanoseconds")
        for path, own in own_times(recording).items():
            profile.sample(path, (own.calls, own.time))
    # Without a time in it, the same profile is the same bytes.
    return gzip.compress(profile.encode(), mtime=0)


@dataclass(slots=True)
class _Profile:
    """places: numbers of locations, and of their functions, by name; from 1 on."""

    samples: list[bytes] = field(default_factory=list)
    strings: dict[str, int] = field(default_factory=lambda: {"": 0})
    places: dict[str, int] = field(default_factory=dict)

    def type_of_sample(self, what: str, unit: str) -> None:
        self.samples.append(data(1, integer(1, self._string(what)) + integer(2, self._string(unit))))

    def sample(self, path: tuple[str, ...], values: tuple[int, ...]) -> None:
        """Add a sample. path: functions, the outermost first."""
        places = [self.places.setdefault(name, len(self.places) + 1) for name in reversed(path)]
        self.samples.append(data(2, packed(1, places) + packed(2, values)))

    def encode(self) -> bytes:
        functions = [integer(1, number) + integer(2, self._string(name)) for name, number in self.places.items()]
        lines = (data(4, integer(1, number)) for number in self.places.values())
        numbers = (integer(1, number) + integer(2, MAPPING) for number in self.places.values())
        locations = [number + line for number, line in zip(numbers, lines, strict=True)]
        mapping = integer(1, MAPPING) + integer(5, self._string(PROGRAM)) + integer(7, True)
        places = [data(3, mapping), *(data(4, one) for one in locations), *(data(5, one) for one in functions)]
        return b"".join([*self.samples, *places, *(text(6, one) for one in self.strings)])

    def _string(self, one: str) -> int:
        return self.strings.setdefault(one, len(self.strings))
