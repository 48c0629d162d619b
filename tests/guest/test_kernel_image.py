"""A kernel is found by its pages' protection, and named by its build-id."""

from __future__ import annotations

import struct

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import kernel_image
from gdb_optprobe.guest.kernel_image import Image, Run

from .blobs import note

TEXT = 0xFFFF_FFFF_9B40_0000
BUILD = bytes(range(20))
NOTES = note(b"Xen\0", 6, b"linux\0") + note(b"GNU\0", 3, BUILD) + note(b"Linux\0", 0x100, b"\0")


def run(offset: int, size: int, rights: str) -> Run:
    return Run(TEXT + offset, size, writable="w" in rights, executable="x" in rights)


def test_a_booted_kernel_in_many_runs() -> None:
    runs = [
        *(run(0, 0xE0_0000, "rx"), run(0xE0_0000, 0x2000, "rx"), run(0xE0_2000, 0x1000, "r")),
        *(run(0x100_0000, 0x60_0000, "r"), run(0x160_0000, 0x22_7000, "r")),
        *(run(0x1A0_0000, 0x20_0000, "rw"), run(0x1C0_0000, 0x1000, "rw"), run(0x1E0_0000, 0x1000, "rw")),
    ]
    expected = Image(run(0, 0xE0_2000, "rx"), run(0x100_0000, 0x82_7000, "r"), run(0x1A0_0000, 0x40_1000, "rw"))
    assert kernel_image.find(runs) == expected
    assert kernel_image.find(reversed(runs)) == expected


@pytest.mark.parametrize(
    "runs",
    [
        [run(0, 0x280_0000, "rwx")],
        [run(0, 0x100_0000, "rx"), run(0x100_0000, 0x100_0000, "rwx")],
        [run(0, 0x100_0000, "rx"), run(0x100_0000, 0x100_0000, "r")],
        [run(0, 0x100_0000, "rw")],
    ],
)
def test_a_kernel_that_has_not_booted(runs: list[Run]) -> None:
    with pytest.raises(OptprobeError, match="the guest's kernel has not booted yet"):
        kernel_image.find(runs)


def test_no_kernel() -> None:
    with pytest.raises(OptprobeError, match="no Linux kernel"):
        kernel_image.find([])


def test_build_id() -> None:
    offset = 100 + len(note(b"Xen\0", 6, b"linux\0"))
    assert kernel_image.build_id(bytes(100) + NOTES) == kernel_image.BuildId(BUILD.hex(), offset)


def test_the_build_id_of_the_vdso_is_not_the_kernels() -> None:
    vdso = bytearray(b"\x7fELF\x02\x01\x01".ljust(64, b"\0") + note(b"GNU\0", 3, bytes(20)) + bytes(128))
    struct.pack_into("<Q", vdso, 0x28, len(vdso) - 128)
    struct.pack_into("<HH", vdso, 0x3A, 64, 2)
    assert kernel_image.build_id(bytes(4096) + vdso + NOTES).hex == BUILD.hex()
    # A header that leads beyond the data is no ELF file, and hides nothing.
    struct.pack_into("<Q", vdso, 0x28, 1 << 40)
    assert kernel_image.build_id(bytes(vdso)).hex == bytes(20).hex()


def test_no_build_id() -> None:
    assert kernel_image.find_build_id(bytes(64) + note(b"GNU\0", 1, BUILD)) is None
    with pytest.raises(OptprobeError, match="no build-id"):
        kernel_image.build_id(bytes(64))


def test_a_note_is_recognised() -> None:
    data = note(b"GNU\0", 3, BUILD) + bytes(50)
    assert kernel_image.is_note_of(BUILD.hex(), data)
    assert not kernel_image.is_note_of(bytes(20).hex(), data)
    assert not kernel_image.is_note_of(BUILD.hex(), b"\0" + data)
    assert not kernel_image.is_note_of(BUILD.hex(), b"")


def test_banner() -> None:
    rodata = b"%s version %s\0Linux version %s\0Linux version 6.1.0-56-cloud-amd64 (gcc) #1 SMP\n\0more"
    assert kernel_image.banner(rodata) == "Linux version 6.1.0-56-cloud-amd64 (gcc) #1 SMP"
    assert kernel_image.banner(b"") == ""
