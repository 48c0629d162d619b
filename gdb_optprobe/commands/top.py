from __future__ import annotations

import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import gdb

from gdb_optprobe.commands import top_view
from gdb_optprobe.commands.at_once import printed_at_once
from gdb_optprobe.commands.base import Subcommand, stream
from gdb_optprobe.commands.options import TOP_OPTIONS, Watch, parse_top
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.top_screen import Screen, has_screen, screen
from gdb_optprobe.commands.top_view import KEYS, QUIT, Top
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.debugger.stop_report import is_tui_active
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.probes.sampler import Sampler

GONE = "its memory can no longer be read"


class TopCommand(Subcommand[Watch]):
    """Let the guest run and show what the probes count meanwhile, until Ctrl-C.

    optprobe top [-every SECONDS] [-for SECONDS] [GLOB]

    Rates, totals, shares and losses of all probes, or of those on the functions, or with the names, that GLOB matches;
    the greatest keys of what the first rows gather, and of scripts' maps. The guest is not stopped for it where QEMU's
    memory can be read (doctor tells, set optprobe live chooses); probes that stop are served as at any run.
    Keys: r, h, l, n and f choose the order, by rate, hits, losses, number or function; q ends it as Ctrl-C does.
    Without a terminal a block of lines is printed each time. In the end the totals are printed, of the stopped guest.

    -every sets the seconds between two looks: 1 if not given, 0.05 at least.
    -for ends it after so many seconds.

    Examples:
      optprobe top
      optprobe top -every 0.2 vfs_*
      optprobe top -every 1 -for 10
    """

    word = "top"

    def parse(self, text: str) -> Watch:
        return parse_top(text)

    def run(self, args: Watch, out: Output) -> None:
        session = self.session
        sampler = session.sampler(args.glob)
        if not sampler.labels:
            what = f"no probe is on a function, or has a name, that {args.glob} matches" if args.glob else "no probes"
            raise OptprobeError(what, "optprobe add LOCATION")
        live, why = (None, "by a machine interface") if machine_interface() else session.live_memory()
        ways = f"at short stops ({why or GONE})", f"by {live.name}" if live is not None else ""
        watch = _Watch(sampler, Top(sampler.labels, sampler.numbers), args.every, ways)
        with session.checked(live, warn):
            watch.begin(session.stopped_memory)
            with gdb.with_parameter("pagination", False), _shown(watch, live is not None):
                said = session.watch(watch.look, live, args.every, args.seconds, watch.keys)
        if session.is_same_guest():
            watch.end(session.stopped_memory)
            out.lines(top_view.block(watch.top, 0, "in all "))
        out.ran(said)

    def candidates(self, text: str) -> Sequence[str]:
        return tuple(TOP_OPTIONS)


class _Watch:
    """Looks again and again. ways: how memory is read of a guest that is stopped, and of one that runs.

    rows: how many are shown. show: what is done with each state. typed: returns the keys since the last one. keys: the
    file descriptor that has them.
    """

    rows: Callable[[], int]

    def __init__(self, sampler: Sampler, top: Top, every: float, ways: tuple[str, str]) -> None:
        self.top = top
        self._sampler = sampler
        self._begun = time.monotonic()
        self.rows = _block_rows
        self.show: Callable[[], None] = lambda: None
        self.typed: Callable[[], bytes] = bytes
        self.keys: int | None = None
        self._every = every
        self._ways = ways

    def look(self, memory: Memory, runs: bool) -> bool:
        """Read and show. Return whether to look again."""
        self.top.way = self._ways[runs]
        typed = self.typed()
        for key in typed:
            self.top.sort = KEYS.get(key, self.top.sort)
        if QUIT in typed:
            return False
        # A key comes at any time, and a rate of some milliseconds says nothing.
        if not typed or self.seconds - self.top.seconds >= self._every / 2:
            self.top.add(self._sampler.sample(memory), self.seconds)
        self._gather(memory, runs)
        self.show()
        return True

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def begin(self, memory: Memory) -> None:
        """Read what there is before the guest runs."""
        self._begun = time.monotonic()
        self.top.add(self._sampler.sample(memory), 0)

    def end(self, memory: Memory) -> None:
        """Read what there is when it has stopped, for the whole time."""
        self.top.end(self._sampler.sample(memory), self.seconds)
        self.rows = _block_rows
        self._gather(memory, runs=False)

    def _gather(self, memory: Memory, runs: bool) -> None:
        places = [at for at in self.top.first(self.rows()) if self.top.now.hits[at] and self._sampler.has_more(at)]
        gathered = self._sampler.gathered(places, memory, runs)
        self.top.gathered = [(self._sampler.labels[at], one) for at, one in zip(places, gathered, strict=True)]
        self.top.maps = self._sampler.maps(memory)


def _block_rows() -> int:
    return top_view.BLOCK_ROWS


@contextmanager
def _shown(watch: _Watch, runs: bool) -> Iterator[None]:
    """Have what is looked at shown on the terminal's screen; where there is none, in lines."""
    if machine_interface() or not has_screen():
        with _lines(watch, runs):
            yield
        return
    with ExitStack() as within:
        if is_tui_active():
            gdb.execute("tui disable")
            within.callback(gdb.execute, "tui enable")
        gdb.flush(gdb.STDOUT)
        try:
            terminal = within.enter_context(screen())
        except (OSError, termios.error):
            terminal = None
        if terminal is None:
            within.enter_context(_lines(watch, runs))
        else:
            _draws(watch, terminal)
        yield


def _draws(watch: _Watch, terminal: Screen) -> None:
    def show() -> None:
        terminal.draw(top_view.screen(watch.top, *terminal.size), top_view.HEADER)

    watch.show, watch.typed, watch.keys = show, terminal.typed, terminal.keys
    watch.rows = lambda: top_view.rows_that_fit(watch.top, terminal.size[1])


@contextmanager
def _lines(watch: _Watch, runs: bool) -> Iterator[None]:
    """Print a block of lines each time. runs: whether the guest runs then."""
    if not runs:
        watch.show = lambda: _print(watch.top)
        yield
        return
    with printed_at_once() as write:
        watch.show = lambda: _print(watch.top, write)
        yield


def _print(top: Top, write: Callable[[str], object] = stream) -> None:
    write("".join(f"{line}\n" for line in top_view.block(top, 0)))
