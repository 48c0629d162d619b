"""The base of every subcommand: arguments, a session, an output, and errors that end in one clear line."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Generic, Protocol, TypeVar

import gdb

from gdb_optprobe.commands.at_once import can_print_at_once
from gdb_optprobe.commands.options import Run, Selection
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.render_json import Json
from gdb_optprobe.commands.render_text import Text
from gdb_optprobe.debugger import attach
from gdb_optprobe.debugger.interrupter import is_running
from gdb_optprobe.debugger.messages import beside, note
from gdb_optprobe.debugger.parameters import current_settings
from gdb_optprobe.errors import NeedsStop, OptprobeError
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest_text import lines
from gdb_optprobe.handlers.source import legible
from gdb_optprobe.interrupts import held
from gdb_optprobe.probes.follower import Follower
from gdb_optprobe.probes.sampler import Sampler
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.views import (
    CollectorView,
    ExplainView,
    GatheredView,
    GuestTraceView,
    ProbeView,
    SavedProbes,
    SessionMapView,
    ShowView,
)


class Session(Protocol):
    """The part of a session that commands use. `numbers` of None means all; an unknown number raises OptprobeError."""

    @property
    def last_number(self) -> int | None: ...

    @property
    def gathered(self) -> GatheredView | None: ...

    def add(self, *specs: Spec) -> Sequence[ProbeView]: ...

    def views(self, numbers: Sequence[int] | None) -> Sequence[ProbeView]: ...

    def reports(self, numbers: Sequence[int] | None) -> Sequence[ProbeView]: ...

    def maps(self, numbers: Sequence[int] | None) -> Sequence[SessionMapView]: ...

    def show(self, number: int) -> ShowView: ...

    def explain(self, *specs: Spec) -> tuple[ExplainView, ...]: ...

    def enable(self, numbers: Sequence[int] | None) -> tuple[int, ...]: ...

    def disable(self, numbers: Sequence[int] | None) -> tuple[int, ...]: ...

    def delete(self, numbers: Sequence[int] | None) -> tuple[int, ...]: ...

    def clear(self, numbers: Sequence[int] | None) -> None: ...

    def hits(self, number: int) -> int: ...

    def missed(self, number: int) -> int: ...

    def commit(self, timeout: float, tell: Callable[[str], object]) -> Sequence[str]: ...

    def printed_traces(self) -> Sequence[GuestTraceView]: ...

    def collector(self) -> CollectorView | None: ...

    def check(self) -> Sequence[str]: ...

    def untraced(self) -> Sequence[str]: ...

    def saved(self) -> SavedProbes: ...

    def run(
        self,
        seconds: float | None,
        until_hits: tuple[int, int] | None,
        timeout: float | None,
        guest: str,
        every: float | None,
        then: Callable[[bool], float | None],
        live: LiveMemory | None,
    ) -> str: ...

    def follower(
        self, numbers: Sequence[int] | None, show: Callable[[Sequence[ProbeView]], object]
    ) -> Follower: ...

    def sampler(self, pattern: str) -> Sampler: ...

    def live_memory(self) -> tuple[LiveMemory | None, str]: ...

    def checked(
        self, live: LiveMemory | None, warn: Callable[[str], object]
    ) -> AbstractContextManager[None]: ...

    @property
    def stopped_memory(self) -> Memory: ...

    def is_same_guest(self) -> bool: ...

    def watch(
        self,
        look: Callable[[Memory, bool], bool],
        live: LiveMemory | None,
        every: float,
        seconds: float | None,
        keys: int | None,
    ) -> str: ...

    def value_of(self, expression: str) -> Sequence[str]: ...

    def type_of(self, expression: str) -> Sequence[str]: ...

    def matches(self, prefix: str) -> Sequence[str]: ...

    def members(self, spec: Spec, expression: str) -> Sequence[str]: ...


class Arguments(Protocol):
    @property
    def json(self) -> bool: ...


_Args = TypeVar("_Args", bound=Arguments)


class Subcommand(gdb.Command, Generic[_Args]):
    """One `optprobe WORD`: parse, call, print. The docstring of each subclass is its help."""

    word: ClassVar[str]

    def __init__(self) -> None:
        super().__init__(f"optprobe {self.word}", gdb.COMMAND_BREAKPOINTS)
        self._called_from_python = False

    def parse(self, text: str) -> _Args:
        raise NotImplementedError

    def run(self, args: _Args, out: Output) -> None:
        raise NotImplementedError

    def candidates(self, text: str) -> int | Sequence[str]:
        """Return completions for the end of `text`: whole words, or one of GDB's own completers."""
        return ()

    @property
    def session(self) -> Session:
        return attach.current_session()

    @contextmanager
    def reading(self) -> Iterator[tuple[Session, bool]]:
        """Yield the session, to read alone, and whether the guest runs; then a line is printed of how it is read.

        Raises OptprobeError, also in place of NeedsStop.
        """
        if not is_running():
            yield self.session, False
            return
        session, machine, live = attach.running_session()
        try:
            with machine.reading(live):
                yield session, True
        except NeedsStop as error:
            raise OptprobeError(f"{attach.RUNNING}, and this needs it stopped: {error}", attach.INTERRUPT) from None
        note(f"read by {live.name} while the guest runs; values may differ by the hits under way")

    def session_for(self, specs: Sequence[Spec]) -> Session:
        """Return the session for an `add` of `specs`, which may wait for the guest's kernel to start."""
        return attach.current_session(pending=any(spec.pending for spec in specs))

    def invoke(self, argument: str, from_tty: bool) -> None:
        self.dont_repeat()
        # gdb.execute may return what is printed to its caller.
        self._called_from_python = sys._getframe().f_back is not None
        with held():
            guarded(lambda: self._invoke(argument))

    def _invoke(self, argument: str) -> None:
        args = self.parse(legible(argument))
        with beside(json=args.json):
            self.run(args, self.output(args))

    def output(self, args: _Args, write: Callable[[str], object] = gdb.write) -> Output:
        """Return what prints the results. write: gets the text."""
        return Json(write) if args.json else Text(write, colour(), _width())

    @property
    def prints_at_once(self) -> bool:
        """Return whether text may come while the guest runs."""
        return can_print_at_once(self._called_from_python)

    def live_memory(self, session: Session) -> LiveMemory | None:
        """Return what reads the guest while it runs; None where only stops can, or nothing may be printed meanwhile."""
        return session.live_memory()[0] if self.prints_at_once else None

    def complete(self, text: str, word: str | None) -> int | Sequence[str]:
        try:
            candidates = self.candidates(text)
        except (OptprobeError, gdb.error):
            return ()
        if isinstance(candidates, int) or word is None:
            return candidates if isinstance(candidates, int) else ()
        # GDB splits words at dashes too, and takes the part after the dash.
        typed = last_word(text)
        cut = len(typed) - len(word)
        return [candidate[cut:] for candidate in candidates if candidate.startswith(typed)]


