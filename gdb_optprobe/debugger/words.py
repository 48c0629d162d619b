"""Places and counts as text."""

from __future__ import annotations


def place(address: int, symbol: str) -> str:
    return f"{address:#x} <{symbol}>" if symbol else f"{address:#x}"


def counted(count: int, noun: str, nouns: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"
