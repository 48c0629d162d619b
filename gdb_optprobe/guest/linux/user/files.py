"""Find a file of the guest by its path, in the directories that its kernel has in memory.

    process 1 ─► fs->root ─► dentry ─d_subdirs─► dentry ─► …          a mount's root replaces its mountpoint
                             inode: S_IFLNK ─► i_link: the path continues there

A file that is open or mapped has its directories in memory up to the root (fs/dcache.c). It need not
be mapped. All that is read is checked: it may be anything.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import MASK, Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.list_head import members
from gdb_optprobe.guest_text import printable, raw

MOST_LINKS = 40  # MAXSYMLINKS
MOST_CHILDREN = 1 << 16
"""A limit (budget.py), of entries of directories and of mounts that are looked at on the way to one file, all together.
The libraries of a desktop are 5,000.
"""
LONGEST = 4096
NAME_MAX = 255
IN_MEMORY = "have it run once in the guest, so that its kernel has it in memory"

WRITTEN = (
    ("i_mtime.tv_sec", "__i_mtime.tv_sec", "i_mtime_sec"),
    ("i_mtime.tv_nsec", "__i_mtime.tv_nsec", "i_mtime_nsec"),
)
"""Of struct inode: when the file was written to last: seconds (8 bytes), nanoseconds (4); since 6.7; since 6.11."""
SECONDS_SHIFT = 30
OVERLAY = 0x794C7630
"""OVERLAYFS_SUPER_MAGIC (fs/overlayfs/super.c): the kernel maps a layer's file in place of one (ovl_mmap)."""


PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
LIBRARIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
"""Where a program or a library is looked for by its name alone; of libraries, a machine's own directories in these."""
OF_MACHINE = b"-linux-"


class NotThere(OptprobeError):
    """The kernel has no such file in memory."""


@dataclass(frozen=True, slots=True)
class File:
    """A regular file. inode, mapping: addresses of the kernel's struct inode and struct address_space.
    path: as messages print it. inode, number and device together identify the file as long as it stays in memory.
    """

    path: str
    inode: int
    number: int
    device: int
    size: int
    mapping: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A dentry as seen through a mount (struct mount)."""

    mount: int
    dentry: int


def find(kernel: Kernel, path: str) -> File:
    """Return the file at `path`, typed or printed, as process 1 sees it. Raises OptprobeError."""
    return _Names(kernel).file(raw(path))


def search(kernel: Kernel, name: str) -> list[str]:
    """Return paths of the program or the library of a name without directory: `bash`, `libc`, `libc.so.6`.

    Those that the kernel has in memory, in the order of the directories. Raises OptprobeError.
    """
    names = _Names(kernel)
    seen: set[int] = set()  # /lib and /usr/lib are one
    if not name.startswith("lib"):
        return [f"{folder}/{name}" for folder in PROGRAMS if raw(name) in names.within(folder, seen)]
    wanted = re.compile(rb"%b([-.][\d.]+)?(\.so(\.\d+)*)?" % re.escape(raw(name)))
    found: list[str] = []
    for folder in LIBRARIES:
        inside = names.within(folder, seen)
        for directory in (folder, *(f"{folder}/{printable(each)}" for each in inside if OF_MACHINE in each)):
            entries = inside if directory == folder else names.within(directory, seen)
            found += (f"{directory}/{printable(each)}" for each in entries if wanted.fullmatch(each) and b".so" in each)
    return found


def named(kernel: Kernel, dentry: int) -> File:
    """Return the file of a directory's entry, by its name there alone. Raises OptprobeError."""
    return _Names(kernel).named(dentry)


def written(kernel: Kernel, inode: int) -> int:
    """Return when a file was last written to, as one number (seconds << SECONDS_SHIFT | nanoseconds).
    Raises OptprobeError.
    """
    seconds, nanoseconds = (
        int.from_bytes(kernel.memory.read(inode + kernel.offset("inode", *names), size), "little")
        for names, size in zip(WRITTEN, (8, 4), strict=True)
    )
    return (seconds << SECONDS_SHIFT) + nanoseconds & MASK