def guarded(act: Callable[[], None]) -> None:
    """Run `act`. Any failure ends as a gdb.GdbError of one clear line, never as a traceback."""
    try:
        act()
    except (OptprobeError, gdb.error) as error:
        fail(error)
    except gdb.GdbError:
        raise
    except Exception as error:
        if gdb.parameter("python print-stack") == "full":
            gdb.write(lines(traceback.format_exc()), gdb.STDERR)
        fail(error)


def fail(error: Exception) -> None:
    """Report an error as GDB does; with exit-on-error, end GDB with the error's status."""
    text = spoken(error)
    if not current_settings().exit_on_error:
        raise gdb.GdbError(text)
    gdb.flush(gdb.STDOUT)
    gdb.write(f"{text}\n", gdb.STDERR)
    gdb.flush(gdb.STDERR)
    end_gdb(error.status if isinstance(error, OptprobeError) else 1)


def stream(text: str) -> None:
    """Print at once what comes while a command runs."""
    gdb.write(text)
    gdb.flush(gdb.STDOUT)


def end_gdb(status: int) -> None:
    """End GDB with this status, without a question."""
    gdb.execute("set confirm off")
    gdb.execute(f"quit {status & 0xFF:#x}")


def spoken(error: Exception) -> str:
    """Return the text of an error, with the next step on its own line. Messages of GDB are made printable."""
    if isinstance(error, OptprobeError):
        hint = f"\nHINT: {error.hint}" if error.hint else ""
        return lines(f"optprobe: {error.message}{hint}")
    if isinstance(error, gdb.error):
        return lines(f"optprobe: {str(error).removeprefix('optprobe: ')}")
    where = "set python print-stack full shows where"
    return lines(f"optprobe: internal error: {type(error).__name__}: {error}; {where}")


