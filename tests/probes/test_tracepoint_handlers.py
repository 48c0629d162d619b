"""Of several events those with fields that are not known are left out, with the reason."""

from __future__ import annotations

import pytest

from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.probes.tracepoint_handlers import with_known_fields

ONE, OTHER = EventName("sched", "one"), EventName("sched", "other")


def refusing(*names: EventName, refusal: Refusal = Refusal.EVENT_FIELDS_MISSING) -> list[EventName]:
    """Which of two events are served where the fields of these are refused."""

    def use(event: EventName) -> str:
        if event in names:
            raise Refused(refusal.because(event=event, why="of that event"))
        return event.event

    found, left_out = with_known_fields((ONE, OTHER), use)
    assert [*found.values()] == [event.event for event in found] and {*left_out} == {*names}
    assert all(str(event) in why.message for event, why in left_out.items())
    return [*found]


def test_those_with_known_fields_are_served() -> None:
    assert refusing() == [ONE, OTHER]
    assert refusing(ONE) == [OTHER]


def test_where_none_is_left_the_first_reason_is_raised() -> None:
    with pytest.raises(Refused, match=str(ONE)):
        refusing(ONE, OTHER)


def test_another_refusal_is_of_all() -> None:
    with pytest.raises(Refused, match="no function can be registered"):
        refusing(OTHER, refusal=Refusal.TRACEPOINTS_MISSING)
