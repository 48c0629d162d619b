r"""Make text from the guest printable: the one place where bytes of the guest become characters.

    guest memory, ELF files, QEMU's answers ──bytes──► printable ──str──► views ──► terminal, JSON, files
                                                       dd\n\033[2J

Text from the guest is `bytes` until then, and mypy keeps bytes out of every f-string and every parameter of type str.
No other file converts bytes to characters: tests/test_layers.py looks for `decode`, `chr` and the like.

The form is that of a C string without its quotes, so it can be converted back (`raw`): `\\` for a backslash, `\n`,
`\t` and `\r`, three octal digits for each byte of all else that is not printable: controls, C1 controls, marks that
change the direction of writing, spaces but the usual one, surrogates, and what is no UTF-8. JSON has the same form.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(rb"[ -\[\]-~]*")
_NAME = re.compile(rb"[!-\[\]-~]+")
_TYPED = re.compile(r"[!-\[\]-~]*")
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}
_LONG = {short: text.encode() for text, short in _SHORT.items()} | {r"\\": b"\\"}
_ESCAPE = re.compile(r"\\(?:[ntr\\]|[0-3][0-7]{2})")


def printable(data: bytes) -> str:
    """Return bytes of the guest as one line of characters that are safe anywhere."""
    if _PLAIN.fullmatch(data):
        return data.decode("ascii")
    text = data.decode("utf-8", "surrogateescape")
    return "".join(r"\\" if character == "\\" else _shown(character) for character in text)


def until_zero(data: bytes) -> str:
    """Return the text before the first 0 byte, printable: a C string in an array."""
    return printable(data.partition(b"\0")[0])


def of_literal(data: bytes) -> str:
    """Return a string literal of a program, such as a format: control characters escaped, but for lines and tabs."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(character if character in "\n\t" else _shown(character) for character in text)


def as_typed(data: bytes) -> str:
    """Return a string literal that the user has typed, as it is: control characters are meant."""
    return data.decode("utf-8", "surrogateescape")


def name(data: bytes) -> str:
    """Return a symbol's name if it is of visible ASCII characters, as compilers make them; else ""."""
    return data.decode("ascii") if _NAME.fullmatch(data) else ""


def is_plain(text: str) -> bool:
    """Return whether names are of visible ASCII characters and no escapes: a compiler made them, and GDB takes them."""
    return _TYPED.fullmatch(text) is not None


def raw(text: str) -> bytes:
    """Return the bytes that a user means: as `printable` shows them, or as they are."""
    parts: list[bytes] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        parts += [_encoded(text[at : found.start()]), _LONG.get(found[0]) or bytes([int(found[0][1:], 8)])]
        at = found.end()
    return b"".join([*parts, _encoded(text[at:])])


def one_line(text: str) -> str:
    """Return text of any origin as one line of printable characters. What `printable` made stays as it is.

    Use it for text that is not bytes: GDB's messages, typed text, strings of a journal, a line to be written.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def lines(text: str) -> str:
    """Return text of several lines as `one_line` does each."""
    return "\n".join(map(one_line, text.split("\n")))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return _SHORT.get(character) or "".join(f"\\{byte:03o}" for byte in _encoded(character))


def _encoded(text: str) -> bytes:
    """Encode text. A lone surrogate is the byte that Python made it of, or its own three bytes."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
