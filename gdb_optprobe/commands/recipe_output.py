"""What `optprobe offcpu`, `profile`, `latency` and `calls` print of their scripts' maps. No GDB here.

    maps ──► Row: thread, stacks, words ──► a table, the most first
                                       ├──► folded: thread;outermost;…;innermost COUNT, for flame graphs
                                       └──► JSON lines, of all rows
A latency has a line for each interval, a column for each power of two:
     time        calls     1us       1ms       1s
     0.5s      140,301 | @+.......... ...           |
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, zip_longest
from typing import Protocol

from gdb_optprobe.commands.aggregates import duration, histogram
from gdb_optprobe.commands.recipe_arguments import RecipeArguments
from gdb_optprobe.commands.recipes import CALLS, LATENCY, OFFCPU, PROFILE, SWITCHED, UNTIMED
from gdb_optprobe.commands.render_text import table
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.handlers.script.output import Contents, Names, TextOutput
from gdb_optprobe.handlers.script.types import Stack, Tuple, Type, bytes_of
from gdb_optprobe.maps.aggregate import Bucket, Powers, buckets, quantile
from gdb_optprobe.probes.views import NANOSECONDS, GatheredView, StackView

FIRST, LAST = 7, 34
"""The columns of a latency, by powers of two: 128 ns to 17 s. The outermost ones have the calls beyond, too."""
SHADES = ".:-=+*#%@"
"""@: half of the fullest column's calls and more; each before it: half of that."""
_MARKS = {10: "1us", 20: "1ms", 30: "1s"}
LATENCY_TOTAL = "latency_total"
"""The JSON line of all intervals."""
_PERCENTS = (50, 90, 99)
_UNTIMED = "not timed: they had begun before, or another call ran within"
MOST_INTERVALS = 1024
"""Of a latency that are kept, the newest ones."""
_SEPARATOR = ";"


@dataclass(frozen=True, slots=True)
class Row:
    """A key of a map with its words. stacks: frames without offsets, the innermost first."""

    thread: str
    stacks: tuple[tuple[str, ...], ...]
    words: Sequence[int]


class Shown(Protocol):
    """What is made of the maps."""

    def taken(self, name: str, rows: Sequence[Row], is_over: bool) -> str:
        """Take what a map has, each time that the script prints it, and when it is over; return what is printed then.
        """

    def ended(self) -> str:
        """Return what is printed at the end."""

    def gathered(self) -> GatheredView:
        """Return what is there for export."""


class RecipeOutput(TextOutput):
    """Gives maps to `shown`; all else that a script prints is bpftrace's text."""

    def __init__(self, names: Names, shown: Shown) -> None:
        super().__init__(names)
        self._shown = shown
        self._is_over = False

    def before_maps(self) -> str:
        self._is_over = True
        return ""

    def map(self, contents: Contents, top: int = 0, divisor: int = 1) -> str:
        rows = [self._row(contents.type.key, key, words) for key, words in contents.words.items()]
        return self._shown.taken(contents.name.removeprefix("@"), rows, self._is_over)

    def _row(self, type_: Type | None, key: bytes, words: Sequence[int]) -> Row:
        thread, stacks = "", list[tuple[str, ...]]()
        for part in type_.parts if isinstance(type_, Tuple) else (type_,) if key and type_ is not None else ():
            data, key = key[: bytes_of(part)], key[bytes_of(part) :]
            if isinstance(part, Stack):
                lines = (line.strip() for line in self.text(part, data).splitlines())
                stacks.append(tuple(one_line(line).partition("+")[0] for line in lines if line))
            else:
                thread = one_line(self.text(part, data))
        return Row(thread, tuple(stacks), words)


def shown(command: str, args: RecipeArguments, width: int) -> Shown:
    """Return what a command makes of its maps. width: of a line, 0 for unlimited."""
    made: Mapping[str, Callable[[], Shown]] = {
        OFFCPU: partial(_Rows, OFFCPU, args, width, _OffCpu(args.by_stack)),
        PROFILE: partial(_Rows, PROFILE, args, width, _Profile()),
        CALLS: partial(_Rows, CALLS, args, width, _Calls(args.function)),
        LATENCY: partial(_Latency, args),
    }
    return made[command]()


class _Form(Protocol):
    """How rows are shown. titles: of their table; right: its columns of numbers."""

    @property
    def titles(self) -> tuple[str, ...]: ...

    @property
    def right(self) -> tuple[str, ...]: ...

    def weight(self, row: Row) -> int:
        """Return what rows are ordered by, and what a flame graph has of them."""

    def time(self, row: Row) -> int | None:
        """Return the nanoseconds of a row; None where no time was taken."""

    def cells(self, rows: Sequence[Row]) -> Sequence[tuple[str, ...]]:
        """Return the rows of a table."""

    def json(self, row: Row) -> Mapping[str, object]: ...


