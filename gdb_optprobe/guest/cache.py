"""A cache on disk of facts about kernels, keyed by a hash of what they were derived from: later sessions start sooner.

    $OPTPROBE_CACHE, or ${XDG_CACHE_HOME:-~/.cache}/optprobe
    └── symbols/
        ├── BUILD-ID/             as the guest has it: only finds the candidates
        │   └── KEY/              hash of the tables that the symbols were read from (guest/kallsyms_tables.py)
        │       ├── facts         where these tables and the note with the build-id lie, and of which file GDB has it
        │       ├── symbols       addresses from _text (KASLR does not matter), types and names of all symbols
        │       ├── text-HASH     what address randomization moves in the text with this hash (moved_text.py)
        │       ├── landings-KEY  where code leads into functions; KEY is a hash of that code (mid_function_entries.py)
        │       ├── plans-KEY     plans of probes; KEY is a hash of all that they depend on (kept_plans.py)
        │       └── exits-KEY     what leads out of functions; each row has the hash of its code (kept_exits.py)
        └── files/
            └── HASH.elf          a file for GDB, by the hash of what is in it

A guest may claim to be any other. So a fact read in one guest is not used for another unless its input is the same: a
reader of the cache has first read, in its own guest, all data that the cached fact was derived from, and has the hash
of that data. The cache is optional: a file that is damaged, unreadable, of another format or of another user counts as
missing, and a failure to write is ignored. Files appear whole: they are written aside and renamed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import Any

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.kernel_image import is_note_of
from gdb_optprobe.guest.little_endian import little_endian
from gdb_optprobe.guest.symbols import KERNEL_HALF, Symbols
from gdb_optprobe.host_files import expanded, refusal

__all__ = ["Cache", "Claim", "Shelf", "default_cache", "version_of"]

SYMBOLS, FACTS, FILES = "symbols", "facts", "files"
MAGIC = b"optprob2"
"""With the number of the format. What follows is a SHA-256 of the file's name and the rest, then the rest."""
SEAL = sha256().digest_size
COLUMNS = Struct("<II")
"""How many symbols, how many of them absolute."""
# Bytes of the longest note: header, "GNU\0", SHA-1 or more.
NOTE_SIZE = 16 + 64
NOTE = "note"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
BUILD_ID, HASH = re.compile("[0-9a-f]{16,128}"), re.compile("[0-9a-f]{64}")
# Bounds of what is read. Debian's largest kernel has 186,798 symbols, in 7 MB; the file of them for GDB has 10 MB.
LARGEST_FILE = 1 << 27
LARGEST_FACTS = 1 << 16
MOST_SYMBOLS = 1 << 21
LONGEST_NAME = 1 << 13
REACH = 1 << 30
"""How far from a kernel's start anything of its image lies."""
# Beyond these limits the least recently used files are removed.
MOST_BUILDS, MOST_KERNELS, MOST_OF_A_KIND, MOST_FILES = 32, 4, 16, 64


