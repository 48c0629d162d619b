"""Files, their pages and who maps them, in a kernel of a few pages; what is broken is refused."""

from __future__ import annotations

import stat
from dataclasses import replace
from itertools import count

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64 import paging
from gdb_optprobe.guest.linux.arch.x86_64.mmu import FIXED_RECORDS, X86Mmu
from gdb_optprobe.guest.linux.kernel import NoSuchKernel
from gdb_optprobe.guest.linux.physical_patch import Changed
from gdb_optprobe.guest.linux.user import files
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.mm import Busy, Process, spaces
from gdb_optprobe.guest.linux.user.page_frames import PageFrames
from gdb_optprobe.guest.linux.user.pagecache import NotInMemory, PageCache
from gdb_optprobe.guest.linux.user.pages import Pages, StoppedPages, within_pages
from tests.guest.linux import fake_kernel

DIRECT = 0xFFFF888000000000
INIT = DIRECT + 0x1000
FIRST = DIRECT + 0x2000
"""Process 1."""
OFFSETS = {
    "task_struct.tasks": 0x10,
    "task_struct.pid": 0x20,
    "task_struct.tgid": 0x24,
    "task_struct.comm": 0x28,
    "task_struct.fs": 0x40,
    "task_struct.mm": 0x48,
    "fs_struct.root": 0x8,
    "path.mnt": 0x0,
    "path.dentry": 0x8,
    "mount.mnt": 0x20,
    "vfsmount.mnt_root": 0x0,
    "mount.mnt_mounts": 0x60,
    "mount.mnt_child": 0x70,
    "mount.mnt_mountpoint": 0x18,
    "dentry.d_name.name": 0x8,
    "dentry.d_name.len": 0x4,
    "dentry.d_inode": 0x10,
    "dentry.d_subdirs": 0x20,
    "dentry.d_child": 0x30,
    "inode.i_mode": 0x0,
    "inode.i_link": 0x8,
    "inode.i_sb": 0x10,
    "inode.i_ino": 0x18,
    "inode.i_size": 0x20,
    "inode.i_mapping": 0x28,
    "super_block.s_dev": 0x10,
    "super_block.s_magic": 0x60,
    "address_space.i_pages.xa_head": 0x8,
    "address_space.i_mmap": 0x20,
    "address_space.i_mmap_rwsem.count": 0x30,
    "xa_node.shift": 0x0,
    "xa_node.slots": 0x28,
    "page.mapping": 0x18,
    "page.index": 0x20,
    "vm_area_struct.shared.rb": 0x40,
    "vm_area_struct.vm_start": 0x0,
    "vm_area_struct.vm_end": 0x8,
    "vm_area_struct.vm_mm": 0x10,
    "vm_area_struct.vm_flags": 0x20,
    "vm_area_struct.vm_pgoff": 0x28,
    "rb_node.rb_right": 0x8,
    "rb_node.rb_left": 0x10,
    "mm_struct.mm_users": 0x40,
    "mm_struct.start_code": 0x48,
    "mm_struct.exe_file": 0x50,
    "mm_struct.pgd": 0x58,
    "file.f_inode": 0x20,
}
CODE = 0x75  # VM_READ | VM_EXEC | VM_MAYREAD, VM_MAYWRITE, VM_MAYEXEC


