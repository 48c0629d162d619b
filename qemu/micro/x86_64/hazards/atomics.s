# Locked instructions.

.include "layout.inc"

HAZARD lock_xadd
    lea rdi, [rip + scratch + 32]
SITE
    lock xadd [rdi], rax
    lea rdx, [rdx + 1]
    ret
END

HAZARD lock_cmpxchg
    lea rdi, [rip + scratch + 32]
    test cl, 1
    cmovnz rax, [rdi]
SITE
    lock cmpxchg [rdi], rdx
    lea rsi, [rsi + 1]
    ret
END

HAZARD lock_cmpxchg8b
    lea rdi, [rip + scratch + 32]
SITE
    lock cmpxchg8b [rdi]
    lea rsi, [rsi + 1]
    ret
END

HAZARD lock_inc
    lea rdi, [rip + scratch + 32]
SITE
    lock inc dword ptr [rdi]
    lea rdx, [rdx + 1]
    ret
END

# The bit's number reaches beyond the operand.
HAZARD lock_bts
    lea rdi, [rip + scratch + 32]
    and eax, 0xff
SITE
    lock bts [rdi], rax
    lea rdx, [rdx + 1]
    ret
END

HAZARD xchg_memory
    lea rdi, [rip + scratch + 32]
SITE
    xchg [rdi], rax
    lea rdx, [rdx + 1]
    ret
END
