"""Programs of the guest's, assembled and linked here."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tools:
    """How programs of a machine are made. prefix: of its tools' names."""

    prefix: str
    assembler: tuple[str, ...]
    linker: tuple[str, ...]


TOOLS = {
    "x86_64": Tools("", ("--64",), ("-m", "elf_x86_64")),
    "i386": Tools("", ("--32",), ("-m", "elf_i386")),
    "ppc64le": Tools("powerpc64le-linux-gnu-", (), ()),
    "aarch64": Tools("aarch64-linux-gnu-", (), ()),
}
NOTHING: Mapping[str, int] = {}


def assembled(program: Path, source: str, arch: str, *link: str, symbols: Mapping[str, int] = NOTHING) -> Path:
    """The program, or what `link` asks the linker for. symbols: what the source does not define itself."""
    tools = TOOLS[arch]
    text, made = (program.with_name(f"{program.name}{ending}") for ending in (".s", ".o"))
    text.write_text(source)
    defined = [f"--defsym={name}={value}" for name, value in symbols.items()]
    subprocess.run([f"{tools.prefix}as", *tools.assembler, *defined, "-o", made, text], check=True)
    options = link or ("-static",)
    subprocess.run([f"{tools.prefix}ld", *tools.linker, *options, "-o", program, made], check=True)
    return program


def source_of(name: str) -> str:
    """A source that lies beside the tests."""
    return Path(__file__).with_name(name).read_text()