class Kernel(fake_kernel.Pages):
    """Files in directories, on mounts; each thing has a page to itself."""

    def __init__(self) -> None:
        super().__init__()
        self._pages = count(DIRECT + 0x10000, 0x1000)
        self.known = fake_kernel.kernel(self, {"d_init_task": INIT}, OFFSETS)
        self.put_words(FIXED_RECORDS, 0)
        self.frames = PageFrames.of(self.known, X86Mmu(DIRECT, 1 << 32, False))
        self.superblock = self.new()
        self.put(self.superblock + 0x10, (0x800001).to_bytes(4, "little"))
        self.root = self.dentry("/", self.inode(stat.S_IFDIR))
        self.mount = self.mounted(self.root)
        fs = self.new()
        self.put_words(fs + 8, self.mount + 0x20, self.root)
        self.put(INIT, bytes(256))
        self.processes = [self.process(FIRST, 1, fs=fs)]

    def new(self) -> int:
        at = next(self._pages)
        self.put(at, bytes(4096))
        return at

    def inode(self, mode: int, size: int = 0, link: str = "") -> int:
        at, mapping = self.new(), self.new()
        self.put(at, mode.to_bytes(2, "little"))
        if link:
            text = self.new()
            self.put(text, link.encode() + b"\0")
            self.put_words(at + 8, text)
        self.put_words(at + 0x10, self.superblock, 77, size, mapping)
        return at

    def dentry(self, name: str, inode: int) -> int:
        at, text = self.new(), self.new()
        self.put(text, name.encode() + b"\0")
        self.put(at + 4, len(name.encode()).to_bytes(4, "little"))
        self.put_words(at + 8, text, inode)
        self.listed(at + 0x20, [])
        return at

    def within(self, directory: int, **entries: int) -> dict[str, int]:
        found = {name: self.dentry(name, inode) for name, inode in entries.items()}
        self.listed(directory + 0x20, [dentry + 0x30 for dentry in found.values()])
        return found

    def mounted(self, root: int) -> int:
        at = self.new()
        self.put_words(at + 0x20, root)
        self.listed(at + 0x60, [])
        return at

    def process(self, at: int, pid: int, fs: int = 0, mm: int = 0) -> int:
        self.put(at, bytes(256))
        self.put(at + 0x20, pid.to_bytes(4, "little") * 2 + b"answer".ljust(16, b"\0"))
        self.put_words(at + 0x40, fs, mm)
        self.listed(INIT + 0x10, [at + 0x10])
        return at

    def listed(self, head: int, nodes: list[int]) -> None:
        for at, following in zip([head, *nodes], [*nodes, head], strict=True):
            self.put_words(at, following)


@pytest.fixture
def guest() -> Kernel:
    return Kernel()


# paths ---------------------------------------------------------------------------------------------------------------


def test_a_path_leads_through_directories_links_and_mounts(guest: Kernel) -> None:
    file = guest.inode(stat.S_IFREG, 5000)
    directory = guest.inode(stat.S_IFDIR)
    top = guest.within(
        guest.root,
        bin=directory,
        sbin=guest.inode(stat.S_IFLNK, link="bin"),
        data=guest.inode(stat.S_IFDIR),
    )
    guest.within(
        top["bin"],
        busybox=file,
        sh=guest.inode(stat.S_IFLNK, link="busybox"),
        up=guest.inode(stat.S_IFLNK, link="/sbin/sh"),
    )
    disk = guest.dentry("/", guest.inode(stat.S_IFDIR))
    mount = guest.mounted(disk)
    guest.put_words(mount + 0x18, top["data"])
    guest.listed(guest.mount + 0x60, [mount + 0x70])
    other = guest.inode(stat.S_IFREG, 1)
    guest.within(disk, program=other)
    for path in ("/bin/busybox", "//bin/./busybox", "/bin/sh", "/sbin/up", "/bin/../bin/busybox", "/../data/../bin/sh"):
        found = files.find(guest.known, path)
        assert (found.inode, found.number, found.device, found.size, found.path) == (file, 77, 0x800001, 5000, path)
    assert files.find(guest.known, "/data/program").inode == other


@pytest.mark.parametrize(
    "path",
    ["bin/busybox", "", "/", "/nosuch", "/gone", "/loop", "/far", "/busybox/x", "/bin\0", f"/{5000 * 'x'}"],
)
def test_a_path_that_leads_nowhere_is_refused(guest: Kernel, path: str) -> None:
    guest.within(
        guest.root,
        busybox=guest.inode(stat.S_IFREG, 1),
        loop=guest.inode(stat.S_IFLNK, link="/loop"),
        far=guest.inode(stat.S_IFLNK),
        gone=0,
    )
    with pytest.raises(OptprobeError):
        files.find(guest.known, path)


