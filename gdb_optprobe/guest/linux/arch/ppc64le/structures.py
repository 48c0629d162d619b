"""Offsets of structure members in a ppc64le kernel without types: those that probes on programs need.

    get_task_mm         ld r30,MM(r31); lwz r9,FLAGS(r31); addi r9,r30,USERS       r31: the first argument
    setup_arg_pages     ld r9,CURRENT(r13); ld r27,MM(r9); std r9,ARGUMENTS(r27)
    unlink_file_vma     ld r9,FILE(r3); ld r30,MAPPING(r9); addi r29,r30,LOCK

An offset is derived from the code of one function: the first use of that kind of what an argument leads to. Members
beside it have had the same distance for long; those that come first, or have the same offset in every 64-bit kernel,
are in a table. Values read by these offsets are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gdb_optprobe.guest.linux.arch.ppc64le.constants import DerivedSymbols
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.isa.ppc64le.fields import X31, opcode, ra, rb, rt, simm, word_of, xo

ADDI, LWZ, LD, STD, OR = 14, 32, 58, 62, 444
PACA = 13
MFLR = 0x7C08_02A6
"""mflr r0, which at a function's entry the call of a tracer follows: that keeps arguments."""

Path = tuple[int | str, ...]
"""What a register holds: an argument or the paca, by its register, and the members that were followed from there."""


@dataclass(frozen=True, slots=True)
class FromCode:
    """An instruction of this `form` in `function` with the base that `path` leads to.

    which: of several offsets there, in their order. less: to be taken away.
    """

    function: str
    path: Path
    form: int
    which: int = 0
    less: int = 0


@dataclass(frozen=True, slots=True)
class Adjacent:
    """An offset of so many bytes behind another member of the same structure."""

    member: str
    bytes: int


CURRENT = "current"
FIXED: Mapping[str, int] = {
    "path.mnt": 0,
    "path.dentry": 8,
    "vfsmount.mnt_root": 0,
    "mount.mnt_mountpoint": 24,
    "mount.mnt": 32,
    "mount.mnt_mounts": 88,
    "mount.mnt_child": 104,
    "dentry.d_name.len": 36,
    "dentry.d_name.name": 40,
    "dentry.d_inode": 48,
    "dentry.d_child": 144,
    "dentry.d_subdirs": 160,
    "inode.i_mode": 0,
    "inode.i_sb": 40,
    "inode.i_mapping": 48,
    "inode.i_ino": 64,
    "inode.i_size": 80,
    "inode.i_mtime.tv_sec": 104,
    "inode.i_mtime.tv_nsec": 112,
    "super_block.s_dev": 16,
    "super_block.s_magic": 96,
    "file.f_path.dentry": 24,
    "file.f_inode": 32,
    "address_space.i_pages.xa_head": 16,
    "xa_node.shift": 0,
    "xa_node.slots": 40,
    "page.compound_head": 8,
    "page.mapping": 24,
    "page.index": 32,
    "vm_area_struct.vm_start": 0,
    "vm_area_struct.vm_end": 8,
    "rb_node.rb_right": 8,
    "rb_node.rb_left": 16,
    "anon_vma_chain.vma": 0,
    "anon_vma_chain.rb": 32,
    "anon_vma.rb_root.rb_root.rb_node": 80,
}
"""include/linux: path.h, mount.h, dcache.h, fs.h, xarray.h, mm_types.h, rbtree.h, rmap.h; fs/mount.h."""
DERIVED: Mapping[str, FromCode | Adjacent] = {
    "task_struct.mm": FromCode("get_task_mm", ("r3",), LD),
    "task_struct.flags": FromCode("get_task_mm", ("r3",), LWZ),
    "task_struct.fs": FromCode("exit_fs", ("r3",), LD),
    "mm_struct.mm_users": FromCode("get_task_mm", ("r3", "task_struct.mm"), ADDI),
    "mm_struct.pgd": FromCode("init_new_context", ("r4",), LD),
    "mm_struct.exe_file": FromCode("get_mm_exe_file", ("r3",), LD),
    "mm_struct.mmap_lock.count": FromCode("setup_arg_pages", (CURRENT, "task_struct.mm"), ADDI),
    # arg_start; before it start_brk, brk and start_stack, and before these the ends of code and data.
    "mm_struct.start_code": FromCode("setup_arg_pages", (CURRENT, "task_struct.mm"), STD, less=56),
    "fs_struct.root": FromCode("set_fs_root", ("r3",), LD),
    "inode.i_count": FromCode("ihold", ("r3",), ADDI),
    "inode.i_link": FromCode("simple_get_link", ("r4",), LD),
    "vm_area_struct.vm_file": FromCode("unlink_file_vma", ("r3",), LD),
    "file.f_mapping": FromCode("unlink_file_vma", ("r3", "vm_area_struct.vm_file"), LD),
    "address_space.i_mmap_rwsem.count": FromCode(
        "unlink_file_vma", ("r3", "vm_area_struct.vm_file", "file.f_mapping"), ADDI
    ),
    "address_space.i_mmap": Adjacent("i_mmap_rwsem.count", -16),
    "vm_area_struct.vm_pgoff": Adjacent("vm_file", -8),
    "vm_area_struct.anon_vma": Adjacent("vm_file", -24),
    "vm_area_struct.vm_flags": FromCode("unlink_file_vma", ("r3",), LD, which=1),
    "vm_area_struct.vm_mm": Adjacent("vm_flags", -16),
    "vm_area_struct.shared.rb": Adjacent("vm_flags", 8),
}
KPROBES: Mapping[str, FromCode | Adjacent] = {
    "kprobe.addr": FromCode("arch_disarm_kprobe", ("r3",), LD),
    "kprobe.opcode": FromCode("arch_disarm_kprobe", ("r3",), LWZ),
    "kprobe.pre_handler": Adjacent("opcode", -16),
    "optimized_kprobe.optinsn.insn": FromCode("arch_remove_optimized_kprobe", ("r3",), LD),
    "optimized_kprobe.optinsn.copied_insn": Adjacent("optinsn.insn", -8),
}
"""Of the guest's own kprobes (include/linux/kprobes.h, asm/kprobes.h): what its text was is looked up by them."""


