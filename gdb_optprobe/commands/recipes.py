"""The scripts of `optprobe offcpu`, `profile`, `latency` and `calls`, in bpftrace's language. No GDB here.

    FUNCTION, -by, -hz ──► a script of a few lines ──► script_running.py ──► maps ──► recipe_output.py

A script names nothing but functions that every kernel has, and needs no types, so it is the same for every guest.
"""

from __future__ import annotations

OFFCPU, PROFILE, LATENCY, CALLS, UNTIMED = "offcpu", "profile", "latency", "calls", "latency_untimed"
"""The maps that are shown."""
SWITCHED = "finish_task_switch"
"""What the kernel does first behind a switch, in the thread that is switched to; its argument is the one before."""


def offcpu(by_stack: bool) -> str:
    """Return the script that sums the time that threads were off a CPU, of those that came back.

    A thread's time begins where the next one is switched to, or with it; ends where it is back. What is freed takes its
    time along, for another thread may be at that address later.
    """
    key = "comm, kstack" if by_stack else "comm"
    return f"""kprobe:{SWITCHED}*
{{
  @offcpu_start[arg0] = nsecs;
  $since = @offcpu_start[(uint64)curtask];
  if (tid && $since) {{ @{OFFCPU}[{key}] = stats(nsecs - $since); }}
  delete(@offcpu_start[(uint64)curtask]);
}}
kprobe:wake_up_new_task {{ @offcpu_start[arg0] = nsecs; }}
kprobe:__put_task_struct* {{ delete(@offcpu_start[arg0]); }}
"""


def profile(hertz: int) -> str:
    """Return the script that samples what runs, but for idle CPUs."""
    return f"""profile:hz:{hertz} /tid/ {{ @{PROFILE}[comm, ustack, kstack] = count(); }}
"""


def latency(function: str, milliseconds: int) -> str:
    """Return the script that shows the time of a function's calls each so many milliseconds.

    By the thread's structure: idle threads of all CPUs have one number. Where a call runs within another of the thread,
    the outer one is not timed, but counted.
    """
    return f"""kprobe:{function} {{ @latency_start[(uint64)curtask] = nsecs; }}
kretprobe:{function}
{{
  $since = @latency_start[(uint64)curtask];
  if ($since) {{ @{LATENCY} = hist(nsecs - $since); delete(@latency_start[(uint64)curtask]); }}
  else {{ @{UNTIMED} = count(); }}
}}
interval:ms:{milliseconds} {{ print(@{LATENCY}); clear(@{LATENCY}); }}
"""


def calls(function: str) -> str:
    """Return the script that counts a function's calls by the stack that leads to them."""
    return f"""kprobe:{function} {{ @{CALLS}[comm, kstack] = count(); }}
"""
