"""Actions that are not built are refused where they were typed."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.supported import check_action

BUILT = ("count", "count by $comm", "sum(x)", "hist(x) by (a, b)", "lhist(x, 0, 9, 3)", "stop", "latency by $comm")


@pytest.mark.parametrize("text", BUILT)
def test_built(text: str) -> None:
    check_action(Fragment.whole(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conut", "no action named 'conut'"),
        ("nonsense(1)", "no action named 'nonsense'"),
        ("(x)", "no action named '(x)'"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(OptprobeError) as refused:
        check_action(Fragment.whole(text))
    assert refused.value.message.startswith(message)
    assert refused.value.hint
