# The program of returning_program.py in 32 bits: without signals, threads and waiting. `gives` takes an argument along.
.globl _start
_start: mov $COUNT, %edi
round:  mov $DEPTH, %ecx
        call deep
        cmp $DEPTH, %eax
        jne wrong
        mov %esp, %ebp
        push $9
        call gives
        cmp %esp, %ebp
        jne wrong
        cmp $10, %eax
        jne wrong
        push $4
        call first
        cmp %esp, %ebp
        jne wrong
        cmp $5, %eax
        jne wrong
        mov $3, %ecx
        call jumper
back:   cmp %esp, %ebp
        jne wrong
        call forks
        test %eax, %eax
        jz child
        dec %edi
        jnz round
        mov $42, %ebx
        jmp exit
child:  mov $7, %ebx
        jmp exit
wrong:  mov $1, %ebx
exit:   mov $252, %eax
        int $0x80
.type deep, @function
deep:   push %ecx
        xor %eax, %eax
        test %ecx, %ecx
        jz 1f
        dec %ecx
        call deep
        inc %eax
1:      pop %ecx
        ret
.size deep, . - deep
.type gives, @function
gives:  mov 4(%esp), %eax
        inc %eax
        ret $4
.size gives, . - gives
.type first, @function
first:  jmp last
.size first, . - first
.type last, @function
last:   mov 4(%esp), %eax
        inc %eax
        ret $4
.size last, . - last
.type jumper, @function
jumper: sub $8, %esp
        dec %ecx
        jz 1f
        call jumper
1:      mov %ebp, %esp
        jmp back
.size jumper, . - jumper
.type forks, @function
forks:  mov $2, %eax
        int $0x80
        test %eax, %eax
        jz 1f
        sub $16, %esp
        mov $7, %eax            # waitpid(-1, status, 0)
        mov $-1, %ebx
        mov %esp, %ecx
        xor %edx, %edx
        int $0x80
        mov (%esp), %edx
        add $16, %esp
        cmp $0x700, %edx
        jne wrong
1:      ret
.size forks, . - forks
