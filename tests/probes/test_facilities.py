"""What doctor says of kernels that lack what stock ones have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.probes.facilities import of_guest
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFF_FFFF_8100_0000


class NoSites:
    def __len__(self) -> int:
        return 0

    def within(self, start: int, end: int) -> tuple[int, ...]:
        return ()


def found(name: str) -> Any:
    """The facility of a kernel without modules or a function tracer, whose functions all could be optimized."""
    text = SimpleNamespace(ftrace=NoSites(), function=lambda at: SimpleNamespace(start=at, name="f"))
    names = {"_stext": TEXT, "d__etext": TEXT + 0x1000}
    linux: Any = SimpleNamespace(kernel=kernel(Pages(), names), text=text, entry=lambda at: at, structures=text)
    text.source = lambda: ""
    linux.recovered = SimpleNamespace(text=(TEXT, TEXT + 0x1000))
    plan = SimpleNamespace(tier=Tier.OPTIMIZED, reason=None)
    session: Any = SimpleNamespace(optimizer=SimpleNamespace(plan=lambda at, specs: plan), target=SimpleNamespace())
    return next(each for each in of_guest(session, linux) if each.name == name)


def test_entries_need_no_tracer() -> None:
    assert found("entries").detail == "no tracer's sites, 8 of 8 that were tried would be optimized"


def test_a_kernel_without_modules_lacks_nothing() -> None:
    assert found("modules").detail == "this kernel has none (CONFIG_MODULES)"
