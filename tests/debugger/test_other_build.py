"""A file of another build than the guest's kernel is named in a warning; a program of the user is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.commands.in_gdb import gdb

GUESTS = "00112233445566778899aabbccddeeff00112233"
FILES = "ffeeddccbbaa99887766554433221100ffeeddcc"
WARN = f'python from gdb_optprobe.debugger import kernel_symbols; kernel_symbols.warn_of_others("{GUESTS}")'
SOURCE = '.section {section},"ax"\n.globl _start\n_start: nop\n'


def linked(folder: Path, section: str, build: str) -> Path:
    """Return an executable with a section and a build-id."""
    source, made = folder / "source.s", folder / "vmlinux"
    source.write_text(SOURCE.format(section=section))
    subprocess.run(["as", str(source), "-o", str(folder / "source.o")], check=True)
    subprocess.run(["ld", f"--build-id=0x{build}", str(folder / "source.o"), "-o", str(made)], check=True)
    return made


@pytest.mark.parametrize(
    ("section", "build", "warned"),
    [(".init.text", FILES, True), (".init.text", GUESTS, False), (".text", FILES, False)],
)
def test_a_kernel_of_another_build_is_named(tmp_path: Path, section: str, build: str, warned: bool) -> None:
    file = linked(tmp_path, section, build)
    ended = gdb(f"symbol-file {file}", WARN)
    assert (f"GDB's symbols in {file} are of another build" in ended.err) == warned, ended.err
    assert warned == (f"build-id {FILES}, the guest has {GUESTS}" in ended.err)