def test_a_broken_directory_is_refused(guest: Kernel) -> None:
    found = guest.within(guest.root, a=guest.inode(stat.S_IFREG), b=guest.inode(stat.S_IFREG))
    guest.put_words(found["b"] + 0x30, found["a"] + 0x30)
    with pytest.raises(OptprobeError, match="broken"):
        files.find(guest.known, "/c")


# pages ---------------------------------------------------------------------------------------------------------------


def cached(guest: Kernel, size: int) -> tuple[File, PageCache]:
    inode = guest.inode(stat.S_IFREG, size)
    guest.within(guest.root, program=inode)
    file = files.find(guest.known, "/program")
    return file, PageCache(guest.known, guest.frames, file)


def page(guest: Kernel, file: File, index: int, fill: bytes) -> int:
    """The record of a page of the file's that holds `fill`."""
    at = guest.new()
    guest.put(at, fill * 4096)
    record = guest.frames.record(at - DIRECT)
    guest.put_words(record + 0x18, file.mapping, index)
    return record


def test_pages_are_found_at_every_depth_of_the_tree(guest: Kernel) -> None:
    file, cache = cached(guest, 4096 * 70)
    top, low, high = guest.new(), guest.new(), guest.new()
    guest.put(top, b"\x06")
    guest.put_words(top + 0x28, low + 2, high + 2)
    guest.put_words(low + 0x28, page(guest, file, 0, b"a"), page(guest, file, 1, b"b"))
    # A page of four: the others say that they are as the first.
    four = page(guest, file, 64, b"c")
    guest.put(DIRECT + guest.frames.frame(four) + 4096, b"d" * 4096)
    guest.put_words(high + 0x28, four, 0 << 2 | 2, 0, 5)
    guest.put_words(file.mapping + 8, top + 2)
    assert cache.read(4090, 12) == b"a" * 6 + b"b" * 6
    assert cache.read(65 * 4096 - 1, 2) == b"cd"
    for missing in (2, 66, 67, 68):
        with pytest.raises(NotInMemory, match=f"page {missing} of /program"):
            cache.read(missing * 4096, 1)
    with pytest.raises(OptprobeError, match="ends at"):
        cache.read(4096 * 70 - 1, 2)


def test_a_page_whose_part_of_the_file_has_another_name(guest: Kernel) -> None:
    """Page and folio went apart: the page's own member has the folio's name in its own."""
    file, cache = cached(guest, 4096)
    guest.put_words(file.mapping + 8, page(guest, file, 0, b"a"))
    renamed = {name.replace("page.index", "page.__folio_index"): at for name, at in OFFSETS.items()}
    other = replace(cache, kernel=replace(guest.known, structures=fake_kernel.Structures(renamed)))
    assert other.read(0, 1) == b"a"


def test_a_page_of_another_file_is_not_believed(guest: Kernel) -> None:
    file, cache = cached(guest, 4096)
    record = page(guest, file, 0, b"a")
    guest.put_words(file.mapping + 8, record)
    assert cache.read(0, 1) == b"a"
    guest.put_words(record + 0x18, file.mapping + 8)
    with pytest.raises(OptprobeError, match="being replaced"):
        cache.read(0, 1)
    guest.put_words(file.mapping + 8, FIXED_RECORDS - 64)
    with pytest.raises(OptprobeError):
        cache.read(0, 1)


# spaces --------------------------------------------------------------------------------------------------------------


def area(guest: Kernel, mm: int, flags: int, start: int = 0x401000) -> int:
    at = guest.new()
    guest.put_words(at, start, start + 0x2000, mm, 0, flags, 1)
    return at + 0x40


def memory(guest: Kernel, inode: int, living: int = 1) -> int:
    mm, file = guest.new(), guest.new()
    guest.put_words(file + 0x20, inode)
    guest.put_words(mm + 0x40, living, 0x401000, file)
    return mm


