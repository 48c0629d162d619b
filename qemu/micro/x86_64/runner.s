# Run the table of hazards: for each function and each input state, load every register, call, keep what came out.
#
#     hazards[N]                    64 bytes each, up to hazards_end
#     ┌────────┬────────┬────────┬────────┬────────┬───────────┐
#     │ +0     │ +8     │ +16    │ +24    │ +32    │ +40       │
#     │ name   │ hz_X   │ hz_X_  │ its    │ needs  │ 0         │      name: address of a NUL-ended string
#     │        │        │ site   │ end    │        │           │      needs: bits 1 AVX, 2 BMI
#     └────────┴────────┴────────┴────────┴────────┴───────────┘
#     inputs[4]                     256 bytes each; a debugger may write its own
#     ┌──────────────────────────────────┬────────┬────────┬───────────────┬───────────┐
#     │ +0                               │ +128   │ +136   │ +144          │ +176      │
#     │ rax rcx rdx rbx - rbp rsi rdi    │ flags  │ 0      │ xmm0 xmm1     │ 0         │      flags: of CF PF AF
#     │ r8 … r15  (rsp is the runner's)  │        │        │               │           │      ZF SF DF OF
#     └──────────────────────────────────┴────────┴────────┴───────────────┴───────────┘
#     scratch_input  256 bytes, copied to `scratch` before each run; what functions read and write
#     stack_input     64 bytes, copied to the top of the functions' stack before each run
#
#     results[N][4]                 512 bytes each
#     ┌──────────────────────────────────┬────────┬────────┬────────┬───────┬────────────┬───────────┬─────────────┐
#     │ +0                               │ +128   │ +136   │ +144   │ +152  │ +160       │ +224      │ +256        │
#     │ rax rcx rdx rbx rsp rbp rsi rdi  │ rflags │ runs   │ ticks  │ 0     │ stack, 64  │ xmm0 xmm1 │ scratch     │
#     │ r8 … r15                         │        │        │        │       │ from the   │           │             │
#     │                                  │        │        │        │       │ top down   │           │             │
#     └──────────────────────────────────┴────────┴────────┴────────┴───────┴────────────┴───────────┴─────────────┘
#     runs:  how often this pair has been run since boot; 0 where the CPU lacks what the function needs
#     ticks: time stamp counter around the call; under icount instructions, a fixed number of them the runner's
#
#     go      write n to run n rounds; counts down         only   index of the one hazard to run; -1: all
#     rounds  counts up; `done` is executed after each     repeat how often in a row each pair is run, at least 1
#     arena_text (64 KiB of int3 inside .text), arena_data (64 KiB): free for whoever patches the guest

.include "layout.inc"

.text
.globl run_table
.type run_table, @function
run_table:
    lea r12, [rip + hazards]
    lea r14, [rip + results]
    xor ebx, ebx
1:  lea rax, [rip + hazards_end]
    cmp r12, rax
    jae 5f
    mov rax, [rip + only]
    cmp rax, -1
    je 2f
    cmp rax, rbx
    jne 4f
2:  mov rax, [r12 + ENTRY_NEEDS]
    and rax, [rip + features]
    cmp rax, [r12 + ENTRY_NEEDS]
    jne 4f
    call run_states
4:  add r12, ENTRY_SIZE
    add r14, RESULT_SIZE * STATES
    inc rbx
    jmp 1b
5:  ret
    .size run_table, . - run_table

# r12: the entry; r14: its results
run_states:
    push r14
    lea r13, [rip + inputs]
    mov ebp, STATES
1:  mov r15, [rip + repeat]
2:  call run_one
    dec r15
    jg 2b
    add r13, STATE_SIZE
    add r14, RESULT_SIZE
    dec ebp
    jnz 1b
    pop r14
    ret

# r12: the entry; r13: the input; r14: the result
run_one:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15

    lea rsi, [rip + scratch_input]
    lea rdi, [rip + scratch]
    mov ecx, SCRATCH_SIZE / 8
    rep movsq
    lea rsi, [rip + stack_input]
    lea rdi, [rip + hazard_stack]
    mov ecx, STACK_SEEN / 8
    rep movsq

    inc qword ptr [r14 + RESULT_RUNS]
    mov rax, [r12 + ENTRY_CODE]
    mov [rip + function], rax
    mov [rip + runner_rsp], rsp
    lea rsp, [rip + hazard_stack]
    movups xmm0, [r13 + STATE_XMM]
    movups xmm1, [r13 + STATE_XMM + 16]
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov [rip + started], rax

    mov rax, [r13 + STATE_FLAGS]
    and eax, 0xcd5
    push rax
    popfq
    mov rax, [r13]
    mov rcx, [r13 + 8]
    mov rdx, [r13 + 16]
    mov rbx, [r13 + 24]
    mov rbp, [r13 + 40]
    mov rsi, [r13 + 48]
    mov rdi, [r13 + 56]
    mov r8, [r13 + 64]
    mov r9, [r13 + 72]
    mov r10, [r13 + 80]
    mov r11, [r13 + 88]
    mov r12, [r13 + 96]
    mov r14, [r13 + 112]
    mov r15, [r13 + 120]
    mov r13, [r13 + 104]
    call [rip + function]