class _Rows:
    """Shows rows once, at the end."""

    def __init__(self, name: str, args: RecipeArguments, width: int, form: _Form) -> None:
        self._name, self._args, self._width, self._form = name, args, width or sys.maxsize, form
        self._rows: list[Row] = []

    def taken(self, name: str, rows: Sequence[Row], is_over: bool) -> str:
        if name == self._name:
            words: dict[tuple[str, tuple[tuple[str, ...], ...]], Sequence[int]] = {}
            for row in rows:  # those that differ in offsets alone are one
                key = row.thread, row.stacks
                words[key] = [a + b for a, b in zip_longest(words.get(key, ()), row.words, fillvalue=0)]
            found = [Row(*key, some) for key, some in words.items()]
            self._rows = sorted(found, key=lambda row: (-self._form.weight(row), row.thread, row.stacks))
        return ""

    def ended(self) -> str:
        if self._args.json:
            lines = [json.dumps({"type": self._name, **self._form.json(row)}) for row in self._rows]
        elif self._args.folded:
            lines = [_folded(row, self._form.weight(row)) for row in self._rows]
        else:
            lines = self._table()
        return "".join(f"{line}\n" for line in lines)

    def gathered(self) -> GatheredView:
        stacks = (StackView(_frames(row), row.words[0], self._form.time(row)) for row in self._rows)
        return GatheredView(f"{self._name} {self._args.function}".strip(), stacks=tuple(stacks))

    def _table(self) -> list[str]:
        found = self._form.cells(self._rows)
        if not found:
            return ["nothing yet"]
        most = found[: self._args.top]
        lines = table(self._form.titles, [(cells, ()) for cells in most], self._width, self._form.right)
        left = len(found) - len(most)
        return [*lines, *([f"… and {left:,} more: -top {len(found)}"] if left else [])]


def _folded(row: Row, weight: int) -> str:
    """Return a line of flamegraph.pl: the program's frames below the kernel's."""
    return f"{_SEPARATOR.join(part.replace(_SEPARATOR, ':') for part in _frames(row))} {weight}"


def _frames(row: Row) -> tuple[str, ...]:
    """Return thread, program and kernel, from the outside in."""
    return (row.thread, *(frame for stack in row.stacks for frame in reversed(stack)))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%"


def _path(stack: Sequence[str]) -> str:
    return " / ".join(stack)


