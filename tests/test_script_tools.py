"""What scripts/tools makes of what a tool prints."""

from __future__ import annotations

import re
from collections import Counter

from qemu import script_tools
from qemu.bpftrace_costs import Line, report
from qemu.script_tools import BROKEN, NOTHING, RUNS, TOOLS, Outcome, table


def test_events_are_found_in_lines_of_bpftrace_s_format() -> None:
    line = "439          259   0        dd               152          3"
    assert re.search(TOOLS["biosnoop"].event, line), "of 0.23"
    assert re.search(TOOLS["biosnoop"].event, "439          nvme0n1 dd               152          3"), "of 0.17"
    found = re.search(TOOLS["tcpconnect"].event, "02:24:10 1194     nc       10.9.9.1    52004  10.9.9.1   99")
    assert found is not None and found.groups() == ("1194", "nc", "10.9.9.1", "52004", "10.9.9.1", "99")
    assert not re.search(TOOLS["capable"].event, "TIME      UID    PID    COMM             CAP  NAME     AUDIT")


def test_a_line_may_say_of_how_many_events_it_is() -> None:
    said = "@usecs:\n[64, 128)              6 |@@@ |\n[1]                    3 |@@ |\n[512, 1K)              0 | |\n"
    assert script_tools._events(TOOLS["biolatency"], said) == Counter({(): 9})
    of_bars = script_tools._events(TOOLS["tcpsynbl"], said)
    assert of_bars["[64, 128)",] == 6 and of_bars["[1]",] == 3
    assert script_tools._events(TOOLS["syscount"], "@process[dd]: 6011\n@process[sh]: 9\n") == Counter({("dd",): 6011})


def test_the_table_counts_what_runs_and_what_is_the_same() -> None:
    outcomes = [
        Outcome("capable", RUNS, events=1, same=True),
        Outcome("tcplife", RUNS, events=2, same=False),
        Outcome("syscount", RUNS, events=6011, same=True, how="turns"),
        Outcome("loads", RUNS, events=3),
        Outcome("mdflush", NOTHING, "could not attach"),
        Outcome("xfsdist", BROKEN, "the guest did not answer"),
    ]
    lines = table(outcomes)
    assert lines[-2:] == ["4 of 6 tools run", "2 of 3 print what bpftrace prints"]
    assert lines[2].endswith("2  differs") and lines[5].endswith("could not attach")
    assert lines[3].endswith("6011  the same, in turns")


def test_a_word_that_is_no_tool_is_named() -> None:
    assert script_tools.main(["nosuch"]) == 2


def test_a_cost_beyond_its_goal_or_above_bpftrace_s_is_said() -> None:
    lines = report([Line("a", 2, 440, 4), Line("b", 7.4, 784, 7), Line("c", 9, 784, 8), Line("d", 500, 440, None)])
    assert ["MISSED" in line for line in lines[1:]] == [False, False, True, True]
    assert "220 ×" in lines[1]
