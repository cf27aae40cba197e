; A guest of two processors that abuses its interrupt controllers: storms, nonsense, timers without
; pause, and starts its second processor again and again.
%define GUEST_NAME "hostile_apic"
%define GUEST_VCPUS 2
%include "bzimage.inc"
%include "hostile.inc"

APIC   equ 0xfee00000
IOAPIC equ 0xfec00000
AP_CODE equ 0x20000	; where the second processor starts
AP_RUNS equ 0x21000	; how often it did; how often it was disturbed

; Every register of the page, and between them, with random values but those that send and SVR.
registers:
	mov ebx, APIC
	mov ebp, 5000
.again:
	call random
	mov ecx, eax
	and ecx, 0xfff
	shr rax, 16
	mov edx, ecx
	and edx, 0xff0
	cmp edx, 0x300				; ICR: its own turn
	je .read
	cmp edx, 0xf0
	je .read
	test eax, 0x10000000
	jnz .crooked
	and ecx, 0xff0
.crooked:
	or al, 0x20				; no vector that looks like an exception
	mov [rbx + rcx], eax
.read:
	mov eax, [rbx + rcx]
	dec ebp
	jnz .again
	call apic_reset
	ret

apic_reset:
	mov ebx, APIC
	mov ecx, 0x320
.lvt:
	mov dword [rbx + rcx], 0x10000
	add ecx, 0x10
	cmp ecx, 0x380
	jb .lvt
	mov dword [rbx + 0x380], 0
	mov dword [rbx + 0x80], 0
	mov dword [rbx + 0xf0], 0x1ff
	mov ecx, 256
.eoi:
	mov dword [rbx + 0xb0], 0
	loop .eoi
	ret

; Fixed, lowest, SMI, reserved, NMI and ExtINT to all sorts of destinations; no INIT, no SIPI, which
; would be this processor's end. Vectors below 16 too.
icr_storm:
	mov ebx, APIC
	mov ebp, 8000
.again:
	call random
	mov ecx, eax
	and ecx, 0xccfff
	mov edx, ecx
	and edx, 0x700
	cmp edx, 0x500
	je .again
	cmp edx, 0x600
	je .again
	or cl, 0x20				; 32 and up, or below 16
	test eax, 0x700000
	jnz .vector
	and cl, 0x0f
.vector:
	shr rax, 8
	and eax, 0xff000000
	mov [rbx + 0x310], eax
	mov [rbx + 0x300], ecx
	test ebp, 15
	jnz .on
	sti
	nop
	nop
	cli
.on:
	dec ebp
	jnz .again
	sti
	nop
	cli
	call apic_reset
	ret

; INIT and start-up to the other, valid or not, again and again; it says a byte each time it runs.
ap_storm:
	mov edi, AP_CODE
	mov ecx, ap_end - ap_start
	lea rsi, [ap_start]
	rep movsb
	xor ebx, ebx
	mov dword [rbx + 2 * 4], AP_CODE << 12 | 2 ; in real mode's table
	mov dword [rbx + 13 * 4], AP_CODE << 12 | 3
	mov qword [rbx + AP_RUNS], 0
	mov ebx, APIC
	mov ebp, 1500
.again:
	mov dword [rbx + 0x310], 1 << 24
	mov dword [rbx + 0x300], 0x4500
	mov dword [rbx + 0x300], 0x4600 | AP_CODE >> 12
	call random
	and eax, 0x3ff
.some:
	pause
	dec eax
	jns .some
	mov dword [rbx + 0x310], 7 << 24	; nobody
	mov dword [rbx + 0x300], 0x4500
	mov dword [rbx + 0x300], 0x46ff
	mov dword [rbx + 0x310], 1 << 24
	mov dword [rbx + 0x300], 0x4400		; NMI
	dec ebp
	jnz .again
	; One last time, in earnest.
	mov dword [abs dword AP_RUNS], 0
	mov dword [rbx + 0x300], 0x4500
	mov dword [rbx + 0x300], 0x4600 | AP_CODE >> 12
	mov ecx, 400000000
.wait:
	cmp dword [abs dword AP_RUNS], 0
	jne .runs
	pause
	loop .wait
.runs:
	cmp dword [abs dword AP_RUNS], 0
	FAIL_UNLESS ne, "the second processor did not start in the end"
	mov dword [rbx + 0x300], 0x4500
	mov eax, [abs dword AP_RUNS + 4]
	call put_hex
	say "faults of what ran before an INIT"
	cmp dword [abs dword AP_RUNS + 4], 0
	FAIL_UNLESS e, "an exception outlived an INIT"
	ret

	bits 16
; Runs from one #GP to the next. One that comes with the start was not its own: INIT had to drop it.
ap_start:
	jmp short .go
	iret					; at 2: NMI
.fault:					; at 3: #GP
	push bp
	mov bp, sp
	cmp word [bp + 2], ap_fault - ap_start
	je .own
	inc dword [cs:AP_RUNS - AP_CODE + 4]
.own:
	mov word [bp + 2], ap_again - ap_start
	pop bp
	iret
.go:
	mov ax, cs
	mov ds, ax
	mov ss, ax
	mov sp, 0x3000
	inc dword [AP_RUNS - AP_CODE]
ap_again:
	mov ecx, 0x12345678
ap_fault:
	rdmsr
	jmp ap_again
ap_end:
	bits 64

timers:
	mov ebx, APIC
	mov dword [rbx + 0x3e0], 0xb
	mov dword [rbx + 0x320], 0x20041	; periodic, count 1
	mov dword [rbx + 0x380], 1
	sti
	mov ecx, 30000
.spin:
	pause
	loop .spin
	mov byte [no_eoi], 1			; and never ended
	mov ecx, 10000
