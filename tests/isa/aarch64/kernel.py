"""The text of Debian's stock kernel: an image as it is, without symbols."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from qemu.debian import FetchError
from qemu.kernels import stock_kernel

PACKAGE, ARCH = "linux-image-cloud-arm64", "arm64"
HEAD = 0x1_0000  # before _stext
ZEROS = bytes(0x1000)
SITE = bytes.fromhex("1f2003d5") * 2  # nop; nop: the first one becomes `mov x9, x30` when the kernel boots


@cache
def _read() -> bytes | str:
    try:
        image = stock_kernel(PACKAGE, ARCH).image.read_bytes()
    except FetchError as error:
        return str(error)
    return image[HEAD : image.index(ZEROS, HEAD) & ~3]  # segments are aligned


def text() -> bytes:
    """Return it from _stext on. Skips the test where there is none."""
    found = _read()
    if isinstance(found, str):
        pytest.skip(f"no {PACKAGE}: {found}")
    return found


@cache
def different_words() -> Sequence[bytes]:
    """Return the words of the text, each once."""
    found = text()
    return sorted({found[at : at + 4] for at in range(0, len(found), 4)})


@cache
def functions() -> Sequence[bytes]:
    """Return the functions that have an ftrace site, each up to the next one's."""
    return [SITE + piece[: len(piece) & ~3] for piece in text().split(SITE)[1:]]
