# VEX encodings: prefixes that no decoder of legacy prefixes may take apart; RIP-relative with and without immediate.

.include "layout.inc"

HAZARD vex_rip_load needs=NEEDS_AVX
    lea rbx, [rbx + 1]
SITE
    vmovdqu xmm0, [rip + scratch + 64]
    lea rdx, [rdx + 1]
    ret
END

HAZARD vex_rip_store_ymm needs=NEEDS_AVX
    vinsertf128 ymm0, ymm0, xmm1, 1
SITE
    vmovdqu [rip + scratch + 96], ymm0
    lea rdx, [rdx + 1]
    ret
END

HAZARD vex_rip_imm8 needs=NEEDS_AVX
    lea rbx, [rbx + 1]
SITE
    vshufps xmm0, xmm1, [rip + scratch + 64], 0x1b
    lea rdx, [rdx + 1]
    ret
END

HAZARD vex_register needs=NEEDS_AVX
    lea rbx, [rbx + 1]
SITE
    vpxor xmm0, xmm0, xmm1
    lea rdx, [rdx + 1]
    ret
END

HAZARD vex_zeroupper needs=NEEDS_AVX
    lea rbx, [rbx + 1]
SITE
    vzeroupper
    lea rdx, [rdx + 1]
    lea rsi, [rsi + 1]
    ret
END

HAZARD vex_andn needs=NEEDS_BMI
    lea rbx, [rbx + 1]
SITE
    andn rax, rbx, [rip + scratch + 8]
    lea rdx, [rdx + 1]
    ret
END

HAZARD vex_rorx needs=NEEDS_BMI
    lea rbx, [rbx + 1]
SITE
    rorx rax, [rip + scratch + 8], 13
    lea rdx, [rdx + 1]
    ret
END

HAZARD vex_shlx needs=NEEDS_BMI
    lea rbx, [rbx + 1]
SITE
    shlx rax, [rip + scratch + 8], rcx
    lea rdx, [rdx + 1]
    ret
END