@dataclass(frozen=True, slots=True)
class Claim:
    """A cached kernel with the guest's build-id: it may be the guest's. note: address of the build-id's note."""

    build: str
    note: int
    shelf: Shelf


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache in `folder`, which need not exist yet."""

    folder: Path

    @property
    def refused(self) -> OptprobeError | None:
        """Return why nothing is cached: other users may change the folder. None where only this user may."""
        return refusal(self.folder.parent)

    def claims(self, text: int, read: Callable[[int, int], bytes]) -> Iterator[Claim]:
        """Yield the cached kernels that the one with code at `text` may be: those with its build-id note."""
        notes: dict[int, bytes] = {}
        for build in _latest(self.folder, BUILD_ID, MOST_BUILDS):
            for key in _latest(build, HASH, MOST_KERNELS):
                shelf = Shelf(key)
                offset = shelf.facts().get(NOTE)
                if not isinstance(offset, int) or not 0 <= offset < REACH:
                    continue
                if offset not in notes:
                    notes[offset] = _noted(read, text + offset)
                if is_note_of(build.name, notes[offset]):
                    yield Claim(build.name, text + offset, shelf)

    def shelf(self, build: str, key: str) -> Shelf:
        """Return the shelf of the kernel with this `key`. The least recently used ones are removed to make room."""
        assert BUILD_ID.fullmatch(build) and HASH.fullmatch(key)
        _make_room(self.folder, BUILD_ID, MOST_BUILDS, build)
        _make_room(self.folder / build, HASH, MOST_KERNELS, key)
        return Shelf(self.folder / build / key)

    def file(self, hash_: str) -> Path | None:
        """Return the file for GDB with what has this hash; None where there is none, or it is damaged."""
        path = self.folder / FILES / f"{hash_}.elf"
        # GDB opens the file again later, so no other user may be able to replace it meanwhile.
        folders = (self.folder.parent, self.folder, path.parent)
        if not HASH.fullmatch(hash_) or not path.parent.is_dir() or any(map(refusal, folders)):
            return None
        if (data := _read(path, LARGEST_FILE)) is None:
            return None
        return path if sha256(data).hexdigest() == hash_ else None

    def store_file(self, data: bytes) -> Path | None:
        """Keep a file for GDB; None where the cache cannot be written. One name has one content for ever."""
        hash_ = sha256(data).hexdigest()
        known = self.file(hash_)
        if known is not None:
            return known
        path = self.folder / FILES / f"{hash_}.elf"
        if self.refused:
            return None
        with suppress(OSError):
            _make_folder(self.folder)
        _make_room(path.parent, re.compile(HASH.pattern + r"\.elf"), MOST_FILES, path.name)
        return self.file(hash_) if _write(path, data, self.folder.parent) else None


@dataclass(frozen=True, slots=True)
class Shelf:
    """A place in a cache, by the hash of what the facts in it were derived from."""

    folder: Path

    @property
    def key(self) -> str:
        return self.folder.name

    def load(self, name: str) -> bytes | None:
        """Return what `store` was given; None where it is missing."""
        body = self._opened(name, LARGEST_FILE)
        if body is not None:
            self.use(name)
        return body

    def use(self, name: str) -> None:
        """Mark a file as used, so that others are removed first."""
        for path in (self.folder / name, self.folder, self.folder.parent):
            with suppress(OSError):
                os.utime(path)

    def latest(self, kind: str, most: int) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of the files of a kind, called kind-HASH, the last used first; none counts as used."""
        for path in _latest(self.folder, _names_of(kind), most):
            if (body := self._opened(path.name, LARGEST_FILE)) is not None:
                yield path.name, body

    def store(self, name: str, data: bytes) -> None:
        _make_room(self.folder, _names_of(name.partition("-")[0]), MOST_OF_A_KIND, name)
        self._write(name, data)

    def rows(self, name: str, format: int, columns: int, most: int) -> list[list[Any]]:
        """Return the rows that `store_rows` was given, each with so many columns, the first a number; none of a file
        that is missing, damaged or of another format. The caller checks the other columns.
        """
        found = _from_json(self.load(name) or b"")
        if not isinstance(found, list) or len(found) != 2 or found[0] != format or not isinstance(found[1], list):
            return []
        rows = [row for row in found[1] if isinstance(row, list) and len(row) == columns and type(row[0]) is int]
        return rows if len(rows) == len(found[1]) <= most else []

    def store_rows(self, name: str, format: int, rows: Sequence[Sequence[Any]]) -> None:
        """Keep rows of what JSON can hold."""
        self.store(name, json.dumps([format, rows], separators=(",", ":")).encode())

    def facts(self) -> dict[str, Any]:
        """Return what `remember` has stored; nothing where it is lost. The caller checks the values."""
        body = self._opened(FACTS, LARGEST_FACTS)
        facts = _from_json(body) if body is not None else None
        return facts if isinstance(facts, dict) else {}

    def remember(self, facts: Mapping[str, Any]) -> None:
        """Add `facts` (what JSON can hold) to those known."""
        self._write(FACTS, json.dumps({**self.facts(), **facts}).encode())

    def symbols(self, text: int) -> Symbols | None:
        """Return the symbols of this kernel, loaded at `text`."""
        data = self.load(SYMBOLS)
        return _decode(data, text) if data is not None else None

    def store_symbols(self, symbols: Symbols, text: int) -> None:
        """Keep the symbols of a kernel loaded at `text`."""
        data = _encode(symbols, text)
        if data is not None and _decode(data, text) == symbols:
            self.store(SYMBOLS, data)

    def _opened(self, name: str, largest: int) -> bytes | None:
        """Return a file's content, if it is whole and has this name."""
        data = _read(self.folder / name, largest)
        if data is None:
            return None
        body = data[len(MAGIC) + SEAL :]
        return body if data[: len(MAGIC) + SEAL] == MAGIC + self._seal(name, body) else None

    def _write(self, name: str, body: bytes) -> None:
        _write(self.folder / name, MAGIC + self._seal(name, body) + body, self.folder.parents[2])

    def _seal(self, name: str, body: bytes) -> bytes:
        """Return the hash of the body and the file's name: a file that was renamed counts as missing."""
        label = f"{self.folder.parent.name}/{self.key}/{name}\n"
        return sha256(label.encode() + body).digest()


def default_cache(environment: Mapping[str, str] = os.environ) -> Cache:
    """Return the cache in the folder that the user chose, or in the one of the XDG base directory specification."""
    own = environment.get("OPTPROBE_CACHE")
    home = environment.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(own) if own else Path(home) / "optprobe"
    return Cache(expanded(root) / "symbols")


def version_of(*parts: str) -> bytes:
    """Return a hash of our own code in these folders and files: with another version of it, what it found may differ.
    """
    return sha256(b"".join(map(_version_of, parts))).digest()


