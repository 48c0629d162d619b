from __future__ import annotations

from gdb_optprobe.commands import recipes
from gdb_optprobe.commands.recipe_arguments import CALLS_OPTIONS, RecipeArguments, parse_calls
from gdb_optprobe.commands.recipe_command import RecipeCommand


class CallsCommand(RecipeCommand):
    """Count the calls of a function by thread and by the stack that leads to it.

    optprobe calls FUNCTION [-top N] [-folded] [-for SECONDS] [-guest COMMAND] [-o FILE] [-json]
    optprobe calls FUNCTION -script

    It ends at Ctrl-C, or as the options say, and prints then, the most frequent first, the callers from the inside out.

      -folded         lines for flame graphs
      -top N          rows of the table, 20 without it
      -for SECONDS    end after so long
      -guest COMMAND  run a command in the guest's shell, and end with it; the
                      guest must be one of scripts/guest
      -o FILE         write into a file of this machine
      -json           a line of JSON for each row
      -script         print the script, in bpftrace's language, and do nothing

    Examples:
      optprobe calls vfs_read -for 5
      optprobe calls kfree -folded -o kfree.folded
    """

    word = "calls"
    options = CALLS_OPTIONS

    def parse(self, text: str) -> RecipeArguments:
        return parse_calls(text)

    def script(self, args: RecipeArguments) -> str:
        return recipes.calls(args.function)
