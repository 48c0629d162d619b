"""Words of data are found where they begin at multiples of their size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.isa.words import places_of


def test_a_word_across_two_places_is_none() -> None:
    assert [*places_of(b"ab", b"abxab_abab")] == [0, 6, 8]
    assert [*places_of(b"ab", b"abxab_abab", 2)] == [6, 8]


@given(st.text("ab", max_size=64), st.sampled_from(["a", "ab", "aab", "abab"]))
def test_words_are_found_as_by_looking_at_each_place(data: str, word: str) -> None:
    text, wanted = data.encode(), word.encode()
    each = range(0, len(text) - len(wanted) + 1, len(wanted))
    assert [*places_of(wanted, text)] == [at for at in each if text[at : at + len(wanted)] == wanted]
