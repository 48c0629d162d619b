"""How far a kernel has booted is told by two of its variables, where it has symbols for them."""

from __future__ import annotations

from functools import partial

import pytest

from gdb_optprobe.guest.linux import boot
from tests.guest.linux.fake_kernel import symbols

STATE, ENDED = 0x100, 0x200
ASKED = partial(boot.is_behind, boot.INITCALLS), partial(boot.is_behind, boot.DRIVERS), boot.has_ended


def read(memory: dict[int, int], address: int, size: int) -> bytes:
    return memory[address].to_bytes(size, "little")


@pytest.mark.parametrize(
    ("state", "ended", "told"),
    [(0, 0, (False, False, False)), (1, 0, (True, False, False)), (2, 0, (True, True, False)), (3, 1, (True,) * 3)],
)
def test_the_variables_tell(state: int, ended: int, told: tuple[bool, ...]) -> None:
    known = symbols(**{boot.STATE: STATE, boot.ENDED: ENDED})
    memory = {STATE: state, ENDED: ended}
    found = [ask(known, lambda at, size: read(memory, at, size)) for ask in ASKED]
    assert tuple(found) == told


def test_without_symbols_nothing_is_told() -> None:
    known = symbols()
    for ask in ASKED:
        assert ask(known, lambda at, size: read({}, at, size)) is None
