"""A kernel at EL2 is refused by its own reason; vCPUs without page tables at EL1 are no kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pytest

from gdb_optprobe.guest.linux.arch.aarch64 import find as finding
from gdb_optprobe.guest.machine import Machine, Vcpu


@dataclass(frozen=True)
class Vcpus:
    """vCPUs with an empty TTBR1_EL1, by their exception levels."""

    levels: Sequence[int]

    def vcpus(self) -> Sequence[Vcpu]:
        return [Vcpu(number, str(number)) for number in range(len(self.levels))]

    def selected(self) -> Vcpu:
        return self.vcpus()[0]

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> Mapping[str, int]:
        return {name: self.levels[vcpu.number] if name == "el" else 0 for name in names}


def test_a_kernel_at_el2_is_refused() -> None:
    with pytest.raises(finding.AtEl2, match="EL2"):
        finding.find(cast(Machine, Vcpus((0, 2))))


def test_firmware_and_programs_are_no_kernel() -> None:
    assert finding.find(cast(Machine, Vcpus((0, 1)))) is None
