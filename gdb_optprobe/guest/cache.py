"""What was recovered from a kernel once, on disk by build-id, so that the next session starts at once.

    $OPTPROBE_CACHE, or ${XDG_CACHE_HOME:-~/.cache}/optprobe
    └── symbols/
        └── BUILD-ID/
            ├── facts.json     where the build-id's note lies (from _text), and whatever else is small and worth keeping
            ├── symbols.bin    columns of all symbols, addresses from _text: KASLR does not matter
            ├── symbols.elf    the same for GDB
            └── …              what a `Shelf` was given, behind a checksum

A cache is only ever a shortcut: a file that is damaged, of another format or unreadable is as good as none, and one
that cannot be written is done without. Files appear whole: they are written aside and renamed.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.image import is_note_of
from gdb_optprobe.guest.symbols import KERNEL_HALF, Symbols

__all__ = ["Cache", "Shelf", "default_cache"]

SYMBOLS, ELF, FACTS = "symbols.bin", "symbols.elf", "facts.json"
# Magic with the format's number, the checksum of all that follows it, how many symbols, how many of them absolute.
HEADER = struct.Struct("<8sIII")
MAGIC = b"optprob1"
CHECKSUM = struct.Struct("<I")
# Bytes of the longest note: header, "GNU\0", SHA-1 or more.
NOTE_SIZE = 16 + 64
NOTE = "note_offset"


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache in `folder`, which need not exist yet."""

    folder: Path

    def recognise(self, text: int, read: Callable[[int, int], bytes]) -> str | None:
        """The build-id of the kernel whose code starts at `text` if it is known here: each one's note is looked for."""
        try:
            known = [entry.name for entry in self.folder.iterdir()]
        except OSError:
            return None
        for build in known:
            offset = self.facts(build).get(NOTE)
            if isinstance(offset, int):
                try:
                    note = read(text + offset, NOTE_SIZE)
                except OptprobeError:
                    continue
                if is_note_of(build, note):
                    return build
        return None

    def facts(self, build: str) -> dict[str, Any]:
        """What `remember` was given for this build; nothing where that is lost."""
        try:
            envelope = json.loads(self._path(build, FACTS).read_bytes())
            facts = envelope["facts"]
            sound = isinstance(facts, dict) and envelope["checksum"] == _checksum_of(facts)
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return facts if sound else {}

    def remember(self, build: str, facts: Mapping[str, Any]) -> None:
        """Add `facts` (what JSON can hold) to those known of this build."""
        merged = {**self.facts(build), **facts}
        self._write(build, FACTS, json.dumps({"checksum": _checksum_of(merged), "facts": merged}).encode())

    def symbols(self, build: str, text: int) -> Symbols | None:
        """The symbols of this build, loaded at `text`."""
        try:
            return _decode(self._path(build, SYMBOLS).read_bytes(), text)
        except (OSError, ValueError, struct.error, OverflowError):
            return None

    def store_symbols(self, build: str, symbols: Symbols, text: int, note: int) -> None:
        """Keep the symbols of a kernel loaded at `text`, whose build-id's note lies at the address `note`."""
        self._write(build, SYMBOLS, _encode(symbols, text))
        self.remember(build, {NOTE: note - text})

    def symbol_file(self, build: str) -> Path | None:
        """The file for GDB, if it is of the size that `store_symbol_file` noted: GDB looks at the rest itself."""
        path = self._path(build, ELF)
        try:
            return path if path.stat().st_size == self.facts(build).get("elf_size") else None
        except OSError:
            return None

    def store_symbol_file(self, build: str, data: bytes) -> Path | None:
        """Keep the file for GDB; None where the cache cannot be written."""
        if not self._write(build, ELF, data):
            return None
        self.remember(build, {"elf_size": len(data)})
        return self._path(build, ELF)

    def shelf(self, build: str) -> Shelf:
        return Shelf(self, build)

    def load(self, build: str, name: str) -> bytes | None:
        """What `store` was given; None where that is lost."""
        try:
            data = self._path(build, name).read_bytes()
        except OSError:
            return None
        body = data[CHECKSUM.size :]
        return body if len(data) >= CHECKSUM.size and CHECKSUM.unpack_from(data) == (zlib.crc32(body),) else None

    def store(self, build: str, name: str, data: bytes) -> None:
        self._write(build, name, CHECKSUM.pack(zlib.crc32(data)) + data)

    def _path(self, build: str, name: str) -> Path:
        return self.folder / build / name

    def _write(self, build: str, name: str, data: bytes) -> bool:
        path = self._path(build, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, aside = tempfile.mkstemp(prefix=f".{name}.", dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(aside, path)
            except OSError:
                os.unlink(aside)
                return False
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Shelf:
    """The place of one build in a cache, for files of any name."""

    cache: Cache
    build: str

    def load(self, name: str) -> bytes | None:
        return self.cache.load(self.build, name)

    def store(self, name: str, data: bytes) -> None:
        self.cache.store(self.build, name, data)


def default_cache(environment: Mapping[str, str] = os.environ) -> Cache:
    """Where the user wants it, or where the XDG base directory specification does."""
    own = environment.get("OPTPROBE_CACHE")
    home = environment.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(own) if own else Path(home) / "optprobe"
    return Cache(root.expanduser() / "symbols")


def _encode(symbols: Symbols, text: int) -> bytes:
    absolute = bisect_left(symbols.addresses, KERNEL_HALF)
    values = array("q", [*symbols.addresses[:absolute], *(address - text for address in symbols.addresses[absolute:])])
    body = b"".join(
        (_little_endian(values).tobytes(), symbols.types.encode("latin-1"), "\n".join(symbols.names).encode())
    )
    return HEADER.pack(MAGIC, zlib.crc32(body), len(symbols), absolute) + body


def _decode(data: bytes, text: int) -> Symbols | None:
    magic, checksum, count, absolute = HEADER.unpack_from(data)
    body = memoryview(data)[HEADER.size :]
    if magic != MAGIC or zlib.crc32(body) != checksum or absolute > count:
        return None
    types = 8 * count
    names = types + count
    values = _little_endian(array("q", bytes(body[:types])))
    addresses = array("Q", values[:absolute])
    addresses.extend([text + offset for offset in values[absolute:]])
    listed = str(body[names:], "utf-8").split("\n") if count else []
    if len(listed) != count:
        return None
    return Symbols(addresses, listed, str(body[types:names], "latin-1"))


def _checksum_of(facts: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
