from __future__ import annotations

from gdb_optprobe.commands import recipes
from gdb_optprobe.commands.recipe_arguments import OFFCPU_OPTIONS, RecipeArguments, parse_offcpu
from gdb_optprobe.commands.recipe_command import RecipeCommand


class OffCpuCommand(RecipeCommand):
    """Sum the time that threads are off the CPU, by thread or by where they wait.

    optprobe offcpu [-by comm|stack] [-top N] [-folded] [-for SECONDS] [-guest COMMAND] [-o FILE] [-json]
    optprobe offcpu [-by comm|stack] -script

    It ends at Ctrl-C, or as the options say, and prints then. A time counts when the thread is back on a CPU: what
    still waits at the end is not among them. A thread that was only displaced by another has a time too.

      -by stack       by thread and the stack of the kernel where it waits
      -folded         of -by stack: lines for flame graphs, in nanoseconds
      -top N          rows of the table, 20 without it
      -for SECONDS    end after so long
      -guest COMMAND  run a command in the guest's shell, and end with it; the
                      guest must be one of scripts/guest
      -o FILE         write into a file of this machine
      -json           a line of JSON for each row
      -script         print the script, in bpftrace's language, and do nothing

    Examples:
      optprobe offcpu -for 5
      optprobe offcpu -by stack -folded -o waits.txt
    """

    word = "offcpu"
    options = OFFCPU_OPTIONS

    def parse(self, text: str) -> RecipeArguments:
        return parse_offcpu(text)

    def script(self, args: RecipeArguments) -> str:
        return recipes.offcpu(args.by_stack)
