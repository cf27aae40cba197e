; A guest that asks for every CPUID leaf, touches every port in every width, points string I/O at
; bad places and moves its PCI devices over everything.
%define GUEST_NAME "hostile_io"
%include "bzimage.inc"
%include "hostile.inc"

; EBP: leaves from EDI on, ECX subleaves of each.
cpuid_sweep:
	mov [rel .leaf], edi
.next_leaf:
	xor r8d, r8d
.next_subleaf:
	mov eax, [rel .leaf]
	mov ecx, r8d
	cpuid
	inc r8d
	cmp r8d, 40
	jb .next_subleaf
	mov eax, [rel .leaf]
	mov ecx, -1
	cpuid
	inc dword [rel .leaf]
	dec ebp
	jnz .next_leaf
	ret
.leaf:	dd 0

; All ports; not writing where it ends this guest or its voice.
port_sweep:
	xor ebx, ebx
.port:
	mov edx, ebx
	in al, dx
	in ax, dx
	in eax, dx
	mov edx, ebx
	cmp edx, 0x3f5
	jb .quiet
	cmp edx, 0x400
	jb .next
.quiet:
	xor eax, eax
	out dx, al
	out dx, ax
	out dx, eax
	cmp edx, 0x64 - 3
	jb .all
	cmp edx, 0x64
	jbe .next
	cmp edx, 0xcf9 - 3
	jb .all
	cmp edx, 0xcf9
	jbe .next
	cmp edx, 0x600 - 3
	jb .all
	cmp edx, 0x600
	jbe .next
.all:
	mov eax, -1
	out dx, al
	out dx, ax
	out dx, eax
.next:
	inc ebx
	cmp ebx, 0x10000
	jb .port
	ret

%macro expect_fault 1
	TRY_END
	cmp dword [last_vector], 0xff
	FAIL_UNLESS ne, %1
%endmacro

%macro expect_none 1
	TRY_END
	cmp dword [last_vector], 0xff
	FAIL_UNLESS e, %1
%endmacro

strings:
	cld
	mov edx, 0x80
	TRY
	mov rdi, 0x8000000000000000		; not canonical
	mov rcx, -1
	rep insb
	expect_fault "INS to a bad address"
	TRY
	mov edi, 0xffffffff - 63		; memory ends, and what is mapped
	mov rcx, -1
	rep insd
	expect_fault "INS beyond what is mapped"
	TRY
	mov edi, 40				; downwards through zero
	mov rcx, -1
	std
	rep insb
	expect_fault "INS through zero"
	cld
	TRY
	mov esi, 0xfffffff0
	mov ecx, 8
	a32 rep outsd
	expect_none "OUTS that wraps at 4 GiB"
	TRY
	mov esi, 0x1fffff0			; from memory's end into nothing
	mov ecx, 64
	rep outsb
	expect_none "OUTS across the end of memory"
	TRY
	mov edi, 0xfee00300			; into the local APIC
	mov ecx, 16
	rep insd
	expect_none "INS into the local APIC"
	TRY
	mov esi, 0xc0000000			; from a device
	mov ecx, 1024
	rep outsd
	expect_none "OUTS from a device"
	TRY
	xor ecx, ecx
	mov rdi, 0x8000000000000000
	rep insb
	expect_none "INS of nothing"
	mov edx, 0xcfd				; configuration data, wide and crooked
	TRY
	mov edi, 0x900000
	mov ecx, 1000
	rep insd
	expect_none "INS from 0xcfd"
	mov edx, 0x3f8
	TRY
	mov rsi, 0x7fffffffffff
	mov rcx, -1
	rep outsw
	expect_fault "OUTS from an unmapped end"
	mov rax, 0x8000000000000000
	TRY_KEEP
	mov [rax], eax
	expect_fault "a store to no address"
	ret

; --- PCI ---

; EAX: configuration register address, sets it.
config_select:
	mov edx, 0xcf8
	out dx, eax
	ret

; Random bytes over all of configuration space, in all widths; then whatever is there is read.
config_noise:
	mov ebp, 20000
.again:
	call random
	mov ebx, eax
	and eax, 0x1ffc				; slots 0 to 3
	or eax, 0x80000000
	test ebx, 0xf0000
	jnz .enabled
	mov eax, ebx				; anything at all
.enabled:
	call config_select
	call random
	mov ecx, ebx
	shr ecx, 24
	mov edx, ecx
	and edx, 7
	add edx, 0xcf8
	cmp edx, 0xcf9
	je .again
	test ecx, 0x80
	jz .byte
	test ecx, 0x40
	jz .word
	out dx, eax
	in eax, dx
	jmp .done
.byte:
	out dx, al
	in al, dx
	jmp .done
.word:
	out dx, ax
	in ax, dx
.done:
	dec ebp
	jnz .again
	ret

; Both BARs of slots 1 and 2 to R12, decoding on, and every width of access there.
bars_move:
	mov ebx, 0x80000800
.device:
	lea eax, [rbx + 0x10]
	call config_select
	mov edx, 0xcfc
	mov eax, -1				; a size is probed while it decodes
	out dx, eax
	in eax, dx
	mov eax, r12d
	out dx, eax
	lea eax, [rbx + 0x14]
	call config_select
	mov edx, 0xcfc
	mov eax, r12d
	out dx, eax
	lea eax, [rbx + 0x18]
	call config_select
	mov edx, 0xcfc
	mov eax, r12d
	out dx, eax
	lea eax, [rbx + 4]
	call config_select
	mov edx, 0xcfc
	mov ax, 0x407
	out dx, ax
	add ebx, 0x800
	cmp ebx, 0x80002000
	jb .device
	ret

%macro bar_case 1
	mov r12d, %1
	call bars_move
	mov eax, %1
	cmp eax, 0xc0000000
	jb %%ram
	mov byte [rax], 1
	mov word [rax + 0xffe], 1
	mov dword [rax + 0xffd], -1
	mov qword [rax + 0xff9], -1
	mov ecx, [rax + 0xffe]
	mov rcx, [rax + 1]
	mov cl, [rax + 3]
%%ram:
	mov ecx, [rax]
%endmacro

guest_main:
	call hostile_start
	xor edi, edi
	mov ebp, 0x40
	call cpuid_sweep
	mov edi, 0x40000000
	mov ebp, 0x210
	call cpuid_sweep
	mov edi, 0x80000000
	mov ebp, 0x40
	call cpuid_sweep
	mov edi, 0xfffffff0
	mov ebp, 0x20
	call cpuid_sweep
	say "cpuid done"
	call port_sweep
	say "ports done"
	call strings
	say "strings done"
	call config_noise
	say "configuration noise done"
	mov eax, [payload]
	mov [rel code_before], eax
	bar_case 0
	bar_case 0x200000
	bar_case 0x1fff000
	bar_case 0xbffff000
	bar_case 0xc0000000
	bar_case 0xd0001000
	bar_case 0xfebff000
	bar_case 0xfec00000
	bar_case 0xfee00000
	bar_case 0xffffe000
	mov eax, [payload]
	cmp eax, [rel code_before]
	FAIL_UNLESS e, "a BAR reached memory"
	jmp hostile_end

code_before: dd 0

	guest_end
