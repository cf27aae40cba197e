; A processor's first instructions after SIPI: real mode at CS:0000 of a page below 1 MiB, straight
; to 64-bit mode on our page tables. smp.c copies the code there and fills the parameters in.

global trampoline_start
global trampoline_end
global trampoline_params
global smp_entry64
extern smp_main
extern smp_stack

section .rodata
bits 16
align 16
trampoline_start:
	cli
	cld
	mov ax, cs
	mov ds, ax
	mov eax, [param_cr4 - trampoline_start]
	mov cr4, eax
	mov eax, [param_cr3 - trampoline_start]
	mov cr3, eax
	mov ecx, 0xc0000080
	xor edx, edx
	mov eax, [param_efer - trampoline_start]
	wrmsr
	o32 lgdt [param_gdtr - trampoline_start]
	mov eax, [param_cr0 - trampoline_start]
	mov cr0, eax
	jmp far dword [param_far - trampoline_start]

align 8
trampoline_params:
param_cr3:  dd 0
param_cr4:  dd 0
param_efer: dd 0
param_cr0:  dd 0
param_far:  dd 0                ; linear address of trampoline64
            dw 8, 0
param_gdtr: dw 15
            dd 0                ; linear address of param_gdt
            dw 0
param_entry: dq 0               ; smp_entry64
param_gdt:  dq 0
            dq 0x00af9b000000ffff

bits 64
align 8
trampoline64:
	jmp [rel param_entry]
trampoline_end:

global trampoline_offset_gdt
global trampoline_offset_64
align 4
trampoline_offset_gdt: dd param_gdt - trampoline_start
trampoline_offset_64:  dd trampoline64 - trampoline_start

section .text
bits 64
default rel
; The stack is a ticket: a processor that answers after it was given up finds none and stops.
align 16
smp_entry64:
	xor eax, eax
	mov ds, ax
	mov es, ax
	mov ss, ax
	xchg rax, [smp_stack]
	test rax, rax
	jz .late
	mov rsp, rax
	xor ebp, ebp
	call smp_main
.late:
	cli
	hlt
	jmp .late

section .note.GNU-stack noalloc noexec nowrite progbits
