"""Trees of calls as the lines that Linux's tracer function_graph prints.

     1)               |  vfs_read() {
     1)   2.624 us    |    __rcu_read_lock();
     1) ! 203.512 us  |  }
    CPU  mark, duration  two spaces a level
A tree is printed whole, when its root has returned; Linux mixes the lines of all CPUs by time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

from gdb_optprobe.guest_text import until_zero
from gdb_optprobe.probes.graph.trees import Call, Ending, Tree

_MARKS = ((10**9, "$"), (10**8, "@"), (10**7, "*"), (10**6, "#"), (10**5, "!"), (10**4, "+"))
"""Of a call that takes more nanoseconds than these."""
_DIGITS = 7
"""Of microseconds, with the decimals."""
_RULE = " ------------------------------------------"
_THREAD = 14
_NAME = 7
_ERRORS = (1 << 64) - 4095
"""A word from there on is an error's number: IS_ERR_VALUE, include/linux/err.h."""

Arguments = Callable[[int, Sequence[int]], str]
"""The arguments of a function, by its number, in parentheses."""


@dataclass
class GraphText:
    """name: of a function, by its number. nanoseconds: of ticks. cpus: how many the guest has. depth: of what is shown.

    arguments: None where they are not shown. value: what a function returned, of a register's word; None where that is
    not shown. tails: whether a brace has the function's name. threads: whether each line has the thread.
    """

    name: Callable[[int], str]
    nanoseconds: Callable[[int], int]
    cpus: int
    depth: int = 1 << 30
    arguments: Arguments | None = None
    value: Callable[[int, int], int | None] = lambda function, word: None
    tails: bool = False
    threads: bool = False
    _last: dict[int, Tree] = field(default_factory=dict)

    def header(self) -> Iterator[str]:
        """Yield the lines in front of all."""
        yield "# tracer: function_graph"
        yield "#"
        thread = ("  TASK/PID       ", "   |    |        ") if self.threads else ("", "")
        yield f"# CPU{thread[0]}  DURATION                  FUNCTION CALLS"
        yield f"# |  {thread[1]}   |   |                     |   |   |   |"

    def lines(self, tree: Tree) -> Iterator[str]:
        """Yield the lines of a tree."""
        yield from self._call(tree.root, tree, 0)
        comments = [tree.ending.value] if tree.ending is Ending.LOST else []
        comments += ["calls through pointers may lack"] if tree.is_early else []
        for comment in comments:
            yield f"{self._cpu(tree.root.cpu)}{' ' * _THREAD}|  /* {comment} */"

    def _call(self, call: Call, tree: Tree, level: int) -> Iterator[str]:
        yield from self._change(call.cpu, tree)
        name, indent = self.name(call.function), "  " * level
        inside = call.calls if level < self.depth else []
        brackets = self.arguments(call.function, call.arguments) if self.arguments is not None else "()"
        end = call.end
        word = self.value(call.function, end[2]) if end is not None else None
        value = f" = {_value(word)}" if word is not None else ""
        if end is not None and not inside and end[0] == call.cpu:
            comment = f" /*{value} */" if value else ""
            yield f"{self._front(call.cpu, tree)}{self._took(call)}|  {indent}{name}{brackets};{comment}"
        else:
            yield f"{self._front(call.cpu, tree)}{' ' * _THREAD}|  {indent}{name}{brackets} {{"
            yield from self._calls(inside, tree, level + 1)
            if end is not None:
                yield from self._change(end[0], tree)
                comment = f" /* {name}{value} */" if value or self.tails else ""
                yield f"{self._front(end[0], tree)}{self._took(call)}|  {indent}}}{comment}"

    def _calls(self, calls: Sequence[Call], tree: Tree, level: int) -> Iterator[str]:
        """Yield the lines of calls one after the other, those of interrupts between marks."""
        numbers = accumulate(call.begins for call in calls)
        interrupts = iter([number if call.is_interrupt else None for number, call in zip(numbers, calls, strict=True)])
        for interrupt, some in groupby(calls, lambda _: next(interrupts)):
            is_interrupt = interrupt is not None
            first, *others = some
            if is_interrupt:
                yield from self._change(first.cpu, tree)
                yield f"{self._front(first.cpu, tree)}  ==========> |"
            for call in (first, *others):
                yield from self._call(call, tree, level)
                last = call.end
            if is_interrupt and last is not None:
                yield f"{self._front(last[0], tree)}  <========== |"

    def _change(self, cpu: int, tree: Tree) -> Iterator[str]:
        """Yield what tells that a CPU has another thread now."""
        before, self._last[cpu] = self._last.get(cpu), tree
        if before is not None and before.pid != tree.pid:
            yield _RULE
            yield f"{self._cpu(cpu)}{_thread(before)} => {_thread(tree)}"
            yield _RULE
            yield ""

    def _front(self, cpu: int, tree: Tree) -> str:
        return f"{self._cpu(cpu)}{_thread(tree)} | " if self.threads else self._cpu(cpu)

    def _cpu(self, cpu: int) -> str:
        return f" {cpu:{len(str(self.cpus - 1))}}) "

    def _took(self, call: Call) -> str:
        ticks = call.ticks
        assert ticks is not None, "it has returned"
        return duration(self.nanoseconds(ticks))


def duration(nanoseconds: int) -> str:
    """Return the column of a duration, with its mark."""
    mark = next((mark for least, mark in _MARKS if nanoseconds > least), " ")
    whole, rest = divmod(nanoseconds, 1000)
    digits = str(whole)
    if (room := _DIGITS - len(digits)) > 0:
        digits += f".{f'{rest:03}'[:room]}"
    return f"{mark} {digits} us {' ' * (_DIGITS + 1 - len(digits))}"


def _value(word: int) -> str:
    """Return what a function has returned, as Linux shows it: an error as a number, all else in hexadecimal."""
    widened = word | 0xFFFF_FFFF_0000_0000 if word >> 31 == 1 else word
    return str(widened - (1 << 64)) if widened >= _ERRORS else f"{word:#x}"


def _thread(tree: Tree) -> str:
    shown = f"{until_zero(tree.comm[:_NAME])}-{tree.pid}"
    spaces = max(0, _THREAD - len(shown))
    return f"{' ' * (spaces // 2)}{shown}{' ' * (spaces - spaces // 2)}"
