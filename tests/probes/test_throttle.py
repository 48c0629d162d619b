from __future__ import annotations

from gdb_optprobe.probes.throttle import Throttle


def test_it_takes_its_share_of_the_time_and_no_more() -> None:
    now = 100.0
    pace = Throttle(0.1, lambda: now)
    assert pace.is_due
    with pace.measure():
        now += 0.5
    assert not pace.is_due
    now += 4.9
    assert not pace.is_due
    now += 0.1
    assert pace.is_due