returned:
    mov [rip + captured], rax
    mov [rip + captured + 8], rcx
    mov [rip + captured + 16], rdx
    mov [rip + captured + 24], rbx
    mov [rip + captured + 32], rsp
    mov [rip + captured + 40], rbp
    mov [rip + captured + 48], rsi
    mov [rip + captured + 56], rdi
    mov [rip + captured + 64], r8
    mov [rip + captured + 72], r9
    mov [rip + captured + 80], r10
    mov [rip + captured + 88], r11
    mov [rip + captured + 96], r12
    mov [rip + captured + 104], r13
    mov [rip + captured + 112], r14
    mov [rip + captured + 120], r15
    mov rsp, [rip + runner_rsp]
    pushfq
    pop qword ptr [rip + captured + RESULT_FLAGS]
    cli
    cld
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub rax, [rip + started]

    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    mov [r14 + RESULT_TICKS], rax
    movups [r14 + RESULT_XMM], xmm0
    movups [r14 + RESULT_XMM + 16], xmm1
    lea rsi, [rip + captured]
    mov rdi, r14
    mov ecx, RESULT_RUNS / 8
    rep movsq
    lea rsi, [rip + hazard_stack]
    lea rdi, [r14 + RESULT_STACK]
    mov ecx, STACK_SEEN / 8
    rep movsq
    lea rsi, [rip + scratch]
    lea rdi, [r14 + RESULT_MEMORY]
    mov ecx, SCRATCH_SIZE / 8
    rep movsq
    ret

# What the hazards call and jump to.
.globl leaf, leaf_drop, leaf_pointer, leaf_table, returned
.type leaf, @function
leaf:                                   # the return address is an output: it must be the original one
    mov rax, [rsp]
    lea rdx, [rdx + 1]
    ret
    .size leaf, . - leaf
.type leaf_drop, @function
leaf_drop:                              # takes 16 bytes of arguments off the stack
    mov rax, [rsp + 8]
    ret 16
    .size leaf_drop, . - leaf_drop

.globl arena_text, arena_text_end
    .balign 4096, 0xcc
arena_text:
    .fill 65536, 1, 0xcc
arena_text_end:

.section .data, "aw"
    .balign 8
leaf_pointer: .quad leaf
leaf_table:   .quad leaf, leaf, leaf, leaf

.globl only, repeat, inputs, scratch_input, stack_input
only:   .quad -1
repeat: .quad 1

    .balign 64
inputs:
    .fill STATE_SIZE, 1, 0              # zeros, no flag

    .fill 16, 8, -1                     # ones, every flag but DF
    .quad 0x8d5, 0
    .fill 4, 8, -1
    .fill (STATE_SIZE - 176) / 8, 8, 0

    .quad 0x0101010101010101, 0x0202020202020202, 0x0303030303030303, 0x0404040404040404
    .quad 0, 0x0606060606060606, 0x0707070707070707, 0x0808080808080808
    .quad 0x0909090909090909, 0x0a0a0a0a0a0a0a0a, 0x0b0b0b0b0b0b0b0b, 0x0c0c0c0c0c0c0c0c
    .quad 0x0d0d0d0d0d0d0d0d, 0x0e0e0e0e0e0e0e0e, 0x0f0f0f0f0f0f0f0f, 0x1010101010101010
    .quad 0x441, 0                      # CF, ZF, DF
    .quad 0x1111111111111111, 0x2222222222222222, 0x3333333333333333, 0x4444444444444444
    .fill (STATE_SIZE - 176) / 8, 8, 0

    .quad 0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0x2545f4914f6cdd1d
    .quad 0, 0xd1342543de82ef95, 0xaf251af3b0f025b5, 0xda942042e4dd58b5
    .quad 0x8000000000000000, 0x7fffffffffffffff, 0x00000000ffffffff, 0xffffffff00000000
    .quad 0x0000000080000000, 0xffffffff80000000, 0x00000000000000ff, 0x0000000000000100
    .quad 0x894, 0                      # PF, AF, SF, OF
    .quad 0x0123456789abcdef, 0xfedcba9876543210, 0x0f1e2d3c4b5a6978, 0x8796a5b4c3d2e1f0
    .fill (STATE_SIZE - 176) / 8, 8, 0

scratch_input:
    .set byte, 0
    .rept SCRATCH_SIZE
    .byte (byte * 37 + 11) & 0xff
    .set byte, byte + 1
    .endr

stack_input:
    .quad 0x5000000000000001, 0x5000000000000002, 0x5000000000000003, 0x5000000000000004
    .quad 0x5000000000000005, 0x5000000000000006, 0x5000000000000007, 0x5000000000000008

.section .bss, "aw", @nobits
.globl scratch, results, hazard_stack, arena_data, arena_data_end
    .balign 64
scratch:
    .skip SCRATCH_SIZE
captured:
    .skip RESULT_RUNS
function:   .skip 8
started:    .skip 8
runner_rsp: .skip 8

    .balign 4096
    .skip 65536
hazard_stack:                           # a function's stack grows down from here; `stack` has the bytes above
    .skip STACK_SEEN

    .balign 4096
.globl long_buffer
long_buffer:
    .skip LONG_BUFFER
arena_data:
    .skip 65536
arena_data_end:

    .balign 512
results:
    .skip RESULT_SIZE * STATES * 256
