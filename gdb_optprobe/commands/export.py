from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe import host_files
from gdb_optprobe.commands.base import Subcommand, file_words, probe_words, resolve
from gdb_optprobe.commands.options import EXPORT_OPTIONS, Export, parse_export
from gdb_optprobe.commands.output import Output
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.exports.formats import FORMATS, encoded
from gdb_optprobe.exports.from_views import gathered, recording
from gdb_optprobe.exports.recording import Recording


class ExportCommand(Subcommand[Export]):
    """Write what the probes have gathered to FILE, in a format of another tool.

    optprobe export FORMAT FILE [N...]
    optprobe export FORMAT FILE -last

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
    With -last, and where there are no probes, it writes what the last graph,
    profile, offcpu, calls or latency has shown: the calls of a graph, with
    arguments and results where these were shown; stacks; a histogram.
    FILE is replaced; a new one is for you alone to read. The folder of
    uftrace must be a new one.

    Examples:
      optprobe add vfs_read -return do record($pid, $comm, $elapsed)
      optprobe run -for 2
      optprobe export chrome reads.json
      optprobe export openmetrics "all probes.prom"
      optprobe graph vfs_read -count 3
      optprobe export perfetto reads.pftrace -last
    """

    word = "export"

    def parse(self, text: str) -> Export:
        return parse_export(text, [*FORMATS])

    def run(self, args: Export, out: Output) -> None:
        found, of, notes = self._recording(args)
        contents, (held, *rest) = encoded(args.format, found)
        host_files.write_typed(args.path, contents)
        out.lines([f"Wrote {held}{of} to '{args.path}'.", *rest, *notes])

    def _recording(self, args: Export) -> tuple[Recording, str, Sequence[str]]:
        """Return what is exported, what it is of, and lines to print with it. Raises OptprobeError."""
        session = self.session
        if not args.last:
            numbers = resolve(session, args.probes)
            probes, maps = session.reports(numbers), session.maps(numbers)
            if probes or maps:
                return recording(probes, maps), "", ()
        if (last := session.gathered) is not None:
            return gathered(last), f" of {last.title}", last.notes
        if args.last:
            raise OptprobeError("nothing was gathered yet", "optprobe graph FUNCTION, or optprobe profile, is first")
        raise OptprobeError("there are no probes to export", "optprobe add LOCATION")

    def candidates(self, text: str) -> Sequence[str]:
        words = text.split(" ")
        if len(words) == 1:
            return [*FORMATS]
        # GDB's own completer takes all of `text` for the file's name.
        return file_words(words[1]) if len(words) == 2 else [*probe_words(), *EXPORT_OPTIONS]
