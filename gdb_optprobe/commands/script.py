from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import gdb

from gdb_optprobe.commands.base import Subcommand, end_gdb
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.script_arguments import OPTIONS, ScriptArguments, check_parameters, parse_script
from gdb_optprobe.commands.script_running import compiled, warn, written
from gdb_optprobe.debugger import attach
from gdb_optprobe.debugger.parameters import current_settings
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script import dump, tree
from gdb_optprobe.handlers.script.attach import attach_point
from gdb_optprobe.handlers.script.compile import Script
from gdb_optprobe.handlers.script.output import JsonOutput, TextOutput
from gdb_optprobe.handlers.script.place import Place
from gdb_optprobe.probes.script_kernel import ScriptKernel
from gdb_optprobe.probes.script_run import ScriptRun


class ScriptCommand(Subcommand[ScriptArguments]):
    """Run a script in bpftrace's language: attach its probes, let the guest run, print as bpftrace does.

    optprobe script [OPTIONS] FILE [ARG...]
    optprobe script [OPTIONS] -e 'PROGRAM' [ARG...]
    optprobe script -l 'PROBE'

    The script ends at exit(), at Ctrl-C, or as the options say; then its END
    runs, its probes are removed, and its maps are printed. $1, $2, ... are
    the ARGs. Options come before FILE or -e.

      -for SECONDS    end after so long
      -guest COMMAND  run a command in the guest's shell, and end with it; the
                      guest must be one of scripts/guest
      -f json, -json  print lines of JSON
      -o FILE         write what the script prints into a file of this machine
      -q              do not print how many probes are attached
      -no-warnings    print no warnings
      -unsafe         allow system(), which runs commands on this machine
      -keep           leave the probes and return, after -for and -guest where
                      they are given: optprobe report shows the maps, and what
                      printf said; optprobe delete ends it. END does not run
      -dry-run        attach the probes and end: nothing runs, not even BEGIN
      -d              print the programs, and attach nothing
      -l PROBE        print what there is to attach to, by wildcards

    FILE may be -, the standard input.

    Strings have 64 bytes, unless config = { max_strlen = N } says otherwise.

    Examples:
      optprobe script -for 5 -e 'kprobe:vfs_read { @[comm] = count(); }'
      optprobe script vfscount.bt
      optprobe script -l 'kprobe:vfs_*'
    """

    word = "script"

    def parse(self, text: str) -> ScriptArguments:
        return parse_script(text)

    def run(self, args: ScriptArguments, out: Output) -> None:
        session = attach.current_session()
        session.check_alive()
        if args.pattern:
            out.lines([*_listed(ScriptKernel(session.target), args.pattern)])
            return
        text = _read(args.file) if args.file else args.text
        check_parameters(text, args.parameters)
        found = compiled(session, text, args.parameters, args.unsafe, args.keep)
        told = warn if args.warns else _nothing
        for warning in found.script.warnings:
            told(warning)
        if args.dump:
            out.lines([*_programs(found.script)])
            return

        def start(running: ScriptRun) -> int:
            return running.attach_only() if args.dry else running.run(args.seconds, args.guest, args.keep)

        at_once = self.prints_at_once

        def live() -> LiveMemory | None:
            return session.live_memory()[0] if at_once or args.output else None

        with written(args.output, at_once) as write:
            status = found.run(JsonOutput if args.json else TextOutput, write, told, start, args.quiet, live)
        if status and current_settings().exit_on_error:
            end_gdb(status)

    def candidates(self, text: str) -> int | Sequence[str]:
        return OPTIONS if text.endswith("-") else gdb.COMPLETE_FILENAME


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).expanduser().read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise OptprobeError(f"failed to open file '{one_line(name)}': {error.strerror}") from error


def _nothing(text: str) -> None:
    """Print no warning."""


def _programs(script: Script) -> Iterator[str]:
    for probe in script.probes:
        yield probe.name
        yield from (f"    {line}" for line in dump.lines(probe.program))


def _listed(kernel: ScriptKernel, pattern: str) -> Iterator[str]:
    """Yield the names of what a pattern such as `kprobe:vfs_*` matches. Raises OptprobeError."""
    point = attach_point(tree.Point(Place(pattern, 0, len(pattern)), pattern))
    found = kernel.listed(point.provider, point.target, point.name, point.offset)
    if isinstance(found, Missing):
        raise OptprobeError(found.message, found.hint)
    if not found:
        raise OptprobeError(f"nothing matches '{pattern}'")
    yield from found
