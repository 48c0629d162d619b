from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import gdb

from gdb_optprobe.commands.at_once import printed_at_once
from gdb_optprobe.commands.base import Subcommand, only, probe_words, resolve
from gdb_optprobe.commands.options import RUN_OPTIONS, Run, parse_run
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.top_view import MAY_DIFFER
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.probes.views import ProbeView


class RunCommand(Subcommand[Run]):
    """Let the guest run, stop it, and return.

    optprobe run [-for SECONDS] [-until-hits N:COUNT] [-timeout SECONDS] [-guest COMMAND]
                 [-every SECONDS [-clear]] [-json]
    optprobe run -follow [N...] [-for SECONDS] ...

    Without an option the guest runs until something stops it. When the time of -timeout has passed first, that is
    an error. -guest runs a command in the guest's shell, prints what it prints, and stops the guest at its end; the
    guest must be one of scripts/guest. Where something else stops the guest first, the command stays in it.

    -every prints a report each so many seconds; -clear begins each of them at zero. -json prints a JSON value on each
    line.

    -follow prints the records of all probes, or of the given ones, in the order of time: those that are there, then
    others as they come; in the end, how many were lost. A report does not have what was printed.

    Neither stops the guest where QEMU's memory can be read (doctor tells, set optprobe live chooses), but for what
    needs a stop: -clear, rings that are half full, stacks, names of modules' code. The sum of a function's calls is
    left out then. In a log, a TUI window, a machine interface, and called from Python, each look is a short stop.

    Examples:
      optprobe run -for 2
      optprobe run -until-hits 1:1000 -timeout 30
      optprobe run -guest 'dd if=/dev/zero of=/dev/null bs=1 count=1000'
      optprobe run -every 1 -clear -for 10
      optprobe run -follow 1 2
    """

    word = "run"

    def parse(self, text: str) -> Run:
        return parse_run(text)

    def run(self, args: Run, out: Output) -> None:
        session = self.session
        until = (only(session, args.until_hits[0]), args.until_hits[1]) if args.until_hits else None

        live = self.live_memory(session) if args.follow or (args.every and not args.clear) else None
        with ExitStack() as within:
            shown = out
            if live is not None:
                within.enter_context(session.checked(live, warn))
                write = within.enter_context(printed_at_once())
                shown = self.output(args, write)
                if not (args.follow or args.json):
                    write(f"read by {live.name} while the guest runs; {MAY_DIFFER}\n")
            if args.follow:
                self._follow(args, until, live, shown, out)
                return

            def report(runs: bool) -> None:
                shown.report(session.reports(None))
                if args.clear:
                    session.clear(None)

            out.ran(session.run(args.seconds, until, args.timeout, args.guest, args.every, report, live))

    def _follow(
        self, args: Run, until: tuple[int, int] | None, live: LiveMemory | None, shown: Output, out: Output
    ) -> None:
        """Print records to `shown` as they come, and then the end of the run."""
        session = self.session

        def show(probes: Sequence[ProbeView]) -> None:
            shown.timeline(probes, more=True)
            gdb.flush(gdb.STDOUT)

        follower = session.follower(resolve(session, args), show)
        with gdb.with_parameter("pagination", False):
            try:
                told = session.run(args.seconds, until, args.timeout, args.guest, follower.pause, follower, live)
            except OptprobeError:
                follower()
                raise
            try:
                follower()
            finally:
                out.ran(told, follower)

    def candidates(self, text: str) -> Sequence[str]:
        return [*(probe_words() if "-follow" in text else ()), *RUN_OPTIONS]
