"""keystone, if it can be loaded. It sees only the templates of an instruction set, once."""

from __future__ import annotations

import re
from typing import Any

from gdb_optprobe.errors import OptprobeError

WORD = (1 << 64) - 1
KNOWN = "keystone-engine 0.9.2 with capstone 5 is known to do better"


def loaded() -> Any:
    """Return keystone itself. Raises OptprobeError where it is missing."""
    try:
        import keystone
    except (ImportError, OSError) as error:
        raise OptprobeError(
            f"keystone cannot be loaded ({str(error).splitlines()[0] if str(error) else type(error).__name__})",
            "scripts/setup in a checkout, else pip install keystone-engine, beside gdb_optprobe",
        ) from error
    return keystone


def assemble(source: str, arch: str, mode: str) -> bytes:
    """Assemble `source`. arch, mode: names of keystone's constants.

    Raises OptprobeError if keystone is missing, or refuses.
    """
    keystone = loaded()
    try:
        engine: Any = keystone.Ks(getattr(keystone, arch), getattr(keystone, mode))
        code, _ = engine.asm(source, 0, as_bytes=True)
    except keystone.KsError as error:
        raise OptprobeError(f"keystone does not assemble '{source}' ({error})", KNOWN) from error
    return bytes(code or b"")


def check(source: str, expected: str, mnemonic: str, operands: str) -> None:
    """Raise OptprobeError if capstone reads another instruction than `expected` in the code of `source`.

    The same one may be written in several ways: 8 and 0x8, -1 and 0xffffffffffffffff, [rax + 0] and [rax].
    """
    if _meaning(f"{mnemonic} {operands}") != _meaning(expected):
        raise OptprobeError(
            f"keystone assembled '{source}' as '{mnemonic} {operands}'",
            KNOWN,
        )


_NUMBER = re.compile(r"(?:([-+]) ?)?\b(0x[0-9a-f]+|[0-9]+)\b")


def _meaning(text: str) -> str:
    """Return an instruction's text with every number and every space written in one way."""

    def number(found: re.Match[str]) -> str:
        value = int(found[2], 0) * (-1 if found[1] == "-" else 1)
        return f" #{value & WORD:x} " if value or not found[1] else ""

    return " ".join(re.sub(r"([][(),:])", r" \1 ", _NUMBER.sub(number, text)).split())
