# From QEMU's entry (32-bit, no paging) to 64-bit code in the upper half; interrupts, faults, the serial line.
#
#     page tables: one directory of 2 MiB pages for the first GiB of physical memory, seen three times
#
#     virtual                              for
#     0000000000000000-000000003fffffff    the boot code
#     0000000080000000-00000000bfffffff    addresses cut to 32 bits (EIP-relative operands)
#     ffffffff80000000-ffffffffbfffffff    everything else, as in Linux

.include "layout.inc"

.set base,         0xffffffff80000000
.set COM1,         0x3f8
.set PIC1,         0x20
.set PIC2,         0xa0
.set TRAP,         1
.set TICK,         0x20
.set SYSTEM_CALL,  0x80
.set TICKS_PER_S,  250

# The address that QEMU enters an ELF64 kernel at: a PVH note (XEN_ELFNOTE_PHYS32_ENTRY).
.section .note.pvh, "a", @note
    .balign 4
    .long 4, 4, 18
    .asciz "Xen"
    .long boot

.section .boot, "awx"
.code32
.globl boot
boot:
    cli
    mov esp, offset boot_stack
    lgdt [gdt_pointer]

    mov eax, cr4
    or eax, 0x620                       # PAE, OSFXSR, OSXMMEXCPT
    mov cr4, eax
    mov eax, offset level4
    mov cr3, eax
    mov ecx, 0xc0000080                 # EFER
    rdmsr
    or eax, 0x100                       # LME
    wrmsr
    mov eax, cr0
    and eax, 0xfffffffb                 # EM off: SSE is allowed
    or eax, 0x80010002                  # PG, WP, MP
    mov cr0, eax
    jmp 0x10:in_long_mode

.code64
in_long_mode:
    mov eax, 0x18
    mov ds, eax
    mov es, eax
    mov ss, eax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    movabs rax, offset start
    jmp rax

    .balign 8
gdt:                                    # the selectors are Linux's
    .quad 0
    .quad 0x00cf9b000000ffff            # 08: code, 32 bits
    .quad 0x00af9b000000ffff            # 10: code, 64 bits
    .quad 0x00cf93000000ffff            # 18: data
gdt_pointer:
    .word gdt_pointer - gdt - 1
    .quad gdt

    .balign 4096
level4:
    .quad level3_low + 3
    .fill 510, 8, 0
    .quad level3_high + 3
level3_low:
    .quad level2 + 3, 0, level2 + 3
    .fill 509, 8, 0
level3_high:
    .fill 510, 8, 0
    .quad level2 + 3, 0
level2:
    .set page, 0
    .rept 512
    .quad page + 0x83                   # present, writable, 2 MiB
    .set page, page + 0x200000
    .endr
    .fill 256, 1, 0
boot_stack:

.text
start:
    lea rsp, [rip + stack_top]
    call set_segment_bases
    call set_features
    call set_interrupts
    lea rsi, [rip + ready_text]
    call print
    jmp wait_for_go

set_segment_bases:
    xor edx, edx
    mov ecx, 0xc0000100
    mov eax, FS_BASE
    wrmsr
    mov ecx, 0xc0000101
    mov eax, GS_BASE
    wrmsr
    ret

# features: the NEEDS_ bits this CPU has; AVX is switched on.
set_features:
    xor r8d, r8d
    mov eax, 1
    cpuid
    and ecx, 0x14000000                 # XSAVE, AVX
    cmp ecx, 0x14000000
    jne 1f
    mov rax, cr4
    or eax, 0x40000                     # OSXSAVE
    mov cr4, rax
    xor ecx, ecx
    xor edx, edx
    mov eax, 7                          # x87, SSE, AVX
    xsetbv
    or r8d, NEEDS_AVX
1:  xor eax, eax
    cpuid
    cmp eax, 7
    jb 2f
    mov eax, 7
    xor ecx, ecx
    cpuid
    and ebx, 0x108                      # BMI1, BMI2
    cmp ebx, 0x108
    jne 2f
    or r8d, NEEDS_BMI
2:  mov [rip + features], r8
    ret

set_interrupts:
    lea rdi, [rip + idt]
    lea rsi, [rip + vectors]
    mov ecx, 32
1:  mov rax, rsi
    call set_gate
    add rsi, 16
    loop 1b
    mov ecx, 224
2:  lea rax, [rip + ignored]
    call set_gate
    loop 2b
    lea rdi, [rip + idt + 16 * TRAP]
    lea rax, [rip + trap]
    call set_gate
    lea rdi, [rip + idt + 16 * TICK]
    lea rax, [rip + tick]
    call set_gate
    lea rdi, [rip + idt + 16 * SYSTEM_CALL]
    lea rax, [rip + system_call]
    call set_gate
    lidt [rip + idt_pointer]

    mov al, 0x11                        # both controllers: vectors from 0x20, everything masked
    out PIC1, al
    out PIC2, al
    mov al, TICK
    out PIC1 + 1, al
    mov al, TICK + 8
    out PIC2 + 1, al
    mov al, 4
    out PIC1 + 1, al
    mov al, 2
    out PIC2 + 1, al
    mov al, 1
    out PIC1 + 1, al
    out PIC2 + 1, al
    mov al, 0xff
    out PIC1 + 1, al
    out PIC2 + 1, al

    mov al, 0x34                        # timer 0, periodic
    out 0x43, al
    mov eax, 1193182 / TICKS_PER_S
    out 0x40, al
    mov al, ah
    out 0x40, al
    ret

