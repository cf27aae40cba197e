; Eight processors: the first starts the other seven at once, a hundred times. Each that starts counts
; itself, in real mode, under a lock, marks its byte by its APIC id, and halts.
%define GUEST_NAME "smp8"
%include "bzimage.inc"

APIC    equ 0xfee00000
AP_CODE equ 0x20000
COUNTER equ AP_CODE + 0x800	; how many have started in this round
MARKS   equ AP_CODE + 0x810	; one byte for each APIC id
OTHERS  equ 7
ROUNDS  equ 100
SPINS   equ 20000000		; reads of the counter until a round has failed

guest_main:
	lea rsi, [ap_code]
	mov edi, AP_CODE
	mov ecx, ap_code_end - ap_code
	rep movsb
	mov ebx, APIC
	mov ebp, AP_CODE
	mov dword [rbx + 0xf0], 0x1ff
	mov r12d, ROUNDS
.round:
	mov dword [rbp + COUNTER - AP_CODE], 0
	mov dword [rbp + MARKS - AP_CODE], 0
	mov dword [rbp + MARKS + 4 - AP_CODE], 0
	mov dword [rbx + 0x300], 0x000c4500	; INIT to all but self
	call delay
	mov dword [rbx + 0x300], 0x000c4600 | AP_CODE >> 12
	mov ecx, SPINS
.wait:
	cmp dword [rbp + COUNTER - AP_CODE], OTHERS
	je .started
	pause
	dec ecx
	jnz .wait
	lea rsi, [text_lost]
	call puts
	mov al, '0'
	add al, [rbp + COUNTER - AP_CODE]
	mov dx, 0x3f8
	out dx, al
	jmp .off
.started:
	call delay				; one too many would come now
	cmp dword [rbp + COUNTER - AP_CODE], OTHERS
	jne .wrong
	mov rax, 0x0101010101010100
	cmp [rbp + MARKS - AP_CODE], rax
	jne .wrong
	dec r12d
	jnz .round
	lea rsi, [text_pass]
	call puts
	jmp .off
.wrong:
	lea rsi, [text_wrong]
	call puts
.off:
	mov dx, 0x600
	mov al, 5 << 2 | 1 << 5
	out dx, al
	ret

delay:
	mov ecx, 20000
.more:
	pause
	loop .more
	ret

text_lost: db "FAIL smp8: not all started: ", 0
text_wrong: db "FAIL smp8: one started twice", 13, 10, 0
text_pass: db "PASS smp8", 13, 10, 0

; Real mode, CS = AP_CODE >> 4. The APIC id comes from CPUID, for its registers lie above 1 MiB.
	bits 16
ap_code:
	cli
	mov ax, cs
	mov ds, ax
	mov eax, 1
	cpuid
	shr ebx, 24
	and bx, 7
	mov byte [bx + MARKS - AP_CODE], 1
	lock inc dword [COUNTER - AP_CODE]
.halt:
	hlt
	jmp .halt
ap_code_end:
	bits 64

	guest_end