def test_spaces_are_those_of_the_tree_that_run_its_code(guest: Kernel) -> None:
    file, _ = cached(guest, 4096)
    one, made, ending = memory(guest, file.inode), memory(guest, file.inode + 8), memory(guest, file.inode, living=0)
    guest.process(FIRST, 1, fs=guest.known.word(FIRST + 0x40), mm=one)
    nodes = [
        area(guest, one, CODE),
        area(guest, one, CODE & ~4, start=0x400000),
        area(guest, made, CODE),
        area(guest, ending, CODE),
        area(guest, made, CODE | 0x80),
    ]
    guest.put_words(nodes[0] + 8, nodes[1], nodes[2])
    guest.put_words(nodes[2] + 8, nodes[3], nodes[4])
    guest.put_words(file.mapping + 0x20, nodes[0])
    found = {space.mm: space for space in spaces(guest.known, file, 4096)}
    assert set(found) == {one, made}
    assert found[one].processes == (Process(1, "answer"),) and found[made].processes == ()
    assert found[one].holds(0x1000) and not found[one].holds(0x3000) and found[one].address(0x1004) == 0x401004


def test_a_tree_that_is_being_changed_is_left_alone_and_a_broken_one_refused(guest: Kernel) -> None:
    file, _ = cached(guest, 4096)
    node = area(guest, memory(guest, file.inode), CODE)
    guest.put_words(file.mapping + 0x20, node, 0, 1)
    with pytest.raises(Busy):
        spaces(guest.known, file, 4096)
    guest.put_words(file.mapping + 0x30, 0)
    guest.put_words(node + 8, node)
    with pytest.raises(OptprobeError, match="broken"):
        spaces(guest.known, file, 4096)


def test_the_tree_of_a_kernel_whose_locks_preempt(guest: Kernel) -> None:
    file, _ = cached(guest, 4096)
    mm = memory(guest, file.inode)
    guest.put_words(file.mapping + 0x20, area(guest, mm, CODE))
    names = {name.replace("i_mmap_rwsem.count", "i_mmap_rwsem.rwbase.readers"): at for name, at in OFFSETS.items()}
    known = replace(guest.known, structures=fake_kernel.Structures(names))
    guest.put_words(file.mapping + 0x30, 1 << 31)
    assert [space.mm for space in spaces(known, file, 4096)] == [mm]
    guest.put_words(file.mapping + 0x30, 1 << 30)
    with pytest.raises(Busy):
        spaces(known, file, 4096)


# pages of a space ----------------------------------------------------------------------------------------------------

HELD = paging.PRESENT | paging.USER | paging.DIRTY


def mapped(guest: Kernel, mapping: int, bits: int = HELD) -> tuple[StoppedPages, int]:
    """A space with one page at 0x401000, whose record says `mapping`; and where that page is."""
    mm, data = guest.new(), guest.new()
    tables = [guest.new() for _ in range(4)]
    guest.put_words(mm + 0x58, tables[0])
    indexes = [0x401000 >> shift & 0x1FF for shift in (39, 30, 21, 12)]
    for table, index, following in zip(tables, indexes, [*tables[1:], data], strict=True):
        flags = bits if following == data else paging.PRESENT | paging.USER | paging.WRITABLE
        guest.put_words(table + 8 * index, following - DIRECT | flags)
    guest.put_words(guest.frames.record(data - DIRECT) + 0x18, mapping)
    guest.put(data, b"original")
    return Pages(guest.known, guest.frames, X86Mmu(DIRECT, 1 << 32, False)).of(mm), data


def test_a_kernel_whose_records_are_in_sections_is_refused() -> None:
    with pytest.raises(NoSuchKernel, match="SPARSEMEM_VMEMMAP"):
        PageFrames.of(fake_kernel.kernel(fake_kernel.Pages(), {}), X86Mmu(DIRECT, 1 << 32, False))


def test_a_page_of_its_own_is_written_and_a_changed_one_refused(guest: Kernel) -> None:
    pages, data = mapped(guest, DIRECT + 1)
    assert pages.read(0x401000, 8) == b"original" and pages.read(0x402000, 1) is None
    assert pages.write(0x401000, b"o", b"\xcc") and guest.read(data, 8) == b"\xccriginal"
    assert pages.write(0x401000, b"o", b"\xcc"), "it is there"
    with pytest.raises(Changed):
        pages.write(0x401001, b"o", b"\xcc")
    assert guest.read(data, 8) == b"\xccriginal"


