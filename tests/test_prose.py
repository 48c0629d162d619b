"""Prose has fewer and fewer of the words that tests/prose.py counts."""

from __future__ import annotations

import pytest

from tests import prose


def test_no_file_has_more_of_the_words_than_it_is_allowed() -> None:
    found, allowed = prose.counts(), prose.allowed()
    more = {name: (number, allowed.get(name, 0)) for name, number in found.items() if number > allowed.get(name, 0)}
    assert not more, f"found, allowed: {more}; reword them (tests/prose.py has the list)"


def test_allowances_fall_with_what_is_found() -> None:
    found, allowed = prose.counts(), prose.allowed()
    less = {name: (found.get(name, 0), number) for name, number in allowed.items() if found.get(name, 0) < number}
    assert not less, f"found, allowed: {less}; lower them: python -m tests.prose"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('"""Nobody is told whose."""\nstands = who = 1\n', 3),
        ("# It goes\n# and what is read is kept.\n", 1),
        ('f"it stands {nobody}"\n', 1),
        ('"""It lets go, where\nhe is owed it."""\n', 3),
        ("whole = 'whoever'\n", 0),
        ('view["who"] = "is who"\n', 1),
    ],
)
def test_words_are_counted_in_comments_and_strings_alone(text: str, number: int) -> None:
    assert len(prose.WORST.findall("\n".join(prose.prose(text)))) == number
