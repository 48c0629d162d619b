from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe import host_files
from gdb_optprobe.commands.base import Subcommand, file_words, probe_words, resolve
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
        host_files.write_typed(args.path, contents)
        out.lines([f"Wrote {held} to '{args.path}'.", *rest])

    def candidates(self, text: str) -> Sequence[str]:
        words = text.split(" ")
        if len(words) == 1:
            return [*FORMATS]
        # GDB's own completer takes all of `text` for the file's name.
        return file_words(words[1]) if len(words) == 2 else probe_words()
