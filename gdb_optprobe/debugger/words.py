"""Places, counts, code and reasons, as text and as JSON values."""

from __future__ import annotations

from gdb_optprobe.probes.views import CodeLine, ReasonView


def place(address: int, symbol: str) -> str:
    return f"{address:#x} <{symbol}>" if symbol else f"{address:#x}"


def counted(count: int, noun: str, nouns: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def reason(reason: ReasonView | None) -> dict[str, object] | None:
    return {"code": reason.code, "text": reason.text} if reason else None


def code(line: CodeLine) -> dict[str, object]:
    return {"address": hex(line.address), "bytes": pairs(line.data), "text": line.text}


def pairs(data: bytes) -> str:
    return data.hex(" ")
