from __future__ import annotations

from dataclasses import dataclass

import gdb

from gdb_optprobe import host_files
from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.output import Output
from gdb_optprobe.debugger.gdb_symbols import convenience
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.probes.save import REFUSED, with_variables


@dataclass(frozen=True, slots=True)
class File:
    path: str
    json: bool = False


class SaveCommand(Subcommand[File]):
    """Write the probes to FILE, as commands that `source` carries out in another boot.

    optprobe save FILE

    Locations are by name, so that it does not matter where the kernel is
    loaded. Probes with Python handlers are comments, and so are those
    with a field that no command can hold. GDB's variables get the values
    that they have now. FILE is replaced; a new one is for you alone to
    read.

    Examples:
      optprobe save probes.gdb
      source probes.gdb
    """

    word = "save"

    def parse(self, text: str) -> File:
        if not text.strip():
            raise OptprobeError("no file to save to", "optprobe save FILE")
        return File(text.strip())

    def run(self, args: File, out: Output) -> None:
        saved = self.session.saved()
        if not saved.count and not saved.left_out:
            raise OptprobeError("there are no probes to save", "optprobe add LOCATION")
        lines = with_variables(saved.lines, convenience)
        host_files.write_typed(args.path, "".join(f"{one_line(line)}\n" for line in lines).encode())
        out.lines([f"Saved {saved.count} {'probe' if saved.count == 1 else 'probes'} to '{args.path}'."])
        if saved.left_out:
            numbers = ", ".join(map(str, saved.left_out))
            refused = any(line.startswith(REFUSED) for line in saved.lines)
            why = "which say why" if refused else "for their handlers are Python's"
            out.lines([f"Only as comments, {why}: {numbers}."])

    def candidates(self, text: str) -> int:
        return gdb.COMPLETE_FILENAME
