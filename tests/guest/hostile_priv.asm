; A guest that runs what is only a hypervisor's, puts nonsense in its control registers and points its
; page tables everywhere. Each is an exception or works as on a processor.
%define GUEST_NAME "hostile_priv"
%include "bzimage.inc"
%include "hostile.inc"

%macro must_ud 1+
%defstr %%name %1
	TRY_KEEP
	%1
	TRY_END
	cmp dword [last_vector], 6
	je %%fine
	cmp dword [last_vector], 13
	FAIL_UNLESS e, {"neither #UD nor #GP: ", %%name}
%%fine:
%endmacro

%macro any 1+
	TRY_KEEP
	%1
	TRY_END
%endmacro

; %2 times random bits out of %3 turned over in one register; it is put back each time.
%macro register_noise 3
	mov rax, %1
	mov [rel before], rax
	mov ebp, %2
%%again:
	call random
	mov rcx, rax
	call random
	and rcx, rax
	call random
	and rcx, rax
	mov eax, %3
	and rcx, rax
	xor rcx, [rel before]
	test ebp, 1
	jz %%wide
	mov ecx, ecx
%%wide:
	mov [rel value], rcx
	TRY
	mov rcx, [rel value]
	mov %1, rcx
	TRY_END
	mov rax, [rel before]
	mov %1, rax
	dec ebp
	jnz %%again
%endmacro

control:
	; Of CR4 only what this processor may have and lose: QEMU TCG 7.2 answers a reserved bit with an
	; invalid state instead of #GP, and lets long mode go on without PAE; both are a guest's end.
	register_noise cr4, 3000, 0x3507df
	; CR0 must keep PG and PE here, or nothing of this code goes on; each pair of the others.
	mov rax, cr0
	mov [rel before], rax
	mov ebp, 3000
.cr0:
	call random
	or eax, 0x80000001
	test ebp, 1
	jz .cr0_wide
	mov eax, eax
.cr0_wide:
	mov [rel value], rax
	TRY
	mov rcx, [rel value]
	mov cr0, rcx
	TRY_END
	mov rax, [rel before]
	mov cr0, rax
	dec ebp
	jnz .cr0
	; PG without PE, NW without CD, long mode's end without its rules.
	mov ecx, 0x80000030
	any mov cr0, rcx
	mov rax, [rel before]
	mov cr0, rax
	mov ecx, 0xa0000031
	any mov cr0, rcx
	mov rax, [rel before]
	mov cr0, rax
	mov ebp, 2000
.dr:
	call random
	mov rcx, rax
	any mov dr0, rcx
	any mov dr3, rcx
	any mov dr6, rcx
	and ecx, 0xffffdc00			; no breakpoint, nor GD, takes effect
	any mov dr7, rcx
	xor ecx, ecx
	mov dr7, rcx
	dec ebp
	jnz .dr
	ret

; EFER: random, with all that must not be.
efer:
	mov ecx, 0xc0000080
	rdmsr
	mov [rel before], eax
	mov ebp, 3000
.again:
	call random
	mov rdx, rax
	shr rdx, 32
	test ebp, 3
	jz .high
	xor edx, edx
.high:
	any wrmsr
	mov eax, [rel before]
	xor edx, edx
	wrmsr
	dec ebp
	jnz .again
	rdmsr
	test eax, 0x1000
	FAIL_UNLESS z, "EFER shows SVME"
	ret

xsetbv_noise:
	mov rax, cr4
	or eax, 0x40000				; OSXSAVE, where there is one
	mov [rel value], rax
	TRY
	mov rcx, [rel value]
	mov cr4, rcx
	TRY_END
	mov ebp, 2000
.again:
	call random
	mov rdx, rax
	shr rdx, 32
	test ebp, 7
	jz .any
	xor edx, edx
	and eax, 0xff
.any:
	mov ecx, ebp
	and ecx, 1
	any xsetbv
	xor ecx, ecx
	any xgetbv
	dec ebp
	jnz .again
	xor ecx, ecx
	xor edx, edx
	mov eax, 1
	any xsetbv
	ret

; Every entry of a spare top-level table, and of one level below, to random places.
tables:
	mov rbx, cr3
	mov ebp, 3000
.again:
	call random
	or eax, 1
	test ebp, 4
	jz .wild
	mov rcx, 0x000000ffffffffff
	and rax, rcx
.wild:
	mov [rbx + 256 * 8], rax
	mov rcx, cr3
	mov cr3, rcx
	TRY
	mov rcx, 0xffff800000000000
	mov rcx, [rcx + 0x123]
	TRY_END
	TRY
	mov rcx, 0xffff800000000000
	mov [rcx], ecx
	TRY_END
	dec ebp
	jnz .again
	mov qword [rbx + 256 * 8], 0
	mov rcx, cr3
	mov cr3, rcx
	mov cr3, rbx
	ret

guest_main:
	call hostile_start
	mov eax, 0x1000
	xor ecx, ecx
	must_ud vmrun
	must_ud vmload
	must_ud vmsave
	must_ud stgi
	must_ud clgi
	must_ud skinit
	must_ud invlpga
	must_ud vmxoff
	must_ud vmlaunch
	must_ud vmresume
	must_ud vmread rax, rcx
	must_ud vmwrite rax, rcx
	must_ud vmxon [rsp]
	must_ud vmptrld [rsp]
	must_ud vmclear [rsp]
	must_ud monitor
	must_ud mwait
	must_ud getsec
	must_ud rdpmc
	must_ud rsm
	any vmmcall
	any vmcall
	any wbinvd
	any invd
	any rdtscp
	any int1
	any int3
	any ud2
	any str ax
	any sldt ax
	mov ax, 0x18
	any ltr ax
	any lldt ax
	any pause
	any clts
	any rdtsc
	any swapgs
	any swapgs
	any int 0x20
	any int 0x0d
	say "instructions done"
	; Hypercalls of every number.
	mov ebp, 4000
.call:
	call random
	mov rdx, rax
	call random
	mov rsi, rax
	call random
	test ebp, 1
	jz .wild
	and eax, 0x3f
	or eax, 0x514c0000
.wild:
	mov ebx, ebp
	and ebx, 7
	mov ecx, ebp
	shr ecx, 3
	any vmmcall
	dec ebp
	jnz .call
	say "hypercalls done"
	call control
	say "control registers done"
	call efer
	say "EFER done"
	call xsetbv_noise
	say "XSETBV done"
	call tables
	say "page tables done"
	jmp hostile_end

before:	dq 0
value:	dq 0

	guest_end
