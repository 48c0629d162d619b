"""Carry out, in their order, what programs ask of the host, and make the text of it.

    records of the ring ──► Runtime.take ──► text: printf, print(@m), time, …
                               │ clear, zero ──► the session's maps
                               └ exit ──► status
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest_text import of_literal
from gdb_optprobe.handlers.ctype import Enum, Integer
from gdb_optprobe.handlers.interpreter import MapContents
from gdb_optprobe.handlers.ir import WORD
from gdb_optprobe.handlers.script import requests
from gdb_optprobe.handlers.script.compile import Script
from gdb_optprobe.handlers.script.formats import rendered
from gdb_optprobe.handlers.script.output import Contents, Output
from gdb_optprobe.handlers.script.types import Blob, Folded, Nothing, Text, Type, bytes_of
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Count
from gdb_optprobe.maps.session_map import SessionMap


class Host(Protocol):
    """What a script may ask of the machine that it runs on, and of the guest's files."""

    def clock(self, format: str) -> str:
        """Return the time of day by a format of strftime."""

    def cat(self, name: str, most: int) -> str:
        """Return the text of a file of the guest. Raises OptprobeError."""

    def shell(self, command: str) -> str:
        """Run a command of the shell and return what it prints. Raises OptprobeError."""


class Runtime:
    """maps: the session's, by name without at-sign."""

    def __init__(self, script: Script, output: Output, host: Host, maps: Mapping[str, MapContents]) -> None:
        self.script = script
        self.output = output
        self.status: int | None = None
        """What `exit` has been given; None until it is called."""
        self._host = host
        self._maps = maps

    def attached(self) -> str:
        """Return what is printed first."""
        return self.output.attached(len(self.script.probes))

    def take(self, kind: int, record: bytes) -> str:
        """Carry out one record and return what it prints."""
        request = self.script.requests[kind]
        parts = _split(request.parts, record)
        match request:
            case requests.Printf(format):
                return self.output.message("printf", self._format(format, request.parts, parts))
            case requests.PrintValue((type_,)):
                return self.output.shown(type_, parts[0])
            case requests.PrintMap(name, top, divisor):
                return self.output.map(self.contents(name), top, divisor)
            case requests.Clear(name):
                self._clear(name)
            case requests.Zero(name):
                self._zero(name)
            case requests.ShowTime(format):
                return self.output.message("time", self._host.clock(format))
            case requests.Exit():
                self.status = int.from_bytes(parts[0], "little") & 0xFF if self.status is None else self.status
            case requests.Join(between):
                count = int.from_bytes(parts[0], "little")
                texts = (of_literal(part.partition(b"\0")[0]) for part in parts[1 : 1 + count])
                return self.output.joined(between.join(texts))
            case requests.Cat(format):
                name = self._format(format, request.parts, parts)
                try:
                    text = self._host.cat(name, self.script.settings.max_cat_bytes)
                except OptprobeError as error:
                    return f"ERROR: failed to open file '{name}': {error.message}\n"
                return self.output.message("cat", text)
            case requests.System(format):
                return self.output.message("syscall", self._host.shell(self._format(format, request.parts, parts)))
        return ""

    def at_end(self) -> str:
        """Return all maps, which are printed when a script ends."""
        if not self.script.settings.print_maps_on_exit:
            return ""
        return "".join(self.output.map(self.contents(name)) for name in sorted(self.script.maps))

    def contents(self, name: str) -> Contents:
        """Return what a map has now. name: with its at-sign."""
        type_, found = self.script.maps[name], dict(contents_of(self._maps[name[1:]]))
        if self._is_array(type_.value, type_.key) and not found:
            found = {b"": (0,)}
        return Contents(name, type_, found)

    def _is_array(self, value: Type, key: Type | None) -> bool:
        """Return whether a map always has its one value: a count without a key, in bpftrace."""
        return isinstance(value, Folded) and isinstance(value.aggregate, Count) and isinstance(key, Nothing)

    def _clear(self, name: str) -> None:
        map_ = self._maps[name[1:]]
        if isinstance(map_, SessionMap):
            map_.clear()
            return
        for key in map_.all_keys():
            map_.delete(key)

    def _zero(self, name: str) -> None:
        type_, map_ = self.script.maps[name].value, self._maps[name[1:]]
        if isinstance(map_, SessionMap):
            map_.zero()
            return
        words = aggregate.initial(type_.aggregate) if isinstance(type_, Folded) else (0,) * (bytes_of(type_) // WORD)
        for key in map_.all_keys():
            map_.put(key, words)

    def _format(self, format: str, types: tuple[Type, ...], parts: list[bytes]) -> str:
        values: list[int | bytes] = []
        for type_, data in zip(types, parts, strict=True):
            if isinstance(type_, Blob):
                values.append(data[WORD : WORD + int.from_bytes(data[:WORD], "little")])
            elif isinstance(type_, Integer | Enum):
                values.append(int.from_bytes(data, "little"))
            else:
                values.append(data)
        texts = [partial(self._text, type_, data) for type_, data in zip(types, parts, strict=True)]
        return rendered(format, values, texts)

    def _text(self, type_: Type, data: bytes) -> bytes:
        """Return what `%s` shows."""
        if not isinstance(type_, Text):
            return self.output.text(type_, data).encode("utf-8", "surrogateescape")
        text = data[: type_.size].partition(b"\0")[0]
        if len(text) + 1 == type_.size == self.script.settings.max_strlen:
            text += self.script.settings.str_trunc_trailer.encode()
        return text


def contents_of(map_: MapContents) -> Mapping[bytes, tuple[int, ...]]:
    """Return all keys of a map with their words; of one in the guest, read in two pieces."""
    if isinstance(map_, SessionMap):
        return map_.contents().by_key
    return {key: words for key in map_.all_keys() if (words := map_.get(key)) is not None}


def _split(types: tuple[Type, ...], record: bytes) -> list[bytes]:
    found, at = [], 0
    for type_ in types:
        found.append(record[at : at + bytes_of(type_)])
        at += bytes_of(type_)
    return found
