"""The language: each case of cases/*.txt, run by the interpreter."""

from __future__ import annotations

import re

import pytest

from gdb_optprobe.errors import OptprobeError
from tests.handlers.script.cases import Case, cases
from tests.handlers.script.running import ran


@pytest.mark.parametrize("case", [*cases()], ids=str)
def test_case(case: Case) -> None:
    flags = {name: name in case.flags for name in ("json", "quiet", "unsafe")}
    if case.error:
        with pytest.raises(OptprobeError) as caught:
            ran(case.program, case.arguments, **flags)
        told = f"{caught.value.message}\n{caught.value.hint}"
        assert case.error in re.sub("^ {4}", "", told, flags=re.MULTILINE)
        assert case.status is None or caught.value.status == case.status
        return
    found = ran(case.program, case.arguments, **flags)
    assert not case.trouble(found.printed)
    assert case.status is None or found.status == case.status
    for warning in case.warnings:
        assert any(warning in each for each in found.script.warnings), found.script.warnings


def test_names_are_unique() -> None:
    names = [str(case) for case in cases()]
    assert len(names) == len({*names}) > 300
