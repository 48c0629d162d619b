"""What ELF files and call frame information of this ISA say."""

from __future__ import annotations

from gdb_optprobe.isa.elf import ElfMachine

MACHINE = ElfMachine("ppc64le", 21, 2, bytes((1, 0, 1, 1, 65, 0x0C, 1, 0, 0x07, 65, 0, 0)))  # ELF ABI version 2
