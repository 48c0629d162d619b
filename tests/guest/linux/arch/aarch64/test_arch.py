"""What Linux on aarch64 says of functions, areas and stacks."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64 import areas, vectors
from gdb_optprobe.guest.linux.arch.aarch64.arch import LINUX_AARCH64
from gdb_optprobe.guest.linux.arch.aarch64.stacks import saved_in, unsigned
from gdb_optprobe.guest.linux.arch.aarch64.text import ArmText
from gdb_optprobe.guest.text import Area
from gdb_optprobe.isa.aarch64.fields import to_bytes
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFF_8000_0800_0000
NAMES = {"_stext": TEXT, "function": TEXT + 0x10, "guarded": TEXT + 0x40, "d__etext": TEXT + 0x1000}
ENTERED, NOP, BTI, PACIASP = 0xAA1E_03E9, 0xD503_201F, 0xD503_245F, 0xD503_233F


def test_a_function_s_entry_is_its_first_instruction_but_for_a_landing_pad() -> None:
    memory = Pages()
    memory.put(TEXT + 0x10, to_bytes(ENTERED, NOP, PACIASP))
    memory.put(TEXT + 0x40, to_bytes(BTI, ENTERED, NOP))
    text = ArmText(kernel(memory, NAMES))
    for function, entry in ((TEXT + 0x10, TEXT + 0x10), (TEXT + 0x40, TEXT + 0x44)):
        assert LINUX_AARCH64.entry(function, text) == entry
        assert LINUX_AARCH64.entry_by_head(function, memory.read(function, 8)) == entry


@pytest.mark.parametrize(
    "name, area",
    [
        ("vfs_read", Area.TEXT),
        ("ret_to_user", Area.ENTRY),
        ("cpu_switch_to", Area.ENTRY),
        ("__kvm_nvhe_handle_trap", Area.EARLY),
        ("arm64_relocate_new_kernel", Area.COPIED),
        ("ftrace_caller", Area.COPIED),
        ("ftrace_startup", Area.TEXT),
        ("__idmap_text_end", Area.NOT_TEXT),
    ],
)
def test_areas_by_name(name: str, area: Area) -> None:
    assert areas.of(name) is area


def test_memory_for_modules_is_what_their_code_could_be_in() -> None:
    """Modules may be on either side of the image, but not beyond the reach of what addresses it."""
    text = ArmText(kernel(Pages(), NAMES))
    for distance, area in ((1 << 20, Area.MODULE), (3 << 30, Area.MODULE), (5 << 30, Area.NOT_TEXT)):
        assert text.area(TEXT + distance) is area
        assert text.area(0xFFFF_C000_0000_0000 + distance) is Area.NOT_TEXT
    near = ArmText(kernel(Pages(), {name: at + (1 << 40) for name, at in NAMES.items()}))
    assert near.area(TEXT + (1 << 40) - (1 << 30)) is Area.MODULE
    assert near.area(0xFFFF_FFFF_0000_0000) is near.area(TEXT) is Area.NOT_TEXT


@pytest.mark.parametrize("low", [0x0941_0000, 0x9100_0000, 0xD503_201F])
def test_what_a_tracer_loads_before_a_function_is_no_code_of_the_one_before(low: int) -> None:
    """Its lower half looks like an instruction in some boots: a branch there would have the tracer call anything."""
    for upper, last in ((TEXT >> 32, 0x34), (NOP, 0x3C)):
        memory = Pages()
        memory.put(TEXT + 0x10, to_bytes(ENTERED, NOP, PACIASP, *[NOP] * 7, low, upper))
        found = ArmText(kernel(memory, NAMES)).function(TEXT + 0x10)
        assert found is not None and found.end == TEXT + 0x40 and max(found.own) == TEXT + last


def test_what_vectors_say_of_stacks() -> None:
    memory = Pages()
    # sub sp, sp, #0x150; add sp, sp, x0; sub x0, sp, x0; tbnz w0, #14, …
    memory.put(TEXT + 0x200, to_bytes(0xD105_43FF, 0x8B20_63FF, 0xCB20_63E0, 0x3770_0080))
    made = kernel(memory, {"_stext": TEXT, "vectors": TEXT, "d__etext": TEXT + 0x1000})
    assert (vectors.thread_size(made), vectors.frame_size(made)) == (1 << 14, 0x150)
    memory.put(TEXT + 0x20C, to_bytes(NOP))
    with pytest.raises(OptprobeError):
        vectors.thread_size(made)


def test_what_an_exception_interrupted_is_a_saved_pc_while_interrupts_are_masked() -> None:
    """It may be in no other place, before it is saved and once it is restored."""
    values = {"pc": TEXT, "x0": 7, "ELR_EL1": TEXT + 0x40, "el": 1, "cpsr": 0x3C5}
    assert [*saved_in(values, ("pc", "x0"))] == [TEXT, 7, TEXT + 0x40]
    assert [*saved_in(values, ("pc", "x0"), (TEXT - 8, TEXT + 8))] == [TEXT, 7], "of an idle CPU it is long over"
    assert [*saved_in(values, ("pc", "x0"), (TEXT + 8, TEXT + 16))] == [TEXT, 7, TEXT + 0x40]
    for other in ({"cpsr": 0x305}, {"el": 0}):
        assert [*saved_in(values | other, ("pc", "x0"))] == [TEXT, 7]


def test_a_signature_hides_no_saved_pc() -> None:
    assert unsigned(0x5AFF_8000_0812_3456) == 0xFFFF_8000_0812_3456
    assert unsigned(0x0000_1234_5678_9ABC) == 0x0000_1234_5678_9ABC
