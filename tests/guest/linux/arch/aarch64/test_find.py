"""Kernels in page tables: with isolation, beside other code, not protected yet, and none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gdb_optprobe.errors import NotBooted
from gdb_optprobe.guest.linux.arch.aarch64 import find as finding
from gdb_optprobe.guest.linux.arch.aarch64.find import GUARDED, HEAD, HEADER, ISOLATED, MAGIC, Guarded, PageTables
from gdb_optprobe.guest.machine import Vcpu
from tests.guest.linux.arch.aarch64.tables import CODE, CONSTANT, DATA, ROOT, TCR, Tables, regime
from tests.guest.linux.fake_kernel import symbols

TEXT, PHYSICAL = 0xFFFF_A819_7CE0_0000, 0x4020_0000
BLOCK = 1 << 21


class Machine(Tables):
    """A guest of some vCPUs."""

    def __init__(self, registers: Sequence[Mapping[str, int]]) -> None:
        super().__init__(regime())
        self._registers = registers

    def vcpus(self) -> Sequence[Vcpu]:
        return [Vcpu(number, f"1.{number + 1}") for number in range(len(self._registers))]

    def selected(self) -> Vcpu:
        return self.vcpus()[0]

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        return {name: self._registers[vcpu.number][name] for name in names}


def machine(*roots: int) -> Machine:
    return Machine([{"TTBR1_EL1": root | 0x2A << 48 | 1, "TCR_EL1": TCR, "el": 1} for root in roots])


def kernel(made: Machine, text: int = TEXT, physical: int = PHYSICAL, code: int = CODE) -> Machine:
    for number, attributes in enumerate((code, code, CONSTANT, None, DATA)):
        if attributes is not None:
            made.map(text + number * BLOCK, physical + number * BLOCK, attributes, level=2)
    return made


def found(made: Machine) -> tuple[int, int, int, int]:
    result = finding.find(made)  # type: ignore[arg-type]
    assert result is not None and isinstance(result[1], PageTables) and result[1].root == ROOT
    image = result[0]
    return image.text.start, image.text.end, image.rodata.end, image.data.end


EXPECTED = (TEXT, TEXT + 2 * BLOCK, TEXT + 3 * BLOCK, TEXT + 5 * BLOCK)


def test_in_the_tables_of_a_vcpu() -> None:
    assert found(kernel(machine(ROOT))) == EXPECTED


def test_where_every_vcpu_runs_a_program() -> None:
    """With isolation its tables have next to nothing, 8 KiB before the kernel's."""
    made = kernel(machine(ROOT - ISOLATED, ROOT - ISOLATED))
    assert found(made) == EXPECTED
    assert PageTables(made, made.regime, ROOT).now(TEXT) == PHYSICAL  # type: ignore[arg-type]


def test_beside_modules_and_memory_of_other_places() -> None:
    made = kernel(machine(ROOT))
    made.map(TEXT - 64 * BLOCK, 0x9000_0000, CODE)  # a module
    made.map(TEXT + 6 * BLOCK, 0x5555_0000, DATA)  # not of the image: elsewhere in physical memory
    made.map(0xFFFF_0000_0000_0000, 0x4000_0000, DATA, level=2)  # the linear map
    assert found(made) == EXPECTED


def test_before_the_kernel_has_protected_its_text() -> None:
    with pytest.raises(NotBooted):
        finding.find(kernel(machine(ROOT), code=0))  # type: ignore[arg-type]


WRITABLE = CODE & ~(1 << 7)
"""Rights of the image while all of it is mapped in one way."""
PARTS = {"_stext": HEAD, "_etext": BLOCK, "_sinittext": 2 * BLOCK + 0x40, "_einittext": 3 * BLOCK + 0x1234}


@pytest.mark.parametrize("protected", [False, True])
def test_a_kernel_that_boots_is_told_apart_by_its_symbols(protected: bool) -> None:
    """At first its image is mapped in one piece, with the header; then its text alone is protected, from _stext on."""
    made, start = machine(ROOT), TEXT
    if protected:
        made.map(TEXT, PHYSICAL, CODE, level=2)
        start, rest = TEXT - HEAD, DATA
    else:
        made.map(TEXT, PHYSICAL, WRITABLE, level=2)
        rest = WRITABLE
        made.words[PHYSICAL + HEADER] = int.from_bytes(MAGIC, "little")
    for number in range(1, 5):
        made.map(TEXT + number * BLOCK, PHYSICAL + number * BLOCK, rest, level=2)
    result = finding.find(made)  # type: ignore[arg-type]
    assert result is not None and finding.is_early(result[0]) and result[0].text.start == start + HEAD
    known = {name: start + at for name, at in PARTS.items()}
    ended = PHYSICAL + 4 * BLOCK
    named = {**known, "_text": start, "d_init_task": TEXT, "d_rcu_boot_ended": TEXT + 4 * BLOCK}
    image, view = finding.complete(*result, symbols(**named))
    assert view == result[1] and not finding.is_early(image)
    parts = [(run.start - start, run.end - start) for run in (image.text, image.rodata)]
    assert parts == [(HEAD, BLOCK), (BLOCK, 2 * BLOCK)]
    assert (image.data.start - start, image.data.end) == (3 * BLOCK + HEAD, TEXT + 5 * BLOCK)
    for wrong in ({**named, "_etext": start}, {**named, "_einittext": TEXT + 9 * BLOCK}, {"_stext": start + HEAD}):
        with pytest.raises(NotBooted):
            finding.complete(*result, symbols(**wrong))
    made.words[ended] = 1
    with pytest.raises(NotBooted):
        finding.complete(*result, symbols(**named))


def test_no_kernel() -> None:
    assert finding.find(machine(0)) is None  # type: ignore[arg-type]
    assert finding.find(machine(ROOT)) is None  # type: ignore[arg-type]
    made = machine(ROOT)
    made.map(TEXT, PHYSICAL, CODE)  # a page of code is no kernel
    assert finding.find(made) is None  # type: ignore[arg-type]


def test_a_kernel_whose_branches_are_checked_is_refused() -> None:
    with pytest.raises(Guarded, match="CONFIG_ARM64_BTI_KERNEL"):
        finding.find(kernel(machine(ROOT), code=CODE | GUARDED))  # type: ignore[arg-type]