def test_a_page_whose_entry_is_not_writable_may_be_dirty_by_a_mark_of_the_kernels(guest: Kernel) -> None:
    """Hardware would take such an entry, were it dirty, for that of a shadow stack."""
    pages, data = mapped(guest, DIRECT + 1, HELD & ~paging.DIRTY | 1 << 58)
    assert pages.write(0x401000, b"o", b"\xcc") and guest.read(data, 8) == b"\xccriginal"


@pytest.mark.parametrize(
    ("mapping", "bits"),
    [(DIRECT, HELD), (DIRECT + 3, HELD), (DIRECT + 1, HELD & ~paging.DIRTY), (DIRECT + 1, HELD & ~paging.PRESENT)],
    ids=["a file's", "merged with others", "with a copy on disk", "away"],
)
def test_what_is_not_the_spaces_own_is_not_written(guest: Kernel, mapping: int, bits: int) -> None:
    pages, data = mapped(guest, mapping, bits)
    assert not pages.write(0x401000, b"o", b"\xcc")
    assert not pages.write(0x402000, b"o", b"\xcc")
    assert guest.read(data, 8) == b"original"


@pytest.mark.parametrize(
    ("address", "size"), [(0x1000, 1), (0x1FFF, 2), (0x1FFF, 4099), (0x1000, 4096), (0x1001, 4096)]
)
def test_pieces_lie_in_one_page_each(address: int, size: int) -> None:
    data = bytes(n % 251 for n in range(size))
    pieces = within_pages(address, data)
    assert b"".join(piece for _, piece in pieces) == data and pieces[0][0] == address
    for at, piece in pieces:
        assert piece and at // 4096 == (at + len(piece) - 1) // 4096
        assert data[at - address :].startswith(piece)


def test_paths_with_line_ends_and_terminal_escapes_are_shown_and_found_as_they_are_shown(guest: Kernel) -> None:
    name, link = "a\x1b[2J\nb\\c\u202e", "l\n"
    file = guest.inode(stat.S_IFREG, 5000)
    guest.within(guest.root, **{name: file, link: guest.inode(stat.S_IFLNK, link=f"/{name}"), "d\n": guest.root})
    shown = r"/a\033[2J\nb\\c\342\200\256"
    for typed in (shown, f"/{name.replace(chr(92), chr(92) * 2)}", r"/l\n"):
        found = files.find(guest.known, typed)
        assert found.inode == file and found.path.isprintable()
    assert files.find(guest.known, shown).path == shown
    with pytest.raises(OptprobeError) as wrong:
        files.find(guest.known, "/l\n/\x1b")
    assert str(wrong.value).isprintable()


def test_programs_and_libraries_are_found_by_their_names() -> None:
    kernel = Kernel()
    directory, file = (lambda: kernel.inode(stat.S_IFDIR)), kernel.inode(stat.S_IFREG, 10)
    top = kernel.within(kernel.root, lib=directory(), usr=directory(), lib64=kernel.inode(stat.S_IFLNK, link="/lib"))
    inside = {"x86_64-linux-gnu": directory(), "libc-2.31.so": file, "modules": directory()}
    machine = kernel.within(top["lib"], **inside)
    names = ("libc.so.6", "libcrypto.so.3", "libc.a", "libc", "xlibc.so")
    kernel.within(machine["x86_64-linux-gnu"], **dict.fromkeys(names, file))
    kernel.within(kernel.within(top["usr"], bin=directory())["bin"], bash=file)
    libraries = ["/lib64/libc-2.31.so", "/lib64/x86_64-linux-gnu/libc.so.6"]
    assert files.search(kernel.known, "libc") == libraries, "and not those of /lib, which is the same"
    assert files.search(kernel.known, "libcrypto.so.3") == ["/lib64/x86_64-linux-gnu/libcrypto.so.3"]
    assert files.search(kernel.known, "bash") == ["/usr/bin/bash"]
    assert files.search(kernel.known, "libnone") == files.search(kernel.known, "none") == []