def resolve(session: Session, selection: Selection | Run) -> tuple[int, ...] | None:
    """Return the selected numbers, with names looked up; None for all."""
    if not selection.wanted:
        return None
    numbers: dict[int, None] = {}
    for wanted in selection.wanted:
        numbers.update(dict.fromkeys(resolve_one(session, wanted)))
    return tuple(numbers)


def resolve_one(session: Session, wanted: int | str) -> tuple[int, ...]:
    """Return the numbers for a number, a `$variable`, or a name, which several probes may have."""
    if isinstance(wanted, int):
        return (wanted,)
    if wanted.startswith("$"):
        value = gdb.convenience_variable(wanted[1:])
        if value is None:
            raise OptprobeError(f"{wanted} has no value")
        return (int(value),)
    numbers = tuple(view.number for view in session.views(None) if view.name == wanted)
    if not numbers:
        raise OptprobeError(f"no probe named '{wanted}'", "optprobe list")
    return numbers


def only(session: Session, wanted: int | str) -> int:
    numbers = resolve_one(session, wanted)
    if len(numbers) > 1:
        raise OptprobeError(f"{len(numbers)} probes are named '{wanted}'", "give the number of one")
    return numbers[0]


def last_word(text: str) -> str:
    return re.split(r"\s", text)[-1]


def probe_words() -> list[str]:
    """Return numbers and names of all probes."""
    session = attach.session_or_none()
    views = session.views(None) if session else ()
    return [str(view.number) for view in views] + sorted({view.name for view in views if view.name})


def file_words(typed: str) -> Sequence[str]:
    """Return the files that a path may lead to, whatever else is typed: GDB's own completer takes the whole line."""
    folder = os.path.dirname(typed)
    try:
        with os.scandir(folder or ".") as found:
            return sorted(os.path.join(folder, each.name) + "/" * each.is_dir() for each in found)
    except OSError:
        return ()


def symbol_words(prefix: str) -> Sequence[str]:
    session = attach.session_or_none()
    return session.matches(prefix) if session and prefix else ()


def member_words(spec: Spec, expression: str) -> Sequence[str]:
    """Return the members of the struct that an expression of `spec` is, or points to; of none, parameters."""
    session = attach.session_or_none()
    return session.members(spec, expression) if session and not spec.in_program else ()


def _width() -> int:
    """Return the columns of a line, by GDB's `set width`, which is the terminal's at first; 0 for unlimited."""
    return int(gdb.parameter("width") or 0)


def _wants_colour() -> bool:
    """Return whether to print colours: on a terminal, without `set style enabled off` (batch mode) and NO_COLOR."""
    if os.environ.get("NO_COLOR") or not gdb.parameter("style enabled"):
        return False
    return os.isatty(1)


def colour() -> Callable[[str], str]:
    """Return a function that colours an instruction; one that does nothing without colours or Pygments."""
    if not _wants_colour():
        return str
    try:
        from pygments import highlight
        from pygments.formatters import Terminal256Formatter
        from pygments.lexers import GasLexer
    except ImportError:
        return str
    lexer, formatter = GasLexer(), Terminal256Formatter()

    def coloured(text: str) -> str:
        return str(highlight(text, lexer, formatter)).rstrip("\n")

    return coloured
