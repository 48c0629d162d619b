# String instructions: registers they use without naming them, repeat prefixes, the direction flag of the input.

.include "layout.inc"

.macro STRING_INPUTS
    lea rsi, [rip + scratch + 64]
    lea rdi, [rip + scratch + 160]
    and ecx, 7
.endm

HAZARD movsb
    STRING_INPUTS
SITE
    movsb
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD rep_movsb
    STRING_INPUTS
SITE
    rep movsb
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD rep_movsq
    STRING_INPUTS
SITE
    rep movsq
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD rep_stosb
    STRING_INPUTS
SITE
    rep stosb
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD rep_stosd
    STRING_INPUTS
SITE
    rep stosd
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD stosq
    STRING_INPUTS
SITE
    stosq
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD lodsb
    STRING_INPUTS
SITE
    lodsb
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD lodsb_gs
    STRING_INPUTS
SITE
    lodsb al, gs:[rsi]
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD repe_cmpsb
    STRING_INPUTS
SITE
    repe cmpsb
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD repne_scasb
    STRING_INPUTS
SITE
    repne scasb
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD scasq
    STRING_INPUTS
SITE
    scasq
    lea rdx, [rdx + 1]
    lea rbx, [rbx + 1]
    ret
END

HAZARD xlat
    lea rbx, [rip + scratch]
    and eax, 0x7f
SITE
    xlatb
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    lea rdi, [rdi + 1]
    ret
END

# Without a 64-bit address the pointers wrap at 4 GiB: the alias of `scratch` below it.
HAZARD rep_movsb_addr32
    lea esi, [rip + scratch + 64]
    lea edi, [rip + scratch + 160]
    and ecx, 7
SITE
    addr32 rep movsb
    lea rdx, [rdx + 1]
    ret
END
