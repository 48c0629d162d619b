"""The code in place of the kernel's function that maps files, of each ISA: what it writes, and what it leaves alone."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux.user.mmap_hook import EXECUTABLE, PATIENCE, SHARED, WRITABLE
from tests.guest.linux.arch.aarch64 import test_mmap_hook as aarch64
from tests.guest.linux.arch.ppc64le import test_mmap_hook as ppc64le
from tests.guest.linux.arch.x86_64 import test_mmap_hook as x86_64
from tests.guest.linux.mmap_hook import PRIVATE, HookRun
from tests.isa.ppc64le.oracle import needs_oracle

on_each_isa = pytest.mark.parametrize(
    "hook",
    [
        pytest.param(x86_64.HOOK, id="x86_64"),
        pytest.param(ppc64le.HOOK, id="ppc64le", marks=needs_oracle),
        pytest.param(aarch64.HOOK, id="aarch64"),
    ],
)


@on_each_isa
def test_what_belongs_into_the_mapping_is_written_in_its_order(hook: HookRun) -> None:
    page, trap, start = hook.page, hook.trap, hook.start
    last, beyond, before = (hook.row(at) for at in (5 * page - trap, 5 * page, 3 * page - trap))
    others = hook.row(3 * page + 8, inode=8)
    copied = start + 3 * page // 2
    assert hook.ran((others, hook.copy, hook.first, beyond, last, before)) == (
        [(copied, 16), (copied + 16, 4), (start, trap), (start + 2 * page - trap, trap)], (0, 0)
    )


OTHER = {
    "no file": {"file": 0},
    "not executable": {"prot": 3},
    "shared": {"flag": SHARED},
    "shared, validated": {"flag": SHARED | PRIVATE},
    "another part": {"pgoff": 8},
    "to be written": {"prot": 1 | EXECUTABLE | WRITABLE},
}


@on_each_isa
@pytest.mark.parametrize("other", OTHER)
def test_what_does_not_matter_is_only_mapped(hook: HookRun, other: str) -> None:
    assert hook.ran((hook.first, hook.row(5 * hook.page - hook.trap)), **OTHER[other]) == ([], (0, 0))


@on_each_isa
def test_an_error_is_returned_and_nothing_is_written(hook: HookRun) -> None:
    for error in (-12, -1, -4095):
        assert hook.ran((hook.first,), result=error) == ([], (0, 0))


@on_each_isa
def test_what_cannot_be_written_keeps_the_rest_from_being_written(hook: HookRun) -> None:
    """A trap leads to the copy that comes before it."""
    written, left = hook.ran((hook.copy, hook.first), fails=True)
    assert hook.start not in [at for at, _ in written] and left == (0, 1)


@on_each_isa
def test_a_killed_thread_need_not_write(hook: HookRun) -> None:
    assert hook.ran((hook.copy, hook.first), fails=True, rest=PATIENCE)[1] == (0, 0)
