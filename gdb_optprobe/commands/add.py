from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.convenience import remember
from gdb_optprobe.commands.locations import location_candidates
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.parse import ADD_OPTIONS, Add, hinting_at_options, parse_add


class AddCommand(Subcommand[Add]):
    """Put a probe at LOCATION: count its hits, or carry out ACTIONs.

    optprobe add LOCATION[,LOCATION...] [OPTIONS] [if EXPR] [do ACTION, ...]
    optprobe add LOCATION[,LOCATION...] -return [entry [if EXPR] [do ACTION, ...]] [if EXPR] [do ACTION, ...]

    LOCATION is anything that `break` takes, *ADDRESS, symbol+offset, a glob, or
    an event: tracepoint:SYSTEM:EVENT with its fields as args->NAME, rawtracepoint:EVENT.
    It ends at the first option, or at a bare word if, do or entry.
    Commas make several: a probe at each, with counters and maps of its own,
    or none at all where one of them is refused. A glob leaves out, and lists,
    functions that EXPR or an ACTION does not fit ($retval of one that returns nothing),
    and those at which each hit would stop the guest: name these, or ask for a -tier.
    The number of the probe is kept in $optprobe.

    EXPR is C, run in the guest: parameters by name at a function's entry,
    $arg1, registers, $pid, $tgid, $comm, $task, $cpu, $percpu(x).
    ACTION is count, sum(e), min(e), max(e), avg(e), hist(e) or
    lhist(e,min,max,step), each with `by KEY` or `by (KEY, ...)`, or
    record(e, ...), stack or print("format", e, ...); optprobe report prints
    them. Of a return also latency, or latency by KEY.
    In place of actions, one block of statements in bpftrace's language, with its
    names and rules: { @[comm] = count(); if (arg2 > 4096) { printf("%d", pid); } }
    Its maps are the session's: all blocks that name one share it.
    At the entry of a return probe also save NAME = EXPR, for $saved.NAME.
    An action may be stop: after all others, the guest stops there, as at a breakpoint.

    OPTIONS, before or after LOCATION (-- ends them):
      -name NAME      a name to use in place of the number
      -tier TIER      this tier only: breakpoint, boosted, emulated, trapped, optimized
      -return         the function's return: $retval, $elapsed, latency
      -maxactive N    of a return probe: at most N calls at once
      -overwrite      a full ring keeps the newest records, not the oldest
      -pending        wait for a symbol that is not there yet: of a module, or of
                      a kernel that has not started
      -glob           LOCATION is a glob; * alone is every function
      -user           LOCATION is BINARY:SYMBOL, BINARY:SYMBOL+OFFSET or
                      BINARY:OFFSET of a program, BINARY a path in the guest
      -file PATH      the same file here, for its symbols
      -pid N          in this process only
      -json           print the probes as one line of JSON

    Examples:
      optprobe add vfs_read
      optprobe add vfs_read+0x13 -tier boosted
      optprobe add *0xffffffff8134cc55 -name reads do count
      optprobe add vfs_*
      optprobe add vfs_read,vfs_write do count by $comm
      optprobe add tracepoint:syscalls:sys_exit_read if args->ret > 0 do sum(args->ret)
      optprobe add vfs_read if $comm == "dd" do hist(count), count by $pid
      optprobe add vfs_* do { @[func, comm] = count(); }
    """

    word = "add"

    def parse(self, text: str) -> Add:
        return parse_add(text)

    def run(self, args: Add, out: Output) -> None:
        specs = args.specs()
        with hinting_at_options(args):
            probes = self.session_for(specs).add(*specs)
        remember(probes)
        out.added(probes, args.place.glob)

    def candidates(self, text: str) -> int | Sequence[str]:
        return location_candidates(text, ADD_OPTIONS)
