# The firmware of the emulated machine and all its operating system: the last 64 KB of the first 4 GB.
#
# It turns on long mode and the vector registers, those of tiles included, and runs one static Linux
# program that xtask/src/bochs.rs has put into memory: on one thread, in the processor's highest
# privilege, with the few system calls that a test written in Rust makes. Text goes to port 0xe9, between
# bytes 2 and 3; the exit status follows, or `!` with vector, address and code segment of an exception.
#
# Memory: page tables at 0x1000, interrupt table at 0x8000, a stack below 0x10000, and from there on what
# bochs.rs says.
.intel_syntax noprefix
.set ENTRY, 0x10000
.set STACK, 0x10008
.set HEAP, 0x10010               # for brk: first and last address
.set HEAP_END, 0x10018
.set MAP, 0x10020                # for mmap: the same
.set MAP_END, 0x10028
.set FROM, 0x10030               # where the program was loaded, where it belongs, its length
.set TO, 0x10038
.set BYTES, 0x10040

.set CODE32, 0x08
.set CODE64, 0x10
.set DATA, 0x18

.set TILE_DATA, 18               # component of the extended state
.set XCR0, 0x602e7               # x87, SSE, AVX, AVX-512, tile configuration, tile data

.text
.code32
start32:
    mov eax, DATA
    mov ds, eax
    mov es, eax
    mov ss, eax
    # 4 GB at their own addresses, in pages of 2 MB.
    mov edi, 0x1000
    xor eax, eax
    mov ecx, 0x7000 / 4
    rep stosd
    mov dword ptr [0x1000], 0x2007
    mov eax, 0x3007
    mov edi, 0x2000
1:  mov [edi], eax
    add eax, 0x1000
    add edi, 8
    cmp edi, 0x2020
    jne 1b
    mov eax, 0x87
    mov edi, 0x3000
2:  mov [edi], eax
    add eax, 0x200000
    add edi, 8
    cmp edi, 0x7000
    jne 2b
    mov eax, 0x40620             # PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
    mov cr4, eax
    mov eax, 0x1000
    mov cr3, eax
    mov ecx, 0xc0000080          # EFER: long mode, SYSCALL
    mov eax, 0x101
    xor edx, edx
    wrmsr
    mov eax, 0x80000033          # paging, protection, FPU
    mov cr0, eax
    ljmp CODE64, offset start64

.code64
start64:
    mov esp, 0x10000
    # Every exception ends the program.
    lea rax, [rip + exceptions]
    mov edi, 0x8000
    mov ecx, 32
3:  mov [rdi], ax
    mov word ptr [rdi + 2], CODE64
    mov dword ptr [rdi + 4], 0xffff8e00
    mov qword ptr [rdi + 8], 0
    add rax, 16
    add edi, 16
    loop 3b
    lidt [rip + idtr]
    mov ecx, 0xc0000081          # STAR
    xor eax, eax
    mov edx, CODE64
    wrmsr
    inc ecx                      # LSTAR
    lea rax, [rip + system_call]
    xor edx, edx
    wrmsr
    mov ecx, 0xc0000084          # FMASK
    xor eax, eax
    wrmsr
    fninit
    xor ecx, ecx
    mov eax, XCR0
    xor edx, edx
    xsetbv
    mov rsi, [FROM]
    mov rdi, [TO]
    mov rcx, [BYTES]
    rep movsb
    mov al, 2                    # start of text
    out 0xe9, al
    mov rsp, [STACK]
    xor edx, edx                 # nothing to run at exit
    jmp qword ptr [ENTRY]

# rax: number, then result; rdi, rsi, rdx, r10: arguments. rcx: where to return; r11: flags.
system_call:
    cmp eax, 1
    je write
    cmp eax, 9
    je mmap
    cmp eax, 12
    je brk
    cmp eax, 20
    je writev
    cmp eax, 60
    je exit
    cmp eax, 231
    je exit
    cmp eax, 158
    je arch_prctl
    cmp eax, 56                  # clone
    je again
    cmp eax, 435                 # clone3
    je again
    cmp eax, 318                 # getrandom
    je getrandom
    cmp eax, 228                 # clock_gettime
    je clock_gettime
    cmp eax, 202                 # futex
    je done
    cmp eax, 10                  # mprotect
    je done
    cmp eax, 11                  # munmap
    je done
    cmp eax, 13                  # rt_sigaction
    je done
    cmp eax, 14                  # rt_sigprocmask
    je done
    cmp eax, 131                 # sigaltstack
    je done
    cmp eax, 28                  # madvise
    je done
    cmp eax, 7                   # poll
    je done
    cmp eax, 218                 # set_tid_address
    je one
    cmp eax, 39                  # getpid
    je one
    cmp eax, 186                 # gettid
    je one
    cmp eax, 234                 # tgkill: of itself, as abort does
    je aborted
    mov rax, -38                 # ENOSYS
    jmp rcx
