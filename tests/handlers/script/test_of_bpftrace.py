"""Cases that are like bpftrace's own: what needs no guest is run by the interpreter. of_bpftrace.py has the rest."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.handlers.script.cases import Case
from tests.handlers.script.of_bpftrace import FOLDER, LEAST, SCOPE, language_cases, summary, trouble_on_host, unmet

CASES = language_cases()


@pytest.mark.parametrize("case", [case for case in CASES if "guest" not in case.flags], ids=str)
def test_case(case: Case) -> None:
    trouble = trouble_on_host(case)
    if str(case) in unmet():
        assert trouble, f"it is met, and listed in {FOLDER.name}/unmet"
    else:
        assert not trouble


def test_each_case_of_the_language_has_one_here() -> None:
    assert Counter(case.topic for case in CASES) == {topic: count for topic, (count, _) in SCOPE.items()}
    assert sum(count for count, _ in SCOPE.values()) == 404
    assert all(case.like.startswith(f"{case.topic}.") and (case.expectations or case.error or case.status is not None)
               for case in CASES)  # fmt: skip
    names = Counter(map(str, CASES))
    assert max(names.values()) == 1 and unmet().keys() <= names.keys() and all(unmet().values())


def test_enough_cases_are_met() -> None:
    assert len(CASES) - len(unmet()) >= LEAST * len(CASES)


def test_the_figure_has_the_failures_and_their_reasons() -> None:
    listed, other, passing = next(iter(unmet())), "for: pairs of key and value", "call: printf"
    lines = [*summary({listed: "some trouble", other: "line 1\nline 2", passing: ""})]
    assert lines[0] == "1 of 3 cases are as in bpftrace 0.23.2 (33.3 %)"
    assert lines[1:] == [f"    {listed}: {unmet()[listed]}", f"    {other}: UNEXPECTED: line 1 line 2"]
    assert [*summary({listed: ""})][1:] == [f"    {listed}: UNEXPECTED: it is met, and listed in bpftrace/unmet"]