@cache
def _version_of(part: str) -> bytes:
    found, root = sha256(), str(Path(__file__).parents[1])
    start = os.path.join(root, part)
    # Of three hundred files: objects of pathlib would take as long as reading them does.
    for path in [start] if part.endswith(".py") else _sources(start):
        with open(path, "rb", buffering=0) as file:
            data = file.read()
        found.update(f"{path[len(root) + 1 :]} {len(data)}\n".encode() + data)
    return found.digest()


def _sources(folder: str) -> Iterator[str]:
    """Yield the Python files in a folder and in those below it, in the order of their names."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _sources(entry.path)
        elif entry.name.endswith(".py"):
            yield entry.path


# --- formats ---------------------------------------------------------------------------------------------------------


def _from_json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _encode(symbols: Symbols, text: int) -> bytes | None:
    """Encode symbols: addresses from `text` except absolute ones, then types and names as JSON. None beyond the bounds.
    """
    absolute = bisect_left(symbols.addresses, KERNEL_HALF)
    offsets = [address - text for address in symbols.addresses[absolute:]]
    if len(symbols) > MOST_SYMBOLS or any(not -KERNEL_HALF <= offset < KERNEL_HALF for offset in offsets):
        return None
    values = array("q", [*symbols.addresses[:absolute], *offsets])
    words = json.dumps({"types": symbols.types, "names": list(symbols.names)}).encode()
    return COLUMNS.pack(len(symbols), absolute) + little_endian(values).tobytes() + words


def _decode(data: bytes, text: int) -> Symbols | None:
    """Decode symbols; None where these cannot be the symbols of a kernel at `text`."""
    if len(data) < COLUMNS.size:
        return None
    count, absolute = COLUMNS.unpack_from(data)
    words = COLUMNS.size + 8 * count
    if not absolute <= count <= MOST_SYMBOLS or len(data) < words:
        return None
    values = little_endian(array("q", data[COLUMNS.size : words]))
    known = [*values[:absolute], *[text + offset for offset in values[absolute:]]]
    spelled = _from_json(data[words:])
    types, names = (spelled.get("types"), spelled.get("names")) if isinstance(spelled, dict) else (None, None)
    if not isinstance(types, str) or not isinstance(names, list) or not len(types) == len(names) == count:
        return None
    if set(map(type, names)) - {str} or (names and max(map(len, names)) > LONGEST_NAME):
        return None
    if known and (known[0] < 0 or known[-1] >> 64 or known != sorted(known)):
        return None
    if bisect_left(known, KERNEL_HALF) != absolute:
        return None
    return Symbols(array("Q", known), names, types)


# --- files -----------------------------------------------------------------------------------------------------------


def _names_of(kind: str) -> re.Pattern[str]:
    return re.compile(re.escape(kind) + "-.*")


def _noted(read: Callable[[int, int], bytes], address: int) -> bytes:
    try:
        return read(address, NOTE_SIZE)
    except OptprobeError:
        return b""


def _read(path: Path, largest: int) -> bytes | None:
    """Return the content of a file that belongs to this user; None where there is none, or it is no file, or too large.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            known = os.fstat(handle)
            if not stat.S_ISREG(known.st_mode) or known.st_uid != os.geteuid() or known.st_size > largest:
                return None
            return file.read(largest)
    except OSError:
        return None


def _write(path: Path, data: bytes, root: Path) -> bool:
    """Write a file. root: the folder that the user named, which is not changed; the modes of folders in it are
    corrected.
    """
    try:
        if refusal(root):
            return False
        _make_folder(path.parent)
        if refusal(path.parent):
            return False
        handle, aside = tempfile.mkstemp(prefix=f".{path.name[:32]}.", dir=path.parent)
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


def _make_folder(folder: Path) -> None:
    """Make a folder for this user alone. One that others may write to is closed to them. Raises OSError."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    known = folder.stat()
    if known.st_uid == os.geteuid() and known.st_mode & OTHERS_WRITE:
        folder.chmod(stat.S_IMODE(known.st_mode) & ~OTHERS_WRITE)


def _latest(folder: Path, name: re.Pattern[str], most: int | None = None) -> list[Path]:
    """Return the paths with such a name, the last used first."""
    found: list[tuple[float, Path]] = []
    with suppress(OSError):
        for entry in folder.iterdir():
            if name.fullmatch(entry.name):
                with suppress(OSError):
                    found.append((entry.lstat().st_mtime, entry))
    return [path for _, path in sorted(found, reverse=True)[:most]]


def _make_room(folder: Path, name: re.Pattern[str], most: int, newcomer: str) -> None:
    """Remove the least recently used, so that `newcomer` is one of `most` at the most."""
    if refusal(folder):
        return
    others = [path for path in _latest(folder, name) if path.name != newcomer]
    for path in others[most - 1 :]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