done:
    xor eax, eax
    jmp rcx
one:
    mov eax, 1
    jmp rcx
again:
    mov rax, -11                 # EAGAIN: tests run on the thread that there is
    jmp rcx
invalid:
    mov rax, -22                 # EINVAL
    jmp rcx
no_memory:
    mov rax, -12                 # ENOMEM
    jmp rcx

write:
    push rcx
    push rdx
    push rsi
    mov rcx, rdx
    mov dx, 0xe9
    rep outsb
    pop rsi
    pop rax
    mov rdx, rax
    pop rcx
    jmp rcx

writev:
    push rdi
    push rcx
    push rsi
    push rdx
    push r8
    xor r8d, r8d
    mov rcx, rdx
    mov rdi, rsi
4:  jrcxz 5f
    push rcx
    mov rsi, [rdi]
    mov rcx, [rdi + 8]
    add r8, rcx
    mov dx, 0xe9
    rep outsb
    pop rcx
    add rdi, 16
    dec rcx
    jmp 4b
5:  mov rax, r8
    pop r8
    pop rdx
    pop rsi
    pop rcx
    pop rdi
    jmp rcx

# What is given back is not used again.
mmap:
    cmp r8d, -1                  # no file
    jne invalid
    mov rax, [MAP]
    push rsi
    add rsi, 4095
    and rsi, -4096
    add rsi, rax
    cmp rsi, [MAP_END]
    ja 6f
    mov [MAP], rsi
    pop rsi
    jmp rcx
6:  pop rsi
    jmp no_memory

brk:
    mov rax, [HEAP]
    cmp rdi, rax
    jb 7f
    cmp rdi, [HEAP_END]
    ja 7f
    mov rax, rdi
    mov [HEAP], rax
7:  jmp rcx

arch_prctl:
    cmp edi, 0x1002              # ARCH_SET_FS
    je set_fs
    cmp edi, 0x1023              # ARCH_REQ_XCOMP_PERM
    jne invalid
    cmp esi, TILE_DATA
    jne invalid
    jmp done
set_fs:
    push rcx
    push rdx
    mov ecx, 0xc0000100
    mov eax, esi
    mov rdx, rsi
    shr rdx, 32
    wrmsr
    pop rdx
    pop rcx
    jmp done

getrandom:
    mov rax, rsi                 # zeros are random enough
    jmp rcx

clock_gettime:
    mov qword ptr [rsi], 0
    mov qword ptr [rsi + 8], 0
    jmp done

aborted:
    mov edi, 134
exit:
    mov al, 3                    # end of text
    out 0xe9, al
    mov eax, edi
    call hex
    jmp shutdown

# Vector in ecx.
exception:
    mov al, 3
    out 0xe9, al
    mov al, '!'
    out 0xe9, al
    mov rax, rcx
    call hex
    mov rax, [rsp]
    call hex
    mov rax, [rsp + 8]
    call hex

shutdown:
    mov al, '\n'
    out 0xe9, al
    mov dx, 0x8900
    lea rsi, [rip + message]
    mov ecx, 8
    rep outsb
8:  hlt
    jmp 8b

hex:
    mov rdx, rax
    mov ecx, 16
9:  rol rdx, 4
    mov al, dl
    and al, 15
    cmp al, 10
    jb 10f
    add al, 'a' - '0' - 10
10: add al, '0'
    out 0xe9, al
    loop 9b
    mov al, ' '
    out 0xe9, al
    ret

.balign 16
exceptions:
.set vector, 0
.rept 32
    mov ecx, vector
    jmp exception
    .balign 16
    .set vector, vector + 1
.endr

message:
    .ascii "Shutdown"
.balign 8
gdt:
    .quad 0
    .quad 0x00cf9b000000ffff     # CODE32
    .quad 0x00af9b000000ffff     # CODE64
    .quad 0x00cf93000000ffff     # DATA
gdtr:
    .word 31
    .long gdt
idtr:
    .word 32 * 16 - 1
    .quad 0x8000

.code16
start16:
    cli
    lgdtd cs:[gdtr - 0xffff0000]
    mov eax, 0x11
    mov cr0, eax
    .byte 0x66, 0xea             # jmp far CODE32:start32
    .long start32
    .word CODE32

.org 0xfff0
    jmp start16
.org 0x10000
