; Interrupt entry, and the guarded instructions of hvm.h.
default rel

extern trap_handle
global trap_stubs
global hvm_rdmsr_safe
global hvm_wrmsr_safe
global hvm_xsetbv_safe

section .text

; 256 stubs of 16 bytes: all push a vector above an error code, the processor's or 0. For these
; vectors the processor has one: 8, 10-14, 17, 21, 29, 30.
%define HAS_ERROR(v) ((v) < 32 && ((0x60227d00 >> ((v) & 31)) & 1))
align 16
trap_stubs:
%assign v 0
%rep 256
	align 16
%if !HAS_ERROR(v)
	push byte 0
%endif
	push dword v
	jmp near trap_common
%assign v v+1
%endrep

align 16
trap_common:
	push rax
	push rcx
	push rdx
	push rbx
	push rbp
	push rsi
	push rdi
	push r8
	push r9
	push r10
	push r11
	push r12
	push r13
	push r14
	push r15
	cld
	mov rdi, rsp
	mov rbx, rsp            ; C wants its stack aligned, whatever ran before
	and rsp, -16
	call trap_handle
	mov rsp, rbx
	pop r15
	pop r14
	pop r13
	pop r12
	pop r11
	pop r10
	pop r9
	pop r8
	pop rdi
	pop rsi
	pop rbp
	pop rbx
	pop rdx
	pop rcx
	pop rax
	add rsp, 16
	iretq

; %1 may fault; go on at %2 then.
%macro FIXUP 2
section .fixup progbits alloc noexec nowrite align=4
	dd %1 - $
	dd %2 - $
section .text
%endmacro

; bool hvm_rdmsr_safe(uint32_t index, uint64_t *value)
align 16
hvm_rdmsr_safe:
	mov ecx, edi
.try:
	rdmsr
	shl rdx, 32
	or rax, rdx
	mov [rsi], rax
	mov eax, 1
	ret
FIXUP hvm_rdmsr_safe.try, msr_fault

; bool hvm_wrmsr_safe(uint32_t index, uint64_t value)
align 16
hvm_wrmsr_safe:
	mov ecx, edi
	mov eax, esi
	mov rdx, rsi
	shr rdx, 32
.try:
	wrmsr
	mov eax, 1
	ret
FIXUP hvm_wrmsr_safe.try, msr_fault

; bool hvm_xsetbv_safe(uint32_t index, uint64_t value)
align 16
hvm_xsetbv_safe:
	mov ecx, edi
	mov eax, esi
	mov rdx, rsi
	shr rdx, 32
.try:
	xsetbv
	mov eax, 1
	ret
FIXUP hvm_xsetbv_safe.try, msr_fault

msr_fault:
	xor eax, eax
	ret

section .note.GNU-stack noalloc noexec nowrite progbits
