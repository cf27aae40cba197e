; Guest programs of the smoke test: each is copied to CODE and started there, some with nothing but a
; few instructions. Assembled into the image as bytes; addresses are those in the guest.
; The layout is main.c's.
%define CODE     0x1000
%define DATA     0x7000
%define HANDLERS 0x8000
%define KICK     0x400000
%define HOLE     0x800000

section .rodata

%macro BLOB 2
%ifdef in_blob
	%error "END missing"
%endif
%define in_blob
global guest_%1, guest_%1_end
align 16
bits %2
guest_%1:
%define blob_end guest_%1_end
%endmacro

%macro END 0
blob_end:
%undef in_blob
%endmacro

; --- 16 bits ---------------------------------------------------------------------------------------
BLOB cpuid, 16
	mov eax, 0x12345678
	mov ecx, 0x9abcdef0
	cpuid
	hlt
END

BLOB pio, 16
	mov dx, 0x3f8
	mov al, 0x41
	out dx, al
	mov dx, 0xcf8
	in eax, dx
	in al, 0x64
	hlt
END

BLOB outs, 16
	mov dx, 0x402
	mov si, 0x123
	mov cx, 3
	cld
	rep outsb
	hlt
END

; --- 64 bits ---------------------------------------------------------------------------------------
BLOB msr, 64
	mov ecx, 0x10a
	rdmsr
	mov ecx, 0xc0000080
	mov eax, 0x501
	mov edx, 0
	wrmsr
	mov ecx, 0xc0000100     ; FS base goes straight through
	mov eax, 0x89abc000
	mov edx, 0x12
	wrmsr
	hlt
END

BLOB kick, 64
	mov dword [abs KICK + 0x10], 5
	mov eax, [abs KICK + 0x24]
	hlt
END

BLOB hole, 64
	mov ebx, [abs HOLE + 0x20]
	mov byte [abs HOLE + 0x1000], 1
	mov eax, HOLE + 0x2000
	jmp rax
END

; IF is 0 at first; HANDLERS counts what arrives.
BLOB irq, 64
	cpuid                   ; offered from here on
	mov dword [abs DATA + 0x80], 1
	cpuid                   ; must not have come
	sti
	nop
	nop
	cpuid                   ; must have
	hlt
END

BLOB sti_hlt, 64
	sti
	hlt                     ; in the shadow: exits, not yet interrupted
	cpuid                   ; after the step over HLT it has come
	hlt
END

BLOB nops, 64
	nop
	nop
	hlt
END

BLOB hlts, 64
	times 16 hlt
END

; The push of the interrupt frame faults: the stack is in the hole.
BLOB bad_stack, 64
	mov esp, HOLE + 0x3ff8
	sti
	nop
	nop
	hlt
END

BLOB ud2, 64
	ud2
END

BLOB int3, 64
	int3
	hlt
END

BLOB spin, 64
.again:
	inc rbx
	jmp .again
END

BLOB vmcall, 64
	vmcall
	hlt
END

BLOB vmmcall, 64
	vmmcall
	hlt
END

BLOB mwait, 64
	monitor
	mwait
	hlt
END

BLOB vmx_svm, 64
	vmload
	hlt
END

BLOB cr8, 64
	mov ebx, 9
	mov cr8, rbx
	mov r13, cr8
	hlt
END

BLOB xsetbv, 64
	xor ecx, ecx
	xor edx, edx
	mov eax, 3
	xsetbv
	hlt
END

BLOB wbinvd, 64
	wbinvd
	hlt
END

; Every register but RSP changes by its own number, then exits; again and again.
BLOB regs, 64
.again:
	add rax, 1
	add rcx, 2
	add rdx, 3
	add rbx, 4
	add rsp, 5
	add rbp, 6
	add rsi, 7
	add rdi, 8
	add r8, 9
	add r9, 10
	add r10, 11
	add r11, 12
	add r12, 13
	add r13, 14
	add r14, 15
	add r15, 16
	hlt
	jmp .again
END

