"""A program of the guest's that may be loaded anywhere, whose functions call each other and say how in .eh_frame.

    _start ─► outer ─► middle, which aligns its stack ─► inner
           └► bare, which says nothing ─► inner
"""

from __future__ import annotations

from pathlib import Path

from tests.booted.assembled import assembled, source_of

_SOURCE = """
.globl _start
.type _start, @function
_start: .cfi_startproc
        .cfi_undefined {r}ip
        nop
        call outer
        call bare
        mov $1, %eax
        xor %ebx, %ebx
        int $0x80
        .cfi_endproc
.size _start, . - _start
.type outer, @function
outer:  .cfi_startproc
        push %{r}bx
        .cfi_adjust_cfa_offset W
        .cfi_rel_offset {r}bx, 0
        sub $48, %{r}sp
        .cfi_adjust_cfa_offset 48
        call middle
        add $48, %{r}sp
        .cfi_adjust_cfa_offset -48
        pop %{r}bx
        .cfi_adjust_cfa_offset -W
        ret
        .cfi_endproc
.size outer, . - outer
.type middle, @function
middle: .cfi_startproc
        push %{r}bp
        .cfi_def_cfa_offset 2*W
        .cfi_offset {r}bp, -2*W
        mov %{r}sp, %{r}bp
        .cfi_def_cfa_register {r}bp
        and $-64, %{r}sp
        sub $64, %{r}sp
        call inner
        leave
        .cfi_def_cfa {r}sp, W
        ret
        .cfi_endproc
.size middle, . - middle
.type inner, @function
inner:  .cfi_startproc
        push $1
        .cfi_adjust_cfa_offset W
        nop
        pop %{r}ax
        .cfi_adjust_cfa_offset -W
        ret
        .cfi_endproc
.size inner, . - inner
.type bare, @function
bare:   sub $16, %{r}sp
        call inner
        add $16, %{r}sp
        ret
.size bare, . - bare
"""
MIDDLE = {"x86_64": "inner+0x2 / middle+0x11", "i386": "inner+0x2 / middle+0xe", "ppc64le": "inner+0xc / middle+0x1c"}
OUTER = {"x86_64": "outer+0xa / _start+0x6", "i386": "outer+0x9 / _start+0x6", "ppc64le": "outer+0x18 / _start+0x8"}
BARE = {
    "x86_64": "inner+0x2 / bare+0x9 / … / ? _start+0xb",
    "i386": "inner+0x2 / bare+0x8 / … / ? _start+0xb",
    "ppc64le": "inner+0xc / bare+0x10 / _start+0xc",
}
"""What a stack says within `inner`."""
_WORDS = {"x86_64": ("r", 8), "i386": ("e", 4)}


def build(folder: Path, arch: str = "x86_64") -> Path:
    """The program."""
    if arch not in _WORDS:
        return assembled(folder / "stacked", source_of(f"stacked_{arch}.s"), arch, "-pie", "--no-dynamic-linker")
    letter, word = _WORDS[arch]
    source = _SOURCE.replace("{r}", letter)
    return assembled(folder / "stacked", source, arch, "-pie", "--no-dynamic-linker", symbols={"W": word})
