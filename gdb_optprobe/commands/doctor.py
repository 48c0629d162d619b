from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.options import DOCTOR_OPTIONS, Nothing, parse_doctor
from gdb_optprobe.commands.output import Output
from gdb_optprobe.debugger.doctor import examine


class DoctorCommand(Subcommand[Nothing]):
    """Say what works with this guest, this GDB and this QEMU, and why the rest does not.

    optprobe doctor [-json]

    Nothing in the guest is changed, and it does not run. The first line names the versions and
    the guest; a line for each facility has what is worth knowing of it, or why probes cannot
    have it and what to do. Put all of it into a report of a problem.

    Examples:
      optprobe doctor
      optprobe doctor -json
    """

    word = "doctor"

    def parse(self, text: str) -> Nothing:
        return parse_doctor(text)

    def run(self, args: Nothing, out: Output) -> None:
        out.doctor(examine())

    def candidates(self, text: str) -> Sequence[str]:
        return tuple(DOCTOR_OPTIONS)
