"""A semaphore's state, as each kind of kernel keeps it."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import NoSuchKernel
from gdb_optprobe.guest.linux.rw_semaphores import RwSemaphore, State
from tests.guest.linux.fake_kernel import Pages, kernel

AT, OFFSET = 0x1000, 0x68
FREE, READ, WRITTEN = State(False, False), State(True, False), State(True, True)


def state(member: str, word: int) -> State:
    memory = Pages()
    memory.put_words(AT + OFFSET, word)
    linux = kernel(memory, {}, {f"mm_struct.mmap_lock.{member}": OFFSET})
    return RwSemaphore.of(linux, "mm_struct", "mmap_lock", "mmap_sem").state(linux, AT)


@pytest.mark.parametrize(
    ("word", "expected"),
    [(0, FREE), (0x100, READ), (0x302, READ), (1, WRITTEN), (0x7, WRITTEN), (1 << 63 | 0x100, READ), (2, READ)],
)
def test_a_usual_kernel(word: int, expected: State) -> None:
    assert state("count", word) == expected


@pytest.mark.parametrize("member", ["rwbase.readers", "readers"])
@pytest.mark.parametrize(
    ("word", "expected"),
    [(1 << 31, FREE), (1 << 31 | 1, READ), (3, READ), (0, READ), (1 << 30, WRITTEN), (5 << 32 | 1 << 31, FREE)],
)
def test_preempt_rt(member: str, word: int, expected: State) -> None:
    """What stands behind the 4 bytes is no part of it; readers that leave while a writer waits still have it."""
    assert state(member, word) == expected


@pytest.mark.parametrize(
    ("member", "word"),
    [("count", 0x08), ("count", 0x80), ("rwbase.readers", 0x5A5A5A5A), ("readers", 3 << 30), ("readers", 1 << 30 | 1)],
)
def test_what_no_semaphore_holds_is_not_believed(member: str, word: int) -> None:
    with pytest.raises(NoSuchKernel, match="which no semaphore is"):
        state(member, word)


def test_a_structure_without_one_is_named() -> None:
    with pytest.raises(OptprobeError, match=r"mmap_lock\.count"):
        RwSemaphore.of(kernel(Pages(), {}, {}), "mm_struct", "mmap_lock", "mmap_sem")
