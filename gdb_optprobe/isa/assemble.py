"""keystone, where it can be loaded: it sees nothing but the templates of an instruction set, once."""

from __future__ import annotations

from typing import Any

from ..errors import OptprobeError


def assemble(source: str, arch: str, mode: str) -> bytes:
    """The code of `source`; arch, mode: names of keystone's constants. Raises OptprobeError where it is missing."""
    try:
        import keystone
    except (ImportError, OSError) as error:
        raise OptprobeError(
            f"keystone cannot be loaded ({str(error).splitlines()[0] if str(error) else type(error).__name__})",
            "run scripts/demo once, or pip install keystone-engine setuptools into GDB's Python",
        ) from error
    engine: Any = keystone.Ks(getattr(keystone, arch), getattr(keystone, mode))
    code, _ = engine.asm(source, 0, as_bytes=True)
    return bytes(code or b"")


def check(source: str, expected: str, mnemonic: str, operands: str) -> None:
    """Raises OptprobeError where capstone reads something else than `expected` in what `source` became."""
    if f"{mnemonic} {operands}".strip() != expected:
        wrong = f"keystone assembled '{source}' as '{mnemonic} {operands}'"
        raise OptprobeError(wrong, "install keystone-engine 0.9.2")
