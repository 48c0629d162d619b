"""How far a kernel has booted is told by two of its variables, where it has symbols for them."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux import boot
from tests.guest.linux.fake_kernel import symbols

STATE, ENDED = 0x100, 0x200


def read(memory: dict[int, int], address: int, size: int) -> bytes:
    return memory[address].to_bytes(size, "little")


@pytest.mark.parametrize(
    ("state", "ended", "told"), [(0, 0, (False, False)), (1, 0, (True, False)), (3, 1, (True, True))]
)
def test_the_variables_tell(state: int, ended: int, told: tuple[bool, bool]) -> None:
    known = symbols(**{boot.STATE: STATE, boot.ENDED: ENDED})
    memory = {STATE: state, ENDED: ended}
    found = [ask(known, lambda at, size: read(memory, at, size)) for ask in (boot.has_initcalls_begun, boot.has_ended)]
    assert tuple(found) == told


def test_without_symbols_nothing_is_told() -> None:
    known = symbols()
    for ask in (boot.has_initcalls_begun, boot.has_ended):
        assert ask(known, lambda at, size: read({}, at, size)) is None
