"""What ELF files and call frame information of this ISA say."""

from __future__ import annotations

from gdb_optprobe.isa.elf import ElfMachine

MACHINE = ElfMachine("x86_64", 62, 0, bytes((1, 0, 1, 1, 16, 0x0C, 7, 0, 0x07, 16, 0, 0)))
