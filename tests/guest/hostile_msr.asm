; A guest that reads and writes every MSR number that could be one. Each is answered or is #GP, which
; must leave EDX:EAX alone; the guest comes through.
%define GUEST_NAME "hostile_msr"
%include "bzimage.inc"
%include "hostile.inc"

; Those it would be its own end to write: the bases in use, EFER, APIC_BASE.
%macro skip_if 1
	cmp ecx, %1
	je .next
%endmacro

; ECX to EBP - 1.
sweep:
	mov [rel .number], ecx
	TRY
	mov eax, 0x11223344
	mov edx, 0x55667788
	rdmsr
	mov [rel .low], eax
	mov [rel .high], edx
	inc dword [answered]
	jmp .write
	TRY_END
	cmp dword [last_vector], 13
	FAIL_UNLESS e, "reading an MSR: not #GP"
	cmp eax, 0x11223344
	FAIL_UNLESS e, "#GP of RDMSR changed EAX"
	cmp edx, 0x55667788
	FAIL_UNLESS e, "#GP of RDMSR changed EDX"
.write:
	mov qword [resume], 0
	mov ecx, [rel .number]
	skip_if 0x1b
	skip_if 0xc0000080
	skip_if 0x6e0
	; What it said itself, all ones, nonsense, zero.
	mov eax, [rel .low]
	mov edx, [rel .high]
	call write
	mov eax, -1
	mov edx, -1
	call write
	mov eax, 0xdeadbeef
	mov edx, 0x8badf00d
	call write
	mov eax, 0x00001003
	xor edx, edx
	call write
	xor eax, eax
	xor edx, edx
	call write
.next:
	mov ecx, [rel .number]
	inc ecx
	cmp ecx, ebp
	jne sweep
	ret
.number: dd 0
.low:	dd 0
.high:	dd 0

write:
	TRY_KEEP
	wrmsr
	inc dword [taken]
	TRY_END
	ret

guest_main:
	call hostile_start
	xor ecx, ecx
	mov ebp, 0x2000
	call sweep
	mov ecx, 0x40000000
	mov ebp, 0x40000200
	call sweep
	mov ecx, 0x4b564cf0
	mov ebp, 0x4b564d20
	call sweep
	mov ecx, 0xc0000000
	mov ebp, 0xc0002000
	call sweep
	mov ecx, 0xc0010000
	mov ebp, 0xc0012000
	call sweep
	mov ecx, 0xfffffff0
	xor ebp, ebp
	call sweep
	mov eax, [answered]
	call put_hex
	mov eax, [taken]
	call put_hex
	mov eax, [counts + 13 * 4]
	call put_hex
	say "reads answered, writes taken, #GP"
	jmp hostile_end

answered: dd 0
taken:	dd 0

	guest_end