.spin2:
	pause
	loop .spin2
	cli
	mov byte [no_eoi], 0
	call apic_reset
	mov dword [rbx + 0x320], 0x40042	; TSC deadline
	mov ebp, 5000
	sti
.deadline:
	call random
	mov edx, eax
	shr rax, 32
	test edx, 0x300
	jz .set
	rdtsc
.set:
	mov ecx, 0x6e0
	wrmsr
	dec ebp
	jnz .deadline
	cli
	; All modes, divisors and counts by turns.
	mov ebp, 5000
	mov edi, APIC
.mix:
	call random
	mov ecx, eax
	and ecx, 0x600ff
	or ecx, 0x40
	mov [rdi + 0x320], ecx
	shr rax, 20
	mov [rdi + 0x3e0], eax
	shr rax, 9
	mov [rdi + 0x380], eax
	mov eax, [rdi + 0x390]
	sti
	nop
	cli
	dec ebp
	jnz .mix
	call apic_reset
	ret

tpr:
	mov ebp, 5000
.again:
	call random
	and eax, 15
	mov cr8, rax
	mov rcx, cr8
	cmp eax, ecx
	FAIL_UNLESS e, "CR8 does not keep its value"
	mov ebx, APIC
	mov dword [rbx + 0x300], 0x40043	; to itself
	sti
	nop
	cli
	dec ebp
	jnz .again
	TRY
	mov eax, 16
	mov cr8, rax
	TRY_END
	cmp dword [last_vector], 13
	FAIL_UNLESS e, "CR8 of 16 is not #GP"
	xor eax, eax
	mov cr8, rax
	ret

; Random redirections, the UART's pin raised and never ended, every mode and destination but INIT and
; SIPI.
ioapic:
	mov ebx, IOAPIC
	mov ebp, 5000
.again:
	call random
	mov ecx, eax
	and ecx, 0x3f
	add ecx, 0x10
	shr rax, 8
	mov edx, eax
	and edx, 0x700
	cmp edx, 0x500
	je .again
	cmp edx, 0x600
	je .again
	or al, 0x20
	test eax, 0x700000
	jnz .vector
	and al, 0x0f
.vector:
	mov [rbx], ecx
	mov [rbx + 0x10], eax
	mov [rbx + 0x40], eax
	mov dx, 0x3fc				; OUT2, then THRE on and off
	mov al, 8
	out dx, al
	mov dx, 0x3f9
	mov al, 2
	out dx, al
	in al, dx
	xor eax, eax
	out dx, al
	sti
	nop
	cli
	mov ecx, [rbx + 0x10]
	mov ecx, [rbx + rbp]
	dec ebp
	jnz .again
	mov ecx, 0x10
.mask:
	mov [rbx], ecx
	mov dword [rbx + 0x10], 0x10000
	inc ecx
	mov [rbx], ecx
	mov dword [rbx + 0x10], 0
	inc ecx
	cmp ecx, 0x10 + 48
	jb .mask
	call apic_reset
	ret

; EAX: mode bits of APIC_BASE.
base_set:
	mov ecx, 0x1b
	xor edx, edx
	or eax, 0xfee00100
	wrmsr
	ret

x2apic_games:
	TRY
	mov eax, 0x400				; x2APIC without enable
	call base_set
	TRY_END
	mov ebp, 40
.again:
	mov eax, 0xc00
	call base_set
	mov byte [x2apic], 1
	mov ecx, 0x800
.msr:
	TRY
	rdmsr
	TRY_END
	cmp ecx, 0x830
	je .next
	cmp ecx, 0x80f
	je .next
	TRY
	call random
	mov rdx, rax
	shr rdx, 32
	test ecx, 1
	jnz .write
	xor edx, edx
.write:
	or al, 0x20
	wrmsr
	TRY_END
.next:
	inc ecx
	cmp ecx, 0x900
	jb .msr
	mov ecx, 0x830				; a storm of fixed ones to many ids
	mov ebx, 200
.storm:
	TRY
	call random
	mov rdx, rax
	shr rdx, 32
	and eax, 0xc88ff
	or al, 0x20
	wrmsr
	TRY_END
	dec ebx
	jnz .storm
	TRY
	mov eax, 0x800				; back without going through off
	call base_set
	TRY_END
	cmp dword [last_vector], 13
	FAIL_UNLESS e, "x2APIC to xAPIC directly is not #GP"
	xor eax, eax
	call base_set
	TRY
	mov eax, 0xc00				; off to x2APIC
	call base_set
	TRY_END
	cmp dword [last_vector], 13
	FAIL_UNLESS e, "off to x2APIC directly is not #GP"
	mov eax, 0x800
	call base_set
	mov byte [x2apic], 0
	dec ebp
	jnz .again
	call apic_reset
	ret

; NMI to itself, and exits as quick as they come.
storms:
	mov ebx, APIC
	mov ebp, 5000
.nmi:
	mov dword [rbx + 0x310], 0
	mov dword [rbx + 0x300], 0x4400
	dec ebp
	jnz .nmi
	mov ebp, 30000
.cpuid:
	xor eax, eax
	push rbx
	cpuid
	pop rbx
	dec ebp
	jnz .cpuid
	mov ebp, 8000
.hlt:
	mov dword [rbx + 0x300], 0x40044
	sti
	hlt
	cli
	dec ebp
	jnz .hlt
	cli
	ret

guest_main:
	call hostile_start
	call apic_reset
	call registers
	say "registers done"
	call tpr
	say "priorities done"
	call timers
	say "timers done"
	call icr_storm
	say "IPIs done"
	call ioapic
	say "I/O APIC done"
	call x2apic_games
	say "x2APIC done"
	call storms
	say "storms done"
	call ap_storm
	say "starts done"
	jmp hostile_end

	guest_end
