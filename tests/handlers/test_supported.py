from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.supported import check_text


@pytest.mark.parametrize("actions", [(), ("count",), ("count", " count ")])
def test_counting_is_compiled(actions: tuple[str, ...]) -> None:
    check_text("", actions)


@pytest.mark.parametrize(
    ("condition", "action", "message"),
    [
        ("x > 1", "count", "conditions are not compiled yet"),
        ("", "stop", "the action 'stop' is not compiled yet"),
        ("", "hist(x)", "the action 'hist' is not compiled yet"),
        ("", "count by $cpu", "count by a key is not compiled yet"),
        ("", "count(x)", "count takes nothing"),
        ("", "conut", "no action named 'conut'"),
        ("", "(x)", "no action named"),
    ],
)
def test_the_rest_is_refused(condition: str, action: str, message: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        check_text(condition, [action])
    assert caught.value.message.startswith(message)
