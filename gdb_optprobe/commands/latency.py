from __future__ import annotations

from gdb_optprobe.commands import recipes
from gdb_optprobe.commands.recipe_arguments import LATENCY_OPTIONS, RecipeArguments, parse_latency
from gdb_optprobe.commands.recipe_command import RecipeCommand


class LatencyCommand(RecipeCommand):
    """Show how long a function's calls take, over time: a line each second, a column for each power of two.

    optprobe latency FUNCTION [-every SECONDS] [-for SECONDS] [-guest COMMAND] [-o FILE] [-json]
    optprobe latency FUNCTION [-every SECONDS] -script

    The fullest column of a line is @, and so is one with half of its calls or more; each of % # * + = - : has half of
    the one before, and . all that is fewer. It ends at Ctrl-C, or as the options say, with the histogram of all calls.

      -every SECONDS  between two lines, 1 without it
      -for SECONDS    end after so long
      -guest COMMAND  run a command in the guest's shell, and end with it; the
                      guest must be one of scripts/guest
      -o FILE         write into a file of this machine
      -json           a line of JSON with the buckets in place of each
      -script         print the script, in bpftrace's language, and do nothing

    Examples:
      optprobe latency vfs_read -for 10
      optprobe latency ext4:ext4_sync_file -every 0.5
    """

    word = "latency"
    options = LATENCY_OPTIONS

    def parse(self, text: str) -> RecipeArguments:
        return parse_latency(text)

    def script(self, args: RecipeArguments) -> str:
        return recipes.latency(args.function, round(1000 * args.every))
