from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gdb_optprobe import host_files
from gdb_optprobe.commands.base import Subcommand, probe_words, resolve
from gdb_optprobe.commands.options import Export, parse_export
from gdb_optprobe.commands.output import Output
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.exports.formats import FORMATS, encoded
from gdb_optprobe.exports.from_views import recording


class ExportCommand(Subcommand[Export]):
    """Write what the probes have gathered to FILE, in a format of another tool.

    optprobe export FORMAT FILE [N...]

    FORMAT is one of
      chrome       Chrome's JSON, for Perfetto's UI: calls, events, counters
      perfetto     Perfetto's TrackEvents: the same
      trace.dat    trace-cmd's file, for KernelShark too: calls, events
      uftrace      uftrace's data, a folder: calls
      speedscope   speedscope's JSON: calls, and stacks
      folded       folded stacks, for flame graphs: stacks, or else calls
      pprof        pprof's profile: the same
      openmetrics  Prometheus' text: counters, maps, histograms
      csv          one table: all that there is
    A record that has $elapsed is a call: record($pid, $comm, $elapsed) of a
    return. $pid, $tgid and $comm say of which thread it is; without $pid it
    is on the track of its CPU. Any other record is an event. Times are the
    guest's, in nanoseconds since its boot. Lines say what the format does
    not hold, and what was lost.
    FILE is replaced; a new one is for you alone to read. The folder of
    uftrace must be a new one.

    Examples:
      optprobe add vfs_read -return do record($pid, $comm, $elapsed)
      optprobe run -for 2
      optprobe export chrome reads.json
      optprobe export openmetrics "all probes.prom"
    """

    word = "export"

    def parse(self, text: str) -> Export:
        return parse_export(text, [*FORMATS])

    def run(self, args: Export, out: Output) -> None:
        numbers = resolve(self.session, args.probes)
        probes, maps = self.session.reports(numbers), self.session.maps(numbers)
        if not probes and not maps:
            raise OptprobeError("there are no probes to export", "optprobe add LOCATION")
        contents, (held, *rest) = encoded(args.format, recording(probes, maps))
        try:
            path = host_files.expanded(Path(args.path))
            if isinstance(contents, bytes):
                host_files.replace(path, contents)
            else:
                host_files.new_folder(path, contents)
        except OSError as error:
            raise OptprobeError(f"'{args.path}' cannot be written: {error.strerror}") from None
        out.lines([f"Wrote {held} to '{args.path}'.", *rest])

    def candidates(self, text: str) -> Sequence[str]:
        words = text.split(" ")
        if len(words) == 1:
            return [*FORMATS]
        # GDB's own completer takes all of `text` for the file's name.
        return _files(words[1]) if len(words) == 2 else probe_words()


def _files(typed: str) -> Sequence[str]:
    folder = os.path.dirname(typed)
    try:
        with os.scandir(folder or ".") as found:
            return sorted(os.path.join(folder, each.name) + "/" * each.is_dir() for each in found)
    except OSError:
        return ()