class _Names:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._budget = Budget(MOST_CHILDREN, "the way to a file of the guest's", "entries")
        offset = kernel.offset
        self._vfsmount = offset("mount", "mnt")
        self._mounts = offset("mount", "mnt_mounts")
        self._mount_child = offset("mount", "mnt_child")
        self._mountpoint = offset("mount", "mnt_mountpoint")
        self._mount_root = self._vfsmount + offset("vfsmount", "mnt_root")
        self._name = offset("dentry", "d_name.name")
        self._length = offset("dentry", "d_name.len")
        self._d_inode = offset("dentry", "d_inode")
        self._children = offset("dentry", "d_children", "d_subdirs")
        self._sibling = offset("dentry", "d_sib", "d_child")
        self._mode = offset("inode", "i_mode")
        self._link = offset("inode", "i_link")

    def file(self, path: bytes) -> File:
        """Return the file at `path`. Raises OptprobeError."""
        if not path.startswith(b"/"):
            shown, hint = printable(path), "it begins with /, as in -user /bin/busybox:main"
            raise OptprobeError(f"{shown} is no path in the guest", hint)
        if len(path) >= LONGEST or b"\0" in path:
            raise OptprobeError("a path in the guest has less than 4096 bytes, and no zero among them")
        return self._at(path, self._inode(self._walk(path).dentry))

    def named(self, dentry: int) -> File:
        """Return the file of a dentry. Raises OptprobeError."""
        return self._at(self._name_of(dentry), self._inode(dentry))

    def within(self, directory: str, seen: set[int]) -> list[bytes]:
        """Return the names in a directory; none where it is not in memory, or was seen. Raises OptprobeError."""
        try:
            place = self._walk(raw(directory))
        except NotThere:
            return []
        if place.dentry in seen:
            return []
        seen.add(place.dentry)
        return sorted(self._name_of(each) for each in self._entries(place.dentry) if self._inode(each))

    def _name_of(self, dentry: int) -> bytes:
        length = min(self._number(dentry + self._length, 4), NAME_MAX)
        return self._kernel.memory.read(self._kernel.word(dentry + self._name), length)

    def _at(self, path: bytes, inode: int) -> File:
        shown = printable(path)
        mode = self._number(inode + self._mode, 2)
        if not stat.S_ISREG(mode):
            raise OptprobeError(f"{shown} is no regular file of the guest")
        kernel = self._kernel
        block = kernel.word(inode + kernel.offset("inode", "i_sb"))
        if kernel.word(block + kernel.offset("super_block", "s_magic")) == OVERLAY:
            why = f"{shown} is on an overlay: its memory is that of other files"
            raise OptprobeError(why, "probe it by its path in the layer that has it")
        device = self._number(block + self._device, 4)
        return File(
            shown,
            inode,
            kernel.word(inode + kernel.offset("inode", "i_ino")),
            device,
            kernel.word(inode + kernel.offset("inode", "i_size")),
            kernel.word(inode + kernel.offset("inode", "i_mapping")),
        )

    @property
    def _device(self) -> int:
        return self._kernel.offset("super_block", "s_dev")

    def _walk(self, path: bytes) -> _Place:
        root = self._root()
        trail = [root]
        names = _split(path)
        links = 0
        while names:
            name = names.pop(0)
            if name == b"..":
                trail = trail[:-1] or [root]
                continue
            found = self._child(trail[-1], name)
            if found is None:
                raise NotThere(f"the guest has no file {printable(path)} in memory", IN_MEMORY)
            target = self._target(found, path)
            if target is None:
                trail.append(found)
                continue
            links += 1
            if links > MOST_LINKS:
                raise OptprobeError(f"{printable(path)} leads through too many symbolic links")
            trail = [root] if target.startswith(b"/") else trail
            names = _split(target) + names
        return trail[-1]

    def _root(self) -> _Place:
        """Return the root of process 1: the first process with an fs that is not init_task's."""
        kernel = self._kernel
        tasks = kernel.offset("task_struct", "tasks")
        pid = kernel.offset("task_struct", "pid")
        for task in members(kernel, kernel.address("init_task") + tasks, tasks):
            if self._number(task + pid, 4) == 1:
                root = kernel.word(task + kernel.offset("task_struct", "fs")) + kernel.offset("fs_struct", "root")
                mount = kernel.word(root + kernel.offset("path", "mnt")) - self._vfsmount
                return self._top(_Place(mount, kernel.word(root + kernel.offset("path", "dentry"))))
        raise NoSuchKernel("the guest has no process 1 yet")

    def _top(self, place: _Place) -> _Place:
        """Return the place with the file system that was mounted there last."""
        for _ in range(MOST_LINKS):
            above = next((m for m in self._mounted_in(place.mount) if self._point(m) == place.dentry), None)
            if above is None:
                return place
            place = _Place(above, self._kernel.word(above + self._mount_root))
        raise NoSuchKernel("too many file systems are mounted on one another")

    def _mounted_in(self, mount: int) -> Iterator[int]:
        for child in members(self._kernel, mount + self._mounts, self._mount_child):
            self._budget.spend()
            yield child

    def _point(self, mount: int) -> int:
        return self._kernel.word(mount + self._mountpoint)

    def _child(self, place: _Place, wanted: bytes) -> _Place | None:
        if len(wanted) > NAME_MAX:
            return None
        for dentry in self._entries(place.dentry):
            if self._inode(dentry) and self._named(dentry, len(wanted)) == wanted:
                return self._top(_Place(place.mount, dentry))
        return None

    def _entries(self, directory: int) -> Iterator[int]:
        """Yield the dentries in a directory: a doubly linked list, since Linux 6.8 an hlist."""
        kernel = self._kernel
        head = directory + self._children
        seen: set[int] = set()
        at = kernel.word(head)
        while at not in (0, head):
            self._budget.spend()
            if at in seen:
                raise NoSuchKernel(f"the list of a directory's files is broken at {at:#x}")
            seen.add(at)
            yield at - self._sibling
            at = kernel.word(at)

    def _named(self, dentry: int, length: int) -> bytes:
        """Return the name, if it has that length; else b""."""
        kernel = self._kernel
        if self._number(dentry + self._length, 4) != length:
            return b""
        return kernel.memory.read(kernel.word(dentry + self._name), length)

    def _target(self, place: _Place, path: bytes) -> bytes | None:
        """Return where a symbolic link leads; None where it is none."""
        inode = self._inode(place.dentry)
        if not stat.S_ISLNK(self._number(inode + self._mode, 2)):
            return None
        link = self._kernel.word(inode + self._link)
        text = self._string(link) if link else b""
        if not text:
            raise OptprobeError(
                f"{printable(path)} leads through a symbolic link that the guest has not in memory",
                "name the file it leads to",
            )
        return text

    def _string(self, address: int) -> bytes:
        """Read a string up to its zero, and no page behind the one with the zero."""
        found = b""
        while b"\0" not in found:
            if len(found) >= LONGEST:
                raise NoSuchKernel(f"the path at {address:#x} does not end")
            at = address + len(found)
            found += self._kernel.memory.read(at, min(64, 4096 - at % 4096))
        return found[: found.index(b"\0")]

    def _inode(self, dentry: int) -> int:
        return self._kernel.word(dentry + self._d_inode)

    def _number(self, address: int, size: int) -> int:
        return int.from_bytes(self._kernel.memory.read(address, size), "little")


def _split(path: bytes) -> list[bytes]:
    return [name for name in path.split(b"/") if name not in (b"", b".")]
