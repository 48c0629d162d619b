"""Flags of the page allocator, from the kernel's own table of their names."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import gfp
from gdb_optprobe.guest.linux.kernel import Kernel
from tests.guest.linux.fake_kernel import Machine, kernel

TABLE, TEXT = 0x82001000, 0x82002000
FLAGS = {
    "GFP_KERNEL": 0xCC0,
    "GFP_NOWAIT": 0x800,
    "__GFP_NOWARN": 0x2000,
    "__GFP_DIRECT_RECLAIM": 0x400,
}
"""As Linux 6.1 has them."""


def of(flags: Mapping[str, int], ends: bool = True) -> Kernel:
    memory = Machine()
    for number, (name, mask) in enumerate(flags.items()):
        memory.put_words(TABLE + 16 * number, mask, TEXT + 64 * number)
        memory.put(TEXT + 64 * number, name.encode() + b"\0")
    memory.put_words(TABLE + 16 * len(flags), 0, 0 if ends else TEXT)
    return kernel(memory, {gfp.TABLE: TABLE})


def test_flags_with_which_nothing_sleeps_and_nothing_is_told() -> None:
    assert gfp.at_once(of(FLAGS)) == 0x2800


@pytest.mark.parametrize(
    "changed",
    [
        {"GFP_NOWAIT": 0xC00},  # it would sleep
        {"GFP_NOWAIT": 1 << 40},
        {"GFP_KERNEL": 0x800},
        {"__GFP_NOWARN": 0x3000},
        {"__GFP_DIRECT_RECLAIM": 0},
    ],
)
def test_flags_that_contradict_each_other(changed: Mapping[str, int]) -> None:
    with pytest.raises(OptprobeError, match="not as expected"):
        gfp.at_once(of({**FLAGS, **changed}))


@pytest.mark.parametrize("name", FLAGS)
def test_a_table_without_one_of_them(name: str) -> None:
    with pytest.raises(OptprobeError, match=f"does not have {name}"):
        gfp.at_once(of({other: mask for other, mask in FLAGS.items() if other != name}))


def test_a_table_without_end_and_a_kernel_without_one() -> None:
    memory = Machine()
    memory.put_words(TABLE, *(1, TEXT) * 256)
    memory.put(TEXT, bytes([65]) * 64)
    with pytest.raises(OptprobeError, match="does not end"):
        gfp.at_once(kernel(memory, {gfp.TABLE: TABLE}))
    with pytest.raises(OptprobeError, match=gfp.TABLE):
        gfp.at_once(kernel(memory, {}))