class _OffCpu:
    """Words: how often, and nanoseconds."""

    def __init__(self, by_stack: bool) -> None:
        self._by_stack = by_stack
        self.titles: tuple[str, ...] = ("Time", "Count", "Average", "Thread", *(("Where",) if by_stack else ()))
        self.right: tuple[str, ...] = ("Time", "Count", "Average")

    def weight(self, row: Row) -> int:
        return row.words[1]

    def time(self, row: Row) -> int | None:
        return row.words[1]

    def cells(self, rows: Sequence[Row]) -> Sequence[tuple[str, ...]]:
        return [self._cells(row) for row in rows]

    def _cells(self, row: Row) -> tuple[str, ...]:
        count, time = row.words
        cells = (duration(time), f"{count:,}", duration(time // count), row.thread)
        return (*cells, _path(self._callers(row))) if self._by_stack else cells

    def _callers(self, row: Row) -> tuple[str, ...]:
        """Return the stack without the end of the switch, which all have."""
        (stack,) = row.stacks
        return stack[1:] if stack[:1] and stack[0].startswith(SWITCHED) else stack

    def json(self, row: Row) -> Mapping[str, object]:
        count, time = row.words
        found = {"comm": row.thread, "count": count, "nanoseconds": time}
        return {**found, "frames": [*self._callers(row)]} if self._by_stack else found


class _Profile:
    """Words: samples. The first stack is the program's, the second the kernel's, empty where the program ran."""

    titles: tuple[str, ...] = ("Samples", "Share", "Thread", "In", "Function")
    right: tuple[str, ...] = ("Samples", "Share")

    def weight(self, row: Row) -> int:
        return row.words[0]

    def time(self, row: Row) -> int | None:
        return None

    def cells(self, rows: Sequence[Row]) -> Sequence[tuple[str, ...]]:
        """Return a row for each function that was running."""
        samples: dict[tuple[str, str, str], int] = {}
        for row in rows:
            user, kernel = row.stacks
            where = ("kernel", kernel[0]) if kernel else ("program", user[0] if user else "(not known)")
            samples[row.thread, *where] = samples.get((row.thread, *where), 0) + row.words[0]
        whole = sum(samples.values())
        ordered = sorted(samples.items(), key=lambda one: (-one[1], one[0]))
        return [(f"{count:,}", _share(count, whole), *key) for key, count in ordered]

    def json(self, row: Row) -> Mapping[str, object]:
        user, kernel = row.stacks
        return {"comm": row.thread, "samples": row.words[0], "user_frames": [*user], "kernel_frames": [*kernel]}


class _Calls:
    """Words: calls. The innermost frame is the function itself."""

    titles: tuple[str, ...] = ("Calls", "Share", "Thread", "Called from")
    right: tuple[str, ...] = ("Calls", "Share")

    def __init__(self, function: str) -> None:
        self._function = function

    def weight(self, row: Row) -> int:
        return row.words[0]

    def time(self, row: Row) -> int | None:
        return None

    def cells(self, rows: Sequence[Row]) -> Sequence[tuple[str, ...]]:
        whole = sum(row.words[0] for row in rows)
        return [
            (f"{row.words[0]:,}", _share(row.words[0], whole), row.thread, _path(row.stacks[0][1:])) for row in rows
        ]

    def json(self, row: Row) -> Mapping[str, object]:
        frames = [*row.stacks[0][1:]]
        return {"function": self._function, "comm": row.thread, "count": row.words[0], "frames": frames}


class _Latency:
    """Words: a histogram of nanoseconds. It begins anew with each interval."""

    def __init__(self, args: RecipeArguments) -> None:
        self._args, self._histogram = args, Powers(True)
        self._total: tuple[int, ...] = ()
        self._intervals: deque[tuple[int, ...]] = deque(maxlen=MOST_INTERVALS)
        self._untimed = self._ended = self._kept = 0

    def taken(self, name: str, rows: Sequence[Row], is_over: bool) -> str:
        if name == UNTIMED:
            self._untimed = sum(row.words[0] for row in rows)
        if name != LATENCY:
            return ""
        words: Sequence[int] = rows[0].words if rows else ()
        self._total = tuple(sum(both) for both in zip_longest(self._total, words, fillvalue=0))
        self._ended += 1
        if is_over and not any(words):
            return ""
        self._intervals.append(tuple(words))
        self._kept += 1
        # The last interval is shorter than the others.
        end = None if is_over else round(self._args.every * self._ended, 3)
        if self._args.json:
            return self._line(LATENCY, {"seconds": end}, words)
        head = f"{_ruler()}\n" if self._ended == 1 else ""
        when = "the rest" if end is None else f"{end:g}s"
        return f"{head}{when:>9} {sum(words):>12,} |{_shades(self._columns(words))}|\n"

    def _line(self, type_: str, more: Mapping[str, object], words: Sequence[int]) -> str:
        found = self._buckets(words)
        some = [{"low": one.low, "high": one.high, "count": one.count} for one in found if one.count]
        line = {"type": type_, "function": self._args.function, **more, "count": sum(words), "buckets": some}
        return f"{json.dumps(line)}\n"

    def _buckets(self, words: Sequence[int]) -> Sequence[Bucket]:
        return buckets(self._histogram, tuple(words)) if words else ()

    def _columns(self, words: Sequence[int]) -> list[int]:
        found = [0] * (LAST - FIRST + 1)
        for one in self._buckets(words):
            power = (one.low or 1).bit_length() - 1
            found[min(max(power, FIRST), LAST) - FIRST] += one.count
        return found

    def gathered(self) -> GatheredView:
        function = self._args.function
        return GatheredView(
            f"{LATENCY} {function}",
            function=function,
            words=self._total,
            intervals=tuple(self._intervals),
            skipped=self._kept - len(self._intervals),
            every=self._args.every,
            notes=(f"{self._untimed:,} calls were {_UNTIMED}.",) if self._untimed else (),
        )

    def ended(self) -> str:
        if self._args.json:
            return self._line(LATENCY_TOTAL, {"untimed": self._untimed}, self._total)
        lines = [f"{self._args.function}: {sum(self._total):,} calls"]
        if sum(self._total):
            found = self._buckets(self._total)
            below = [(percent, quantile(found, percent)) for percent in _PERCENTS]
            parts = [f"{percent}% below {duration(one.high)}" for percent, one in below if one and one.high]
            lines = [f"{lines[0]}; {', '.join(parts)}", *histogram(self._histogram, self._total, NANOSECONDS)]
        if self._untimed:
            lines.append(f"({self._untimed:,} {_UNTIMED})")
        return "".join(f"{line}\n" for line in lines)


def _ruler() -> str:
    """Return the line above the columns, with marks where a power of ten begins, nearly."""
    line, places = [" "] * (LAST - FIRST + 4), {power - FIRST: text for power, text in _MARKS.items()}
    for at, text in places.items():
        line[at : at + len(text)] = text
    return f"{'time':>9} {'calls':>12}  {''.join(line).rstrip()}"


def _shades(columns: Sequence[int]) -> str:
    most = max(columns)
    floors = [*accumulate(SHADES[1:], lambda floor, _: floor / 2, initial=most / 2)][: len(SHADES) - 1]
    return "".join(_shade(count, floors) for count in columns)


def _shade(count: int, floors: Sequence[float]) -> str:
    if not count:
        return " "
    below = sum(count < floor for floor in floors)
    return SHADES[len(SHADES) - 1 - below]
