; The world switch of SVM. See svm.h for its contract.
default rel
bits 64
%include "offsets.inc"

%define GPR(n) [rdi + HVM_VCPU_GPR + 8 * (n)]

global svm_switch

section .text

; void svm_switch(struct hvm_vcpu *vcpu, hpa_t vmcb_hpa, hpa_t host_hpa)
; RAX, RSP, RIP and RFLAGS of the guest are in the VMCB; the processor switches them.
align 16
svm_switch:
	push rbx
	push rbp
	push r12
	push r13
	push r14
	push r15
	push rdi
	push rdx
	mov rax, rsi

	; With GIF clear nothing can come in, whatever IF says; from VMRUN on, IF of the host is what
	; lets physical interrupts end the guest's run.
	clgi
	sti
	mov rcx, GPR(1)
	mov rdx, GPR(2)
	mov rbx, GPR(3)
	mov rbp, GPR(5)
	mov rsi, GPR(6)
	mov r8, GPR(8)
	mov r9, GPR(9)
	mov r10, GPR(10)
	mov r11, GPR(11)
	mov r12, GPR(12)
	mov r13, GPR(13)
	mov r14, GPR(14)
	mov r15, GPR(15)
	mov rdi, GPR(7)

	vmload
	vmrun
	vmsave

	push rdi
	mov rdi, [rsp + 16]
	mov GPR(1), rcx
	mov GPR(2), rdx
	mov GPR(3), rbx
	mov GPR(5), rbp
	mov GPR(6), rsi
	mov GPR(8), r8
	mov GPR(9), r9
	mov GPR(10), r10
	mov GPR(11), r11
	mov GPR(12), r12
	mov GPR(13), r13
	mov GPR(14), r14
	mov GPR(15), r15
	pop rcx
	mov GPR(7), rcx

	; The host's task register must be back before an NMI may look for its stack.
	mov rax, [rsp]
	vmload
	stgi
	nop                     ; the interrupt that ended the run is taken here
	cli

	add rsp, 16
	pop r15
	pop r14
	pop r13
	pop r12
	pop rbp
	pop rbx
	ret

section .note.GNU-stack noalloc noexec nowrite progbits
