"""The base of the commands that compose a script and run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import gdb

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.recipe_arguments import RecipeArguments
from gdb_optprobe.commands.recipe_output import RecipeOutput, shown
from gdb_optprobe.commands.script_running import compiled, warn, written
from gdb_optprobe.debugger import attach
from gdb_optprobe.errors import OptprobeError


class RecipeCommand(Subcommand[RecipeArguments]):
    """A command that composes a script and runs it."""

    options: ClassVar[Mapping[str, str]]

    def script(self, args: RecipeArguments) -> str:
        """Return the script."""
        raise NotImplementedError

    def run(self, args: RecipeArguments, out: Output) -> None:
        text = self.script(args)
        if args.script:
            out.lines(text.splitlines())
            return
        session = attach.current_session()
        session.check_alive()
        if args.function:
            # The script would leave it out, and do the rest.
            session.target.debugger.resolve(args.function, False)
        try:
            found = compiled(session, text)
        except OptprobeError as error:
            # The user has not typed the line that it points at.
            raise OptprobeError(error.message.partition("\n")[0], error.hint) from error
        for warning in found.script.warnings:
            warn(warning)
        result = shown(self.word, args, int(gdb.parameter("width") or 0))
        with written(args.output, self.prints_at_once) as write:
            found.run(
                lambda names: RecipeOutput(names, result),
                write,
                warn,
                lambda running: running.run(args.seconds, args.guest),
                quiet=True,
                live=lambda: self.live_memory(session),
            )
            write(result.ended())
        session.gathered = result.gathered()

    def candidates(self, text: str) -> tuple[str, ...]:
        return tuple(self.options)
