# Segment overrides and segment registers.

.include "layout.inc"

HAZARD fs_load
    lea rbx, [rbx + 1]
SITE
    mov rax, fs:[scratch]
    lea rdx, [rdx + 1]
    ret
END

HAZARD gs_load
    lea rbx, [rbx + 1]
SITE
    mov rax, gs:[scratch + 8]
    lea rdx, [rdx + 1]
    ret
END

HAZARD gs_store_imm32
    lea rbx, [rbx + 1]
SITE
    mov dword ptr gs:[scratch + 8], 0x11223344
    lea rdx, [rdx + 1]
    ret
END

HAZARD gs_inc
    lea rbx, [rbx + 1]
SITE
    inc qword ptr gs:[scratch + 16]
    lea rdx, [rdx + 1]
    ret
END

HAZARD gs_indexed
    lea rdi, [rip + scratch]
    and eax, 7
SITE
    add rdx, gs:[rdi + rax*8]
    lea rsi, [rsi + 1]
    ret
END

HAZARD cs_override
    lea rdi, [rip + scratch]
SITE
    mov rax, cs:[rdi + 8]
    lea rsi, [rsi + 1]
    ret
END

# Interrupts and single steps are held off for one more instruction.
HAZARD mov_ss
    mov eax, ss
SITE
    mov ss, eax
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD mov_ds
    mov eax, ds
SITE
    mov ds, eax
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END
