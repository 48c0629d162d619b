from __future__ import annotations

from gdb_optprobe.commands import recipes
from gdb_optprobe.commands.recipe_arguments import PROFILE_OPTIONS, RecipeArguments, parse_profile
from gdb_optprobe.commands.recipe_command import RecipeCommand


class ProfileCommand(RecipeCommand):
    """Sample what runs, by the guest's timer: the stacks of program and kernel, as lines for flame graphs.

    optprobe profile [-hz N] [-table [-top N]] [-for SECONDS] [-guest COMMAND] [-o FILE] [-json]
    optprobe profile [-hz N] -script

    It ends at Ctrl-C, or as the options say, and prints then: THREAD;OUTERMOST;...;INNERMOST COUNT, as flamegraph.pl
    and speedscope read it, the program's frames before the kernel's. An idle CPU is not sampled, a busy one no more
    often than its kernel ticks.

      -hz N           samples a second of each CPU, 99 without it
      -table          a table of the functions that ran
      -top N          its rows, 20 without it
      -for SECONDS    end after so long
      -guest COMMAND  run a command in the guest's shell, and end with it; the
                      guest must be one of scripts/guest
      -o FILE         write into a file of this machine
      -json           a line of JSON for each pair of stacks
      -script         print the script, in bpftrace's language, and do nothing

    Examples:
      optprobe profile -for 5 -o profile.folded
      optprobe profile -table -for 5
    """

    word = "profile"
    options = PROFILE_OPTIONS

    def parse(self, text: str) -> RecipeArguments:
        return parse_profile(text)

    def script(self, args: RecipeArguments) -> str:
        return recipes.profile(args.hertz)
