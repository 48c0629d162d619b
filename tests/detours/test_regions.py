"""How a run is divided: every probed instruction in one region, each region long enough for its branch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.detours.regions import divide

NEEDED = 5


def divided(sizes: list[int], probed: list[int], glued: tuple[int, ...] = (), padding: int = 0) -> list[list[int]]:
    flags = [index in glued for index in range(len(sizes))]
    return [list(piece) for piece in divide(sizes, probed, flags, lambda: padding, NEEDED)]


def test_as_many_as_the_branch_needs() -> None:
    assert divided([2, 2, 1, 7], [0]) == [[0, 1, 2]]


def test_one_instruction_that_is_long_enough() -> None:
    assert divided([2, 7, 2], [1]) == [[1]]


def test_displaced_neighbour_joins() -> None:
    assert divided([2, 2, 1, 7, 7], [0, 2, 4]) == [[0, 1, 2], [4]]


def test_region_goes_on_while_the_next_is_probed() -> None:
    assert divided([2, 2, 1, 7, 7, 7], [0, 2, 3, 4]) == [[0, 1, 2, 3, 4]]
    assert divided([7, 7, 7], [0, 2]) == [[0], [2]]


def test_regions_of_one_instruction_where_nobody_can_wait() -> None:
    pieces = divide([7, 7, 7], [0, 1, 2], [False] * 3, lambda: 0, NEEDED, joined=False)
    assert [list(piece) for piece in pieces] == [[0], [1], [2]]


def test_end_of_a_run_is_reached_from_further_back() -> None:
    assert divided([3, 2, 2, 1], [3]) == [[1, 2, 3]]


def test_region_before_grows_where_it_leaves_too_little() -> None:
    assert divided([3, 2, 1, 1], [0, 3]) == [[0, 1, 2, 3]]


def test_padding_counts() -> None:
    assert divided([1], [0], padding=4) == [[0]]
    assert divided([1], [0], padding=3) == []


def test_glued_instructions_stay_together() -> None:
    assert divided([1, 1, 5], [0], glued=(1,), padding=0) == [[0, 1, 2]]
    assert divided([5, 1, 5], [0], glued=(1,)) == [[0, 1]]
    assert divided([5, 1, 2], [2], glued=(1,)) == [[0, 1, 2]], "no region begins at a glued one"


STRETCHES = st.integers(1, 14).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 9), min_size=count, max_size=count),
        st.sets(st.integers(0, count - 1), min_size=1),
        st.integers(0, 6),
    )
)


@given(STRETCHES)
def test_every_probe_is_served_where_there_is_room(run: tuple[list[int], set[int], int]) -> None:
    sizes, probed, padding = run
    pieces = divided(sizes, sorted(probed), padding=padding)
    held = [index for piece in pieces for index in piece]
    assert held == sorted(set(held)), "disjoint and ascending"
    for piece in pieces:
        room = sum(sizes[index] for index in piece) + (padding if piece[-1] == len(sizes) - 1 else 0)
        assert room >= NEEDED and probed & set(piece)
    if sum(sizes) + padding >= NEEDED:
        assert probed <= set(held)
    else:
        assert not pieces