@dataclass
class CodeStructures:
    """`guest.linux.kernel.Structures`.

    current: where a paca has the thread that runs. others: what is known already, by "struct.member".
    fixed: offsets that are the same in every kernel. derived: the others, by the code that uses them.
    """

    symbols: DerivedSymbols
    current: int
    others: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=lambda: FIXED)
    derived: Mapping[str, FromCode | Adjacent] = field(default_factory=lambda: DERIVED)
    _known: dict[str, int] = field(default_factory=dict)

    def offset(self, struct: str, member: str) -> int:
        """Return a member's offset. Raises NoSuchKernel."""
        return self._offset(f"{struct}.{member}")

    def _offset(self, name: str) -> int:
        found = self.others.get(name, self.fixed.get(name, self._known.get(name)))
        if found is None:
            found = self._known[name] = self._from_code(name)
        return found

    def _from_code(self, name: str) -> int:
        rule = self.derived.get(name)
        if isinstance(rule, Adjacent):
            return self._offset(f"{name.partition('.')[0]}.{rule.member}") + rule.bytes
        if rule is None:
            raise NoSuchKernel(f"this kernel has no types (BTF), and {name} is not known without")
        path = self._path(rule.path)
        uses = _uses(self.symbols, rule.function)
        found = list(dict.fromkeys(offset for base, form, offset in uses if (base, form) == (path, rule.form)))
        if len(found) > rule.which and found[rule.which] >= rule.less:
            return found[rule.which] - rule.less
        raise NoSuchKernel(f"this kernel has no types (BTF), and {rule.function} does not tell of {name}")

    def _path(self, path: Path) -> Path:
        start: Path = (f"r{PACA}", self.current) if path[0] == CURRENT else path[:1]
        return start + tuple(self._offset(str(member)) for member in path[1:])


def of_kprobes(symbols: DerivedSymbols) -> CodeStructures:
    """Return the structures that a kernel without types is generally asked for."""
    return CodeStructures(symbols, 0, fixed={"kprobe.hlist": 0}, derived=KPROBES)


def has_types(kernel: Kernel) -> bool:
    return kernel.structures is not None and not isinstance(kernel.structures, CodeStructures)


def _uses(symbols: DerivedSymbols, function: str) -> Iterator[tuple[Path, int, int]]:
    """Yield (base, opcode, offset) of each load, store and addition, in order of address."""
    held: dict[int, Path] = {number: (f"r{number}",) for number in (*range(3, 11), PACA)}
    before = 0
    for insn in symbols.code(function):
        word, is_traced = word_of(insn.data), before == MFLR
        before = word
        base, form = held.get(ra(word)), opcode(word)
        new: tuple[int, Path] | None = None
        if (form in (LD, STD) and not word & 3) or form in (ADDI, LWZ):
            offset = simm(word & ~3 if form in (LD, STD) else word)
            if base is not None:
                yield base, form, offset
                if form == LD:
                    new = rt(word), (*base, offset)
        elif form == X31 and xo(word) == OR and rt(word) == rb(word) and rt(word) in held:
            new = ra(word), held[rt(word)]
        for register in () if is_traced else symbols.overwritten(insn, held):
            del held[register]
        if new is not None:
            held[new[0]] = new[1]
