"""Functions that the kernel bypasses, by its tracepoints and static calls."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux import bypasses
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT, DATA = 0xFFFFFFFF81000000, 0xFFFFFFFF82000000
ITERATOR, OWN, OTHER, ZERO = (TEXT + 0x100 * n for n in range(1, 5))
POINT, KEY, OWN_KEY, FUNCS = (DATA + 0x100 * n for n in range(1, 5))
NAMES = {
    "__traceiter_sched_switch": ITERATOR,
    "__cond_resched": OWN,
    "dynamic_cond_resched": OTHER,
    "__static_call_return0": ZERO,
    "d___tracepoint_sched_switch": POINT,
    "d___SCK__tp_func_sched_switch": KEY,
    "d___SCK__cond_resched": OWN_KEY,
}
LAYOUT = {"tracepoint.iterator": 0x20, "tracepoint.funcs": 0x40}


def note(name: str, start: int, attached: int = 0, leads_to: int = OWN, without: str = "", typed: bool = True) -> str:
    memory = Pages()
    memory.put(DATA, bytes(0x1000))
    memory.put_words(POINT + 0x20, ITERATOR)
    memory.put_words(POINT + 0x40, FUNCS if attached else 0)
    for number in range(attached):
        memory.put_words(FUNCS + 24 * number, OTHER, 0, 10)
    memory.put_words(OWN_KEY, leads_to)
    names = {found.removeprefix("d_"): at for found, at in NAMES.items() if found != without}
    return bypasses.note(kernel(memory, names, LAYOUT if typed else None), name, start)


@pytest.mark.parametrize(("attached", "now"), [(0, "there are none"), (1, "there is one")])
def test_a_tracepoint_s_iterator_is_gone_round_while_one_function_is_attached(attached: int, now: str) -> None:
    found = note("__traceiter_sched_switch", ITERATOR, attached)
    assert "only while several functions are attached to the tracepoint sched_switch" in found
    assert found.endswith(f"calls a single one directly; now {now}")


def test_a_tracepoint_s_iterator_is_called_where_several_are_attached() -> None:
    assert note("__traceiter_sched_switch", ITERATOR, 2) == ""


def test_without_static_calls_the_iterator_calls_a_single_one_too() -> None:
    without = "d___SCK__tp_func_sched_switch"
    assert note("__traceiter_sched_switch", ITERATOR, 1, without=without) == ""
    found = note("__traceiter_sched_switch", ITERATOR, 0, without=without)
    assert "only while a function is attached" in found and "directly" not in found


def test_what_is_not_known_of_a_tracepoint_is_not_said() -> None:
    for changed in ({"typed": False}, {"without": "d___tracepoint_sched_switch"}):
        found = note("__traceiter_sched_switch", ITERATOR, **changed)  # type: ignore[arg-type]
        assert found.endswith("calls a single one directly")


def test_a_static_call_that_leads_elsewhere_is_named() -> None:
    assert note("__cond_resched", OWN) == ""
    call = "where the kernel makes the static call cond_resched"
    assert note("__cond_resched", OWN, leads_to=OTHER).startswith(f"{call}, dynamic_cond_resched is called now, not")
    for nothing in (0, ZERO):
        assert note("__cond_resched", OWN, leads_to=nothing).startswith(f"{call}, nothing is called now, not __cond_")


def test_other_functions_have_no_note() -> None:
    assert note("dynamic_cond_resched", OTHER) == ""


def test_what_cannot_be_read_is_said() -> None:
    found = bypasses.note(kernel(Pages(), {"__SCK__x": 0x1000, "x": TEXT}), "x", TEXT)
    assert found.startswith("whether the kernel bypasses x is not known: ")
