"""The table of all commands."""

from __future__ import annotations

from typing import Any

from gdb_optprobe import debugger
from gdb_optprobe.commands.add import AddCommand
from gdb_optprobe.commands.base import Subcommand, fail
from gdb_optprobe.commands.break_ import BreakCommand
from gdb_optprobe.commands.calls import CallsCommand
from gdb_optprobe.commands.check import CheckCommand
from gdb_optprobe.commands.commit import CommitCommand
from gdb_optprobe.commands.convenience import Hits, Missed, Quantile, Value
from gdb_optprobe.commands.delete import DeleteCommand
from gdb_optprobe.commands.disable import DisableCommand
from gdb_optprobe.commands.doctor import DoctorCommand
from gdb_optprobe.commands.dprintf import DprintfCommand
from gdb_optprobe.commands.enable import EnableCommand
from gdb_optprobe.commands.expect import ExpectCommand
from gdb_optprobe.commands.explain import ExplainCommand
from gdb_optprobe.commands.export import ExportCommand
from gdb_optprobe.commands.graph import GraphCommand
from gdb_optprobe.commands.latency import LatencyCommand
from gdb_optprobe.commands.list import InfoCommand, ListCommand
from gdb_optprobe.commands.offcpu import OffCpuCommand
from gdb_optprobe.commands.prefix import OptprobeCommand
from gdb_optprobe.commands.print_ import PrintCommand, TypeCommand
from gdb_optprobe.commands.profile import ProfileCommand
from gdb_optprobe.commands.recover import RecoverCommand
from gdb_optprobe.commands.report import ReportCommand
from gdb_optprobe.commands.run import RunCommand
from gdb_optprobe.commands.save import SaveCommand
from gdb_optprobe.commands.script import ScriptCommand
from gdb_optprobe.commands.show import ShowCommand
from gdb_optprobe.commands.top import TopCommand
from gdb_optprobe.commands.version import VersionCommand
from gdb_optprobe.debugger import parameters

SUBCOMMANDS: tuple[type[Subcommand[Any]], ...] = (
    AddCommand,
    BreakCommand,
    DprintfCommand,
    ListCommand,
    ShowCommand,
    ExplainCommand,
    ReportCommand,
    ExportCommand,
    EnableCommand,
    DisableCommand,
    DeleteCommand,
    CommitCommand,
    CheckCommand,
    SaveCommand,
    RecoverCommand,
    RunCommand,
    TopCommand,
    ScriptCommand,
    OffCpuCommand,
    ProfileCommand,
    LatencyCommand,
    CallsCommand,
    GraphCommand,
    ExpectCommand,
    PrintCommand,
    TypeCommand,
    DoctorCommand,
    VersionCommand,
)


def register_all() -> None:
    if parameters.registered():
        return
    parameters.register(fail)
    OptprobeCommand(tuple(command.word for command in SUBCOMMANDS))
    for command in SUBCOMMANDS:
        command()
    InfoCommand()
    Hits()
    Missed()
    Value()
    Quantile()
    debugger.load()
