; A guest that uses devices as everything they are not: stack, page table, descriptor table, code; with
; odd instructions, across pages, and with code that changes.
%define GUEST_NAME "hostile_mmio"
%include "bzimage.inc"
%include "hostile.inc"

BAR equ 0xc0000000	; the first disk's registers; its notify page follows 16 KiB on

%macro expect_none 1
	TRY_END
	cmp dword [last_vector], 0xff
	FAIL_UNLESS e, %1
%endmacro

odd:
	mov ebx, BAR
	TRY
	mov rax, -1
	lock cmpxchg [rbx], rax
	lock xadd [rbx + 4], eax
	xchg [rbx + 8], ax
	lock bts dword [rbx], 5
	not byte [rbx + 0x16]
	neg qword [rbx + 0x20]
	inc dword [rbx + 0x4000]
	adc [rbx + 0x4000], eax
	test dword [rbx], 1
	movzx eax, word [rbx + 0x12]
	movsx rax, byte [rbx + 3]
	movbe eax, [rbx]
	movnti [rbx], eax
	mov ecx, [rbx + 0xffe]
	mov [rbx + 0x4ffd], rcx
	mov rcx, [rbx + 0x3ffc]
	mov edi, 0x900ffd			; from RAM and into it, crooked
	mov esi, BAR + 3
	mov ecx, 200
	rep movsd
	mov edi, BAR + 0xff1
	mov esi, 0x900001
	mov ecx, 600
	rep movsq
	mov esi, BAR
	mov edi, BAR + 0x801			; from device to device
	mov ecx, 400
	rep movsw
	mov edi, 0xfee00001
	mov ecx, 30
	mov eax, 0
	rep stosb
	mov esi, 0xfec00000
	lodsq
	expect_none "an access that can be carried out"
	; None of these are; each must end as an exception, not as anything else.
%macro odd_one 1+
	TRY
	%1
	TRY_END
%endmacro
	odd_one movdqu xmm0, [rbx]
	odd_one fld qword [rbx]
	odd_one fxsave [rbx]
	odd_one push qword [rbx]
	odd_one call [rbx]
	odd_one jmp [rbx]
	odd_one lidt [rbx]
	odd_one sgdt [rbx + 0x4000]
	odd_one ltr [rbx]
	odd_one cmpxchg16b [rbx]
	odd_one bts [rbx], eax
	odd_one shl dword [rbx], 3
	odd_one mul dword [rbx]
	odd_one div dword [rbx]
	odd_one cmpsb
	odd_one clflush [rbx]
	odd_one invlpg [rbx]
	odd_one prefetcht0 [rbx]
	odd_one lsl eax, [rbx]
	odd_one crc32 eax, dword [rbx]
	odd_one popcnt eax, [rbx]
	odd_one cmova eax, [rbx]
	odd_one sete [rbx]
	odd_one imul eax, [rbx]
	odd_one bsf eax, [rbx]
	odd_one pop qword [rbx + 0x4000]
	odd_one xlatb
	; LIDT may have had its way: ours again.
	lidt [idtr]
	ret

as_code:
	TRY
	mov eax, BAR
	jmp rax
	TRY_END
	cmp dword [last_vector], 0xff
	FAIL_UNLESS ne, "a device was run as code"
	TRY
	mov eax, 0xfee00000
	jmp rax
	TRY_END
	cmp dword [last_vector], 0xff
	FAIL_UNLESS ne, "the local APIC was run as code"
	TRY
	mov eax, 0x3000000			; no memory there
	jmp rax
	TRY_END
	cmp dword [last_vector], 0xff
	FAIL_UNLESS ne, "nothing was run as code"
	TRY
	mov eax, 0x2000000 - 3			; memory's last bytes: half an instruction
	mov dword [rax - 1], 0x80018990
	jmp rax
	TRY_END
	ret

; A page table in a device, one outside memory, one that is its own.
as_table:
	mov rax, cr3
	mov [rel .cr3], rax
	mov rbx, rax
	mov rcx, 511 * 8
	xor r15d, r15d
	; Slot 511 of the top level: a table in a device; then nowhere; then the top itself.
	mov eax, BAR + 3
	call .try_table
	mov eax, 0x50000003
	call .try_table
	mov rax, 0x000ffffffffff003
	call .try_table
	mov eax, 0xfee00003
	call .try_table
	lea rax, [rbx + 3]
	inc r15d				; there is code there, and a HLT
	call .try_table
	mov qword [rbx + rcx], 0
	ret
.try_table:
	mov [rbx + rcx], rax
	mov rdx, cr3
	mov cr3, rdx
	TRY
	mov rax, 0xffffff8000000000
	mov rax, [rax]
	TRY_END
	TRY
	mov rax, 0xffffff8000000000
	mov qword [rax + 8], 0
	TRY_END
	TRY
	mov rax, 0xffffff8000000000
	mov rsi, rax
	mov edi, BAR
	movsq
	TRY_END
	test r15d, r15d
	jnz .done
	TRY
	mov rax, 0xffffff8000000123
	jmp rax
	TRY_END
.done:
	ret
.cr3:	dq 0

; The neighbouring instruction changes while it is being carried out.
self_modifying:
	mov ebp, 3000
	mov edi, 0x910000
	mov dword [rdi], 0x90c3038b		; mov eax, [rbx]; ret
	mov ebx, BAR
.again:
	call random
	mov [rdi + 0x100], rax
	mov [rdi + 0x108], rax
	mov byte [rdi + 0x110], 0xc3
	mov esi, BAR
	mov ecx, 1
	call rdi
	dec ebp
	jnz .again
	ret

guest_main:
	call hostile_start
	mov rax, cr4
	or eax, 0x600				; SSE for some of it
	mov cr4, rax
	call odd
	say "odd instructions done"
	call as_code
	say "code done"
	call as_table
	say "tables done"
	call self_modifying
	say "self-modifying code done"
	lidt [idtr]
	jmp hostile_end

	guest_end
