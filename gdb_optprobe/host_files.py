"""Our files and folders on the machine that runs GDB, which other users share.

    expanded       a path with the home folder in the place of `~`
    folder         made for this user alone; one that another user owns or may write to is refused
    replace        a new file replaces the old one as a whole; no other user may read it; no link is followed
    new_folder     a folder of new files, all or none; one that is there already is refused
    write_typed    one of both, by a name that the user has typed
    read_regular   read a file by a name that another user may have chosen: no device, no pipe, limited in size
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gdb_optprobe.errors import OptprobeError

__all__ = ["expanded", "folder", "new_folder", "read_regular", "refusal", "replace", "until_exit", "write_typed"]

ROOT = 0
OTHER = "name a folder of your own"
OTHERS_WRITE, OTHERS = stat.S_IWGRP | stat.S_IWOTH, stat.S_IRWXG | stat.S_IRWXO


def expanded(path: Path) -> Path:
    """Return a path with the home folder in the place of `~`. Raises OptprobeError where none is known."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise OptprobeError(f"'{path}' is in a home folder that is not known here", "give the whole path") from None


def folder(path: Path, alone: bool = False) -> Path:
    """Return a folder that only this user may change, made where it is missing. Raises OptprobeError, OSError.

    alone: no other user may look into it either, and it is no link.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (why := refusal(path, alone)) is not None:
        raise why
    return path


def refusal(path: Path, alone: bool = False) -> OptprobeError | None:
    """Return why a folder, if it exists, is not safe for this user's files, with the next step; None where it is."""
    for above in dict.fromkeys((*reversed(path.absolute().parents), *reversed(path.resolve().parents))):
        if (why := _may_be_exchanged(above)) is not None:
            return why
    try:
        itself, known, me = path.lstat(), path.stat(), os.geteuid()
    except FileNotFoundError:
        return None
    except OSError as error:
        return OptprobeError(f"{path} cannot be looked at: {error.strerror}", OTHER)
    if stat.S_ISLNK(itself.st_mode) and (alone or itself.st_uid != me):
        return OptprobeError(f"{path} is a link, which another user may have made", f"remove it, or {OTHER}")
    if known.st_uid != me:
        return OptprobeError(f"{path} belongs to another user", OTHER)
    if known.st_mode & (OTHERS if alone else OTHERS_WRITE):
        what, mode = ("looked into", "go-rwx") if alone else ("written to", "go-w")
        return OptprobeError(f"{path} may be {what} by other users", f"chmod {mode} {path}")
    return None


def _may_be_exchanged(above: Path) -> OptprobeError | None:
    """Return why other users can exchange the files in this folder; None where they cannot."""
    try:
        known = above.lstat()
    except OSError:
        return None
    if stat.S_ISLNK(known.st_mode):
        mine = known.st_uid in (os.geteuid(), ROOT)
        return None if mine else OptprobeError(f"{above} is a link of another user's", OTHER)
    if known.st_mode & stat.S_IWOTH and not known.st_mode & stat.S_ISVTX:
        return OptprobeError(f"in {above} every user may exchange what is there", f"chmod +t {above}")
    return None


def replace(path: Path, data: bytes) -> None:
    """Write a file aside and put it in the place of `path`. Raises OptprobeError, OSError."""
    mode = 0o600
    if path.is_symlink():
        raise OptprobeError(f"'{path}' is a link", "name the file that it leads to")
    if path.exists():
        known = path.stat()
        if not stat.S_ISREG(known.st_mode):
            raise OptprobeError(f"'{path}' is no file that can be replaced", "name a file")
        # Users that could read the old file may read the new one. A file of another user gets the default mode.
        mode = stat.S_IMODE(known.st_mode) & ~OTHERS_WRITE if known.st_uid == os.geteuid() else mode
    handle, aside = tempfile.mkstemp(prefix=".optprobe-", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(data)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise


def new_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write files, by their names, aside in a folder and name it `path`. Raises OptprobeError, OSError.

    Nothing that is there is replaced: what a folder holds cannot be exchanged by one rename.
    """
    if path.is_symlink() or path.exists():
        raise OptprobeError(f"'{path}' is there already", "name a new folder")
    aside = Path(tempfile.mkdtemp(prefix=".optprobe-", dir=path.parent))
    try:
        for name, data in files.items():
            (aside / name).write_bytes(data)
        # An empty folder that another process has made meanwhile is replaced, nothing else.
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside)
        raise


def write_typed(typed: str, contents: bytes | Mapping[str, bytes]) -> None:
    """Write a file, or a folder of files by their names. Raises OptprobeError."""
    try:
        path = expanded(Path(typed))
        if isinstance(contents, bytes):
            replace(path, contents)
        else:
            new_folder(path, contents)
    except OSError as error:
        raise OptprobeError(f"'{typed}' cannot be written: {error.strerror}") from None


def until_exit(data: bytes, suffix: str) -> Path:
    """Return a new file that is there until this process ends. Raises OSError."""
    handle, path = tempfile.mkstemp(prefix="optprobe-", suffix=suffix)
    atexit.register(Path(path).unlink, missing_ok=True)
    with open(handle, "wb") as file:
        file.write(data)
    return Path(path)


def read_regular(path: Path, most: int) -> bytes:
    """Return what is in a file. Raises OptprobeError where it is no file, or larger than `most` or memory; OSError."""
    # Without O_NONBLOCK, opening a pipe would wait.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        known = os.fstat(file.fileno())
        if not stat.S_ISREG(known.st_mode):
            raise OptprobeError(f"{path} is no file", "name a file")
        if known.st_size > most:
            raise OptprobeError(f"{path} has over {most >> 20} MiB", "name a smaller file")
        try:
            # `read` allocates as much as it is asked for.
            data = file.read(known.st_size + 1)
        except MemoryError:
            raise OptprobeError(f"there is no memory for the {known.st_size >> 20} MiB of {path}") from None
    if len(data) > known.st_size:
        raise OptprobeError(f"{path} has more in it than its size says", "name a file that is not written to")
    return data