BLOB rdtsc, 64
	rdtsc
	shl rdx, 32
	or rax, rdx
	hlt
END

BLOB cr4_pge, 64
	mov rax, cr4
	or rax, 0x80
	mov cr4, rax
	mov rbx, cr4
	mov rax, cr0
	or rax, 0x10000
	mov cr0, rax
	mov rcx, cr0
	hlt
END

; Single steps over an instruction that exits, then INT1; each #DB counts in HANDLERS.
BLOB debug, 64
	pushfq
	or dword [rsp], 0x100
	popfq
	nop
	cpuid
	nop
	pushfq
	and dword [rsp], ~0x100
	popfq
	hlt
	db 0xf1
	hlt
END

; Real mode, protected, PAE paging, long mode, and back to protected; a halt in each.
%define AT(label) (CODE + (label - guest_modes))
BLOB modes, 16
	o32 lgdt [AT(.gdtr)]
	mov eax, 0x11           ; from CD and NW as reset leaves them
	mov cr0, eax
	jmp dword 0x18:AT(.protected)
bits 32
.protected:
	mov eax, 0x10
	mov ds, eax
	mov ss, eax
	mov ebx, cr0
	hlt
	mov eax, 0x9000
	mov cr3, eax
	mov eax, cr4
	or eax, 0x20
	mov cr4, eax
	mov eax, cr0
	or eax, 0x80000000
	mov cr0, eax
	mov ebx, cr0
	mov edx, [DATA + 0x80]
	hlt
	mov eax, cr0
	and eax, 0x7fffffff
	mov cr0, eax
	mov eax, 0x2000
	mov cr3, eax
	mov ecx, 0xc0000080
	mov eax, 0x100
	xor edx, edx
	wrmsr
	mov eax, cr0
	or eax, 0x80000000
	mov cr0, eax
	jmp 8:AT(.long)
bits 64
.long:
	mov rbx, cr0
	mov rsi, cr3
	mov rdi, 0x123456789abcdef0
	hlt
	jmp far dword [rel .back]
bits 32
.compatible:
	mov eax, cr0
	and eax, 0x7fffffff
	mov cr0, eax
	mov ebx, cr0
	hlt
	mov eax, cr4
	or eax, 0x2000          ; VMXE is not for guests: #GP, and no IDT that could take it
	mov cr4, eax
	hlt
align 8
.gdtr:
	dw 31
	dd AT(.gdt)
align 8
.gdt:
	dq 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cf9b000000ffff
.back:
	dd AT(.compatible)
	dw 0x18
END

; --- handlers, copied to HANDLERS; main.c knows the slots of 64 bytes -------------------------------
%macro SLOT 1
	times (%1) * 64 - ($ - guest_handlers) nop
%endmacro

BLOB handlers, 64
	; 0: no error code
	inc dword [abs DATA]
	iretq
	SLOT 1                  ; 1: with error code
	pop qword [abs DATA + 0x10]
	inc dword [abs DATA + 8]
	iretq
	SLOT 2                  ; 2: NMI; exits while in it, and notes how deep it nests
	inc dword [abs DATA + 0x20]
	push rax
	inc dword [abs DATA + 0x28]
	mov eax, [abs DATA + 0x28]
	cmp eax, [abs DATA + 0x2c]
	jbe .less
	mov [abs DATA + 0x2c], eax
.less:
	hlt
	dec dword [abs DATA + 0x28]
	pop rax
	iretq
	SLOT 3                  ; 3: page fault
	pop qword [abs DATA + 0x10]
	push rax
	mov rax, cr2
	mov [abs DATA + 0x18], rax
	pop rax
	inc dword [abs DATA + 8]
	iretq
	SLOT 4                  ; 4: as 0, counts elsewhere
	inc dword [abs DATA + 4]
	iretq
	SLOT 5                  ; 5: #UD on an instruction of two bytes or three: step over it
	inc dword [abs DATA]
	add qword [rsp], 3
	iretq
END

section .note.GNU-stack noalloc noexec nowrite progbits
