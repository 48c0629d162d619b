# What only a kernel executes, and what has a shadow over the next instruction.

.include "layout.inc"

HAZARD sti
    lea rbx, [rbx + 1]
SITE
    sti
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD cli
    sti
    lea rbx, [rbx + 1]
SITE
    cli
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD sti_cli
    lea rbx, [rbx + 1]
SITE
    sti
    cli
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD int
    lea rbx, [rbx + 1]
SITE
    int 0x80
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD endbr64
    lea rbx, [rbx + 1]
SITE
    endbr64
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD cpuid
    xor eax, eax
    xor ecx, ecx
SITE
    cpuid
    lea rsi, [rsi + 1]
    lea rdi, [rdi + 1]
    ret
END

HAZARD rdmsr
    mov ecx, 0xc0000101
SITE
    rdmsr
    lea rsi, [rsi + 1]
    lea rdi, [rdi + 1]
    ret
END

HAZARD wrmsr
    mov ecx, 0xc0000101
    mov eax, GS_BASE
    xor edx, edx
SITE
    wrmsr
    lea rsi, [rsi + 1]
    lea rdi, [rdi + 1]
    ret
END

HAZARD mov_from_cr3
    lea rbx, [rbx + 1]
SITE
    mov rax, cr3
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD mov_to_cr3
    mov rax, cr3
SITE
    mov cr3, rax
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD invlpg
    lea rax, [rip + scratch]
SITE
    invlpg [rax]
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD out
    lea rbx, [rbx + 1]
SITE
    out 0x80, al
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD swapgs
    swapgs
SITE
    swapgs
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD pause
    lea rbx, [rbx + 1]
SITE
    pause
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD mfence
    lea rbx, [rbx + 1]
SITE
    mfence
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END
