; The world switch. Guest registers live in struct hvm_vcpu while the host runs, host registers on
; its stack while the guest does. SDM 3C 27.1, 28.5.
default rel

%include "offsets.inc"

%define VMCS_HOST_RSP 0x6c14

global vmx_switch
global vmx_exit_entry
global vmx_vmxon_safe

section .text

%macro GUEST_LOAD 1-*
%rep %0 / 2
	mov %1, [rdi + HVM_VCPU_GPR + 8 * %2]
%rotate 2
%endrep
%endmacro

%macro GUEST_SAVE 1-*
%rep %0 / 2
	mov [rdi + HVM_VCPU_GPR + 8 * %2], %1
%rotate 2
%endrep
%endmacro

; All but RSP, which the VMCS holds, and RDI, which comes last.
%define MOST_GPRS rax,0, rcx,1, rdx,2, rbx,3, rbp,5, rsi,6, r8,8, r9,9, r10,10, r11,11, \
	r12,12, r13,13, r14,14, r15,15

; int vmx_switch(struct hvm_vcpu *vcpu, uint64_t *host_rsp, bool launched)
align 16
vmx_switch:
	push rbp
	push rbx
	push r12
	push r13
	push r14
	push r15
	push rdi
	cmp [rsi], rsp
	je .rsp_known
	mov [rsi], rsp
	mov eax, VMCS_HOST_RSP
	vmwrite rax, rsp
.rsp_known:
	test dl, dl             ; the loads below leave flags alone
	GUEST_LOAD MOST_GPRS
	mov rdi, [rdi + HVM_VCPU_GPR + 8 * 7]
	jnz .resume
	vmlaunch
	jmp .failed
.resume:
	vmresume
.failed:                        ; guest registers are as they were in memory
	mov eax, 1
	mov ecx, 2
	cmovc eax, ecx
	jmp switch_return

; The processor comes here on each exit, with RSP as it was at the vmlaunch.
align 16
vmx_exit_entry:
	push rdi
	mov rdi, [rsp + 8]
	GUEST_SAVE MOST_GPRS
	pop qword [rdi + HVM_VCPU_GPR + 8 * 7]
	xor eax, eax
	xor ecx, ecx            ; leave nothing of the guest's for speculation to use
	xor edx, edx
	xor esi, esi
	xor r8d, r8d
	xor r9d, r9d
	xor r10d, r10d
	xor r11d, r11d
switch_return:
	pop rdi
	pop r15
	pop r14
	pop r13
	pop r12
	pop rbx
	pop rbp
	ret

; int vmx_vmxon_safe(const hpa_t *region_hpa)
align 16
vmx_vmxon_safe:
.try:
	vmxon [rdi]
	setna al
	movzx eax, al
	ret
.fault:
	mov eax, 2
	ret

; trap.c looks faults up here.
section .fixup progbits alloc noexec nowrite align=4
	dd vmx_vmxon_safe.try - $
	dd vmx_vmxon_safe.fault - $

section .note.GNU-stack noalloc noexec nowrite progbits
