; A well-behaved guest: works and sleeps by turns on its timer, and says whether it was disturbed:
; that its interrupts came and that its memory is as it left it.
%define GUEST_NAME "neighbour"
%include "bzimage.inc"
%include "hostile.inc"

TURNS equ 60

guest_main:
	call hostile_start
	mov edi, 0x800000
	mov ecx, 0x100000
	mov eax, 0x5a5aa5a5
	rep stosd
	mov ebx, 0xfee00000
	mov dword [rbx + 0xf0], 0x1ff
	mov dword [rbx + 0x3e0], 0xb		; divide by 1: nanoseconds
	mov dword [rbx + 0x320], 0x40
	mov ebp, TURNS
.turn:
	mov dword [rbx + 0x380], 50000000	; 50 ms
.wait:
	sti
	hlt
	cli
	mov eax, TURNS + 1
	sub eax, ebp
	cmp [counts + 0x40 * 4], eax
	jb .wait
	xor eax, eax
	push rbx
	cpuid
	pop rbx
	dec ebp
	jnz .turn
	mov edi, 0x800000
	mov ecx, 0x100000
	mov eax, 0x5a5aa5a5
	repe scasd
	FAIL_UNLESS e, "its memory has changed"
	cmp dword [counts + 0x40 * 4], TURNS
	FAIL_UNLESS e, "interrupts were lost or doubled"
	jmp hostile_end

	guest_end