# rax: the handler; rdi: the gate, left at the next one
set_gate:
    mov [rdi], ax
    mov word ptr [rdi + 2], 0x10
    mov word ptr [rdi + 4], 0x8e00
    shr rax, 16
    mov [rdi + 6], ax
    shr rax, 16
    mov [rdi + 8], eax
    mov dword ptr [rdi + 12], 0
    add rdi, 16
    ret

# Halt until `go` is not zero. The tick looks again; in the table, only functions that ask for ticks see it.
.globl wait_for_go, ready
.type wait_for_go, @function
wait_for_go:
    mov al, 0xfe
    out PIC1 + 1, al
ready:
    cmp qword ptr [rip + go], 0
    jne 1f
    sti
    hlt
    cli
    jmp ready
1:  mov al, 0xff
    out PIC1 + 1, al
    call run_table
    dec qword ptr [rip + go]
    inc qword ptr [rip + rounds]
.globl done
done:
    jmp wait_for_go
    .size wait_for_go, . - wait_for_go

# Between these, ticks arrive where interrupts are on. No register changes.
.globl ticks_on, ticks_off
.type ticks_on, @function
ticks_on:
    push rax
    mov al, 0xfe
    out PIC1 + 1, al
    pop rax
    ret
    .size ticks_on, . - ticks_on
.type ticks_off, @function
ticks_off:
    cli
    push rax
    mov al, 0xff
    out PIC1 + 1, al
    pop rax
    ret
    .size ticks_off, . - ticks_off

# Until a tick is pending, with interrupts off. No register changes.
.globl wait_for_tick
.type wait_for_tick, @function
wait_for_tick:
    push rax
1:  mov al, 0x0a                        # the next read is of the requests
    out PIC1, al
    in al, PIC1
    test al, 1
    jz 1b
    pop rax
    ret
    .size wait_for_tick, . - wait_for_tick

tick:
    push rax
    inc qword ptr [rip + ticks]
    mov [rip + tick_rdx], rdx
    mov rax, [rsp + 8]
    cmp word ptr [rax], 0xaaf3          # rep stosb that has turns left
    jne 1f
    cmp rcx, LONG_BUFFER
    je 1f
    mov [rip + interrupted_rep_at], rax
1:  mov al, 0x20
    out PIC1, al
    pop rax
ignored:
    iretq

trap:
    mov [rip + trap_rdx], rdx
    and qword ptr [rsp + 16], ~0x100    # TF off
    iretq

# What `int 0x80` does here: something to be seen in the outputs.
system_call:
    lea rax, [rax + 0x80]
    iretq

# One 16-byte entry for each exception: error code (its own or 0), vector.
    .balign 16
vectors:
    .set vector, 0
    .rept 32
    .balign 16, 0xcc
    .if !((1 << vector) & 0x60227d00)
    push 0
    .endif
    push vector
    jmp fault
    .set vector, vector + 1
    .endr

# An exception is the end: leave what it was where a debugger finds it, say so, halt.
.globl fault
.type fault, @function
fault:
    pop qword ptr [rip + fault_vector]
    pop qword ptr [rip + fault_error]
    pop qword ptr [rip + fault_rip]
    mov rax, cr2
    mov [rip + fault_address], rax
    lea rsi, [rip + fault_text]
    call print
1:  cli
    hlt
    jmp 1b
    .size fault, . - fault

# rsi: text, ended by NUL
print:
    cld
1:  lodsb
    test al, al
    jz 2f
    mov dx, COM1
    out dx, al
    jmp 1b
2:  ret

.section .data, "aw"
ready_text: .asciz "optprobe-guest: ready\n"
fault_text: .asciz "optprobe-guest: BUG: exception\n"
    .balign 8
idt_pointer:
    .word 4095
    .quad idt

.globl go, rounds, ticks, features, fault_vector, fault_error, fault_rip, fault_address
.globl interrupted_rep_at, tick_rdx, trap_rdx
    .balign 8
go:            .quad 0
rounds:        .quad 0
ticks:         .quad 0
features:      .quad 0
fault_vector:  .quad -1
fault_error:   .quad 0
fault_rip:     .quad 0
fault_address: .quad 0
interrupted_rep_at: .quad 0             # where a tick found `rep stosb` half done
tick_rdx:      .quad 0                  # what the last tick found in RDX
trap_rdx:      .quad 0                  # and the last single-step trap

.section .bss, "aw", @nobits
    .balign 16
idt:
    .skip 4096
    .skip 8192
stack_top:
