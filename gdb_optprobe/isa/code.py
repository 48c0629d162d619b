"""Code that has no place yet: made for an address, and of the same size at every one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Code = Callable[[int], bytes]
"""The instructions, by the address that they shall run at. Execution leaves by falling through their end."""


def joined(parts: Sequence[Code]) -> Code:
    """One behind the other."""

    def whole(at: int) -> bytes:
        code = b""
        for part in parts:
            code += part(at + len(code))
        return code

    return whole
