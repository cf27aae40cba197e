; A guest that reads and writes every MSR number that could be one, and puts into each what it must not
; take. Each access is answered or is #GP, which must leave EDX:EAX alone; the guest comes through.
%define GUEST_NAME "hostile_msr"
%include "bzimage.inc"
%include "hostile.inc"
%include "processor.inc"

EFER      equ 0xc0000080
APIC_BASE equ 0x1b

; Reads ECX to EBP - 1.
read_range:
	mov ebx, ecx
.next:
	mov ecx, ebx
	mov eax, 0x11223344
	mov edx, 0x55667788
	TRY_KEEP
	rdmsr
	inc dword [answered]
	jmp .on
	TRY_END
	EXPECT_VECTOR EXC_GP, "reading is neither answered nor #GP"
	cmp eax, 0x11223344
	FAIL_UNLESS e, "#GP of RDMSR changed EAX"
	cmp edx, 0x55667788
	FAIL_UNLESS e, "#GP of RDMSR changed EDX"
.on:
	mov qword [resume], 0
	inc ebx
	cmp ebx, ebp
	jne .next
	ret

%macro write_value 2
	mov eax, %1
	mov edx, %2
	mov ecx, ebx
	call write_one
%endmacro

; Writes ECX to EBP - 1: what each says itself, ones, nonsense, an address, zero.
write_range:
	mov ebx, ecx
.next:
	; Its own end: the page of the APIC, long mode, the timer.
	cmp ebx, APIC_BASE
	je .on
	cmp ebx, EFER
	je .on
	cmp ebx, 0x6e0
	je .on
	mov ecx, ebx
	xor eax, eax
	xor edx, edx
	any rdmsr
	call write_one
	write_value -1, -1
	write_value 0xdeadbeef, 0x8badf00d
	write_value 0x1003, 0
	call random
	mov rdx, rax
	shr rdx, 32
	mov ecx, ebx
	call write_one
	write_value 0, 0
.on:
	inc ebx
	cmp ebx, ebp
	jne .next
	ret

write_one:
	mov esi, eax
	mov edi, edx
	TRY_KEEP
	wrmsr
	inc dword [taken]
	TRY_END
	cmp dword [last_vector], NONE
	je .same
	EXPECT_VECTOR EXC_GP, "writing is neither taken nor #GP"
.same:
	ret

%macro range_cases 3
CASE msr_read_%1
	mov ecx, %2
	mov ebp, %3
	call read_range
CASE_END
CASE msr_write_%1
	mov ecx, %2
	mov ebp, %3
	call write_range
CASE_END
%endmacro

; ECX = EDX:EAX, which must end so: an EXC_ number or NONE.
%macro write 4
	mov ecx, %2
	mov eax, %3
	mov edx, %4
	TRY_KEEP
	wrmsr
	TRY_END
%defstr %%what %2
%defstr %%low %3
%defstr %%high %4
%defstr %%wanted %1
	EXPECT_VECTOR %1, {"not ", %%wanted, ": ", %%high, ":", %%low, " into MSR ", %%what}
%endmacro

%macro read 2
	mov ecx, %2
	expect %1, rdmsr
%endmacro

; A write that only hardware refuses: QEMU's SVM has the guest's own processor take it.
%macro write_checked 3
	mov ecx, %1
	mov eax, %2
	mov edx, %3
	any wrmsr
	cmp dword [last_vector], EXC_GP
	je %%fine
	jump_if_amd %%lax
	FAIL_UNLESS e, "a bad value was taken"
%%lax:
	inc dword [lax]
%%fine:
%endmacro

%macro skip_if_lax 0
	xor eax, eax
	xchg eax, [lax]
	test eax, eax
	SKIP_UNLESS z, "the guest writes the processor's own register, and QEMU checks nothing"
%endmacro

; name, leaf, subleaf, register and bit of CPUID, and the MSR that comes with it.
%macro pair 6
CASE cpuid_msr_%1
	mov eax, %2
	call leaf_exists
	jb %%hidden
	mov eax, %2
	mov ecx, %3
	cpuid
	bt %4, %5
	jnc %%hidden
	mov ecx, %6
	expect NONE, rdmsr
	jmp %%done
%%hidden:
	mov ecx, %6				; hidden: answered or not, but nothing else
	any rdmsr
	cmp dword [last_vector], NONE
	je %%done
	EXPECT_VECTOR EXC_GP, "a hidden one is neither answered nor #GP"
%%done:
CASE_END
%endmacro

; The same for those that are only written: 1 must be taken.
%macro pair_write 6
CASE cpuid_msr_%1
	mov eax, %2
	mov ecx, %3
	cpuid
	bt %4, %5
	jnc %%hidden
	write NONE, %6, 1, 0
	jmp %%done
%%hidden:
	write EXC_GP, %6, 1, 0
%%done:
CASE_END
%endmacro

; CF: leaf EAX is beyond the last of its range.
leaf_exists:
	mov esi, eax
	and eax, 0xffff0000
	cpuid
	cmp eax, esi
	ret

guest_main:
	call hostile_start
	call processor_start

	range_cases 00000000, 0, 0x1000
	range_cases 00001000, 0x1000, 0x2000
	range_cases 40000000, 0x40000000, 0x40000200
	range_cases 4b564cf0, 0x4b564cf0, 0x4b564d20
	range_cases c0000000, 0xc0000000, 0xc0001000
	range_cases c0001000, 0xc0001000, 0xc0002000
	range_cases c0010000, 0xc0010000, 0xc0011000
	range_cases c0011000, 0xc0011000, 0xc0012000
	range_cases 80000000, 0x80000000, 0x80000100
	range_cases fffffff0, 0xfffffff0, 0

CASE msr_random_numbers
	mov r14d, 2000
.msr_random:
	call random
	mov ecx, eax
	lea ebp, [rcx + 1]
	cmp ecx, EFER
	je .msr_random_on
	call read_range
	call random
	mov ecx, eax
	shr rax, 32
	mov edx, eax
	or ecx, 0x20000000			; none that there is
	call write_one
.msr_random_on:
	dec r14d
	jnz .msr_random
CASE_END

CASE msr_user
	mov ecx, 0x10
	user_expect EXC_GP, rdmsr
	mov ecx, 0x277
	user_expect EXC_GP, wrmsr
	mov ecx, 0xc0000100
	user_expect EXC_GP, rdmsr
	user_expect EXC_GP, wrmsr
	mov ecx, EFER
	mov eax, 0x11223344
	mov edx, 0x55667788
	user_expect EXC_GP, rdmsr
	cmp edx, 0x55667788
	FAIL_UNLESS e, "#GP of RDMSR at CPL 3 changed EDX"
	mov ecx, APIC_BASE
	user_expect EXC_GP, wrmsr
CASE_END

CASE efer_reserved_bits
	mov ecx, EFER
	rdmsr
	mov r12d, eax
	mov r13d, edx
	xor ebx, ebx
.efer_bit:
	bt dword [efer_writable], ebx		; SCE, LME, LMA, NXE
	jc .efer_next
	xor eax, eax
	bts rax, rbx
	mov rdx, rax
	shr rdx, 32
	or eax, r12d
	or edx, r13d
	mov ecx, EFER
	expect EXC_GP, wrmsr
.efer_next:
	inc ebx
	cmp ebx, 64
	jb .efer_bit
	mov ecx, EFER
	rdmsr
	cmp eax, r12d
	FAIL_UNLESS e, "EFER has changed"
CASE_END

CASE efer_long_mode
	mov ecx, EFER
	rdmsr
	mov r12d, eax
	and eax, ~0x100				; LME, with paging on
	expect EXC_GP, wrmsr
	mov eax, r12d
	and eax, ~0x400				; LMA is the processor's own
	xor edx, edx
	any wrmsr
	rdmsr
	cmp eax, r12d
	FAIL_UNLESS e, "LMA has changed"
CASE_END

CASE efer_svme
	mov ecx, EFER
	rdmsr
	test eax, 0x1000
	FAIL_UNLESS z, "EFER shows SVME"
	or eax, 0x1000
	expect EXC_GP, wrmsr
CASE_END

CASE efer_noise
	mov ecx, EFER
	rdmsr
	mov r12d, eax
	mov ebp, 1000
.efer_noise:
	call random
	mov rdx, rax
	shr rdx, 32
	test ebp, 3
	jz .efer_high
	xor edx, edx
.efer_high:
	any wrmsr
	mov eax, r12d
	xor edx, edx
	wrmsr
	dec ebp
	jnz .efer_noise
CASE_END

CASE apic_base_reserved_bits
	mov ecx, APIC_BASE
	rdmsr
	mov r12d, eax
	mov ebx, 0
.base_bit:
	mov eax, 0xc00				; not BSP, nor the modes
	or eax, 0x100
	bt eax, ebx
	jc .base_next
	xor eax, eax
	bts rax, rbx
	mov rdx, rax
	shr rdx, 32
	xor eax, r12d				; a reserved bit, or another address
	mov ecx, APIC_BASE
	expect EXC_GP, wrmsr
.base_next:
	inc ebx
	cmp ebx, 64
	jb .base_bit
CASE_END

CASE apic_base_bsp
	mov ecx, APIC_BASE
	rdmsr
	mov r12d, eax
	test eax, 0x100
	FAIL_UNLESS nz, "processor 0 is not the one that booted"
	and eax, ~0x100
	any wrmsr
	rdmsr
	cmp eax, r12d
	FAIL_UNLESS e, "which processor booted changes by writing"
CASE_END

CASE pat_bad_types
	mov ecx, 0x277
	rdmsr
	mov r12d, eax
	mov r13d, edx
	write_checked 0x277, 0x06060602, 0x06060606
	write_checked 0x277, 0x06060603, 0x06060606
	write_checked 0x277, 0x06060606, 0x08060606
	write_checked 0x277, 0x06060606, 0xff060606
	write_checked 0x277, 0x06160606, 0x06060606
	mov ecx, 0x277
	mov eax, r12d
	mov edx, r13d
	wrmsr
	skip_if_lax
CASE_END

CASE pat_good_types
	write NONE, 0x277, 0x00010405, 0x06070004
	read NONE, 0x277
	cmp eax, 0x00010405
	FAIL_UNLESS e, "PAT's low half is not what was written"
	cmp edx, 0x06070004
	FAIL_UNLESS e, "PAT's high half is not what was written"
	write NONE, 0x277, 0x00070406, 0x00070406
CASE_END

CASE mtrr_bad_types
	write EXC_GP, 0x200, 2, 0
	write EXC_GP, 0x200, 3, 0
	write EXC_GP, 0x200, 7, 0
	write EXC_GP, 0x200, 0xff, 0
	write EXC_GP, 0x200, 0x106, 0
	write EXC_GP, 0x200, 6, 0xffffffff
	write EXC_GP, 0x201, 0x400, 0
	write EXC_GP, 0x201, 1, 0
	write EXC_GP, 0x201, 0x800, 0xffffffff
	write EXC_GP, 0x250, 0x06060602, 0x06060606
	write EXC_GP, 0x258, 0x06060606, 0x07060606
	write EXC_GP, 0x26f, 0xffffffff, 0xffffffff
	write EXC_GP, 0x2ff, 0x02, 0
	write EXC_GP, 0x2ff, 0x107, 0
	write EXC_GP, 0x2ff, 0x1006, 0
	write EXC_GP, 0x2ff, 0xc06, 1
CASE_END

CASE mtrr_cap
	read NONE, 0xfe
	mov r12d, eax
	write EXC_GP, 0xfe, 0, 0
	and r12d, 0xff				; none beyond those it says
	lea ecx, [r12 * 2 + 0x200]
	cmp ecx, 0x250
	jae .mtrr_cap_done
	expect EXC_GP, rdmsr
.mtrr_cap_done:
CASE_END

CASE mtrr_keep
	write NONE, 0x200, 0x80000006, 0
	write NONE, 0x201, 0x80000800, 0xf
	write NONE, 0x268, 0x06050401, 0x00000000
	write NONE, 0x2ff, 0xc00, 0
	read NONE, 0x201
	cmp eax, 0x80000800
	FAIL_UNLESS e, "a mask is not what was written"
	read NONE, 0x268
	cmp eax, 0x06050401
	FAIL_UNLESS e, "a fixed range is not what was written"
	mov eax, [payload]			; uncached or not, memory is there
	write NONE, 0x2ff, 0, 0
	mov eax, [payload]
	write NONE, 0x201, 0, 0
	write NONE, 0x2ff, 0xc06, 0
CASE_END

CASE tsc_writes
	rdtsc
	mov ebx, eax
	mov ebp, edx
	write NONE, 0x10, 0, 0
	rdtsc
	cmp edx, ebp
	FAIL_UNLESS ae, "the TSC went back"
	write NONE, 0x10, -1, -1
	write NONE, 0x10, 0, 0x80000000
	rdtsc
	shl rdx, 32
	or rax, rdx
	mov r12, rax
	read NONE, 0x10
	shl rdx, 32
	or rax, rdx
	sub rax, r12
	shr rax, 36
	FAIL_UNLESS z, "RDTSC and the MSR are far apart"
CASE_END

CASE sysenter_not_canonical
	write_checked 0x175, 0, 0x00008000
	write_checked 0x176, 0, 0x80000000
	write_checked 0x175, 0xffffffff, 0x7fffffff
	write NONE, 0x175, 0, 0
	write NONE, 0x176, 0, 0
	write NONE, 0x174, 0x10, 0
	skip_if_lax
CASE_END

CASE bases_not_canonical
	write_checked 0xc0000100, 0, 0x00008000
	write_checked 0xc0000101, 0, 0x80000000
	write_checked 0xc0000102, 0xffffffff, 0xffff7fff
	write NONE, 0xc0000100, 0, 0
	write NONE, 0xc0000101, 0, 0
	write NONE, 0xc0000102, 0, 0
	skip_if_lax
CASE_END

CASE bases_keep
	write NONE, 0xc0000100, 0x12345678, 0x00007fff
	write NONE, 0xc0000101, 0x9abcdef0, 0xffff8000
	mov ebp, 100
.bases_keep:
	xor eax, eax				; exits between
	cpuid
	dec ebp
	jnz .bases_keep
	read NONE, 0xc0000100
	cmp eax, 0x12345678
	FAIL_UNLESS e, "FS base is not what was written"
	read NONE, 0xc0000101
	cmp edx, 0xffff8000
	FAIL_UNLESS e, "GS base is not what was written"
	write NONE, 0xc0000100, 0, 0
	write NONE, 0xc0000101, 0, 0
CASE_END

CASE syscall_not_canonical
	write_checked 0xc0000082, 0, 0x00008000
	write_checked 0xc0000083, 0, 0x80000000
	write NONE, 0xc0000082, 0, 0
	write NONE, 0xc0000083, 0, 0
	skip_if_lax
CASE_END

CASE syscall_keep
	write NONE, 0xc0000081, 0x11111111, 0x00230010
	write NONE, 0xc0000082, 0x22222222, 0
	write NONE, 0xc0000084, 0x00000300, 0
	mov ebp, 100
.syscall_keep:
	xor eax, eax
	cpuid
	dec ebp
	jnz .syscall_keep
	read NONE, 0xc0000081
	cmp edx, 0x00230010
	FAIL_UNLESS e, "STAR is not what was written"
	read NONE, 0xc0000082
	cmp eax, 0x22222222
	FAIL_UNLESS e, "LSTAR is not what was written"
	read NONE, 0xc0000084
	cmp eax, 0x300
	FAIL_UNLESS e, "SFMASK is not what was written"
CASE_END

CASE tsc_aux
	mov eax, 0x80000001
	cpuid
	bt edx, 27
	jc .aux
	write EXC_GP, 0xc0000103, 0, 0
	jmp .aux_done
.aux:
	write NONE, 0xc0000103, 0x12345678, 0
	xor eax, eax
	cpuid
	rdtscp
	cmp ecx, 0x12345678
	FAIL_UNLESS e, "RDTSCP does not give TSC_AUX"
	read NONE, 0xc0000103
	cmp eax, 0x12345678
	FAIL_UNLESS e, "TSC_AUX is not what was written"
	write NONE, 0xc0000103, 0, 0
.aux_done:
CASE_END

%macro clock_each 3
	write %1, 0x12, %2, %3
	write %1, 0x4b564d01, %2, %3
%endmacro

CASE kvm_clock_outside
	clock_each EXC_GP, RAM_END | 1, 0
	clock_each EXC_GP, 0xfffff001, 0xffffffff
	clock_each EXC_GP, 0x00000001, 0x80000000
	clock_each EXC_GP, RAM_END - 16 + 1, 0	; half of it
	write EXC_GP, 0x11, RAM_END, 0
	write EXC_GP, 0x4b564d00, RAM_END - 4, 0
	write EXC_GP, 0x4b564d00, 0xfffffff0, 0xffffffff
	clock_each NONE, 0, 0
CASE_END

CASE kvm_clock_device
	clock_each EXC_GP, DEVICE | 1, 0
	clock_each EXC_GP, 0xfee00001, 0
	clock_each EXC_GP, 0xfec00001, 0
	write EXC_GP, 0x11, DEVICE, 0
	write EXC_GP, 0x4b564d00, 0xfee00300, 0
CASE_END

CASE kvm_clock_misaligned
	mov edi, FREE
	mov ecx, 64
	xor eax, eax
	rep stosq
	mov ecx, 0x4b564d01
	mov eax, FREE + 7
	xor edx, edx
	any wrmsr
	mov ecx, 0x4b564d01
	mov eax, FREE + 0xffe + 1		; across a page
	any wrmsr
	cmp byte [abs dword FREE], 0
	FAIL_UNLESS e, "the clock's page reaches below its address"
	clock_each NONE, 0, 0
CASE_END

CASE kvm_clock_works
	mov edi, FREE
	mov ecx, 64
	xor eax, eax
	rep stosq
	clock_each NONE, FREE | 1, 0
	mov eax, [abs dword FREE]
	test eax, 1
	FAIL_UNLESS z, "the clock's version is odd"
	cmp dword [abs dword FREE + 24], 0
	FAIL_UNLESS ne, "the clock has no multiplier"
	cmp qword [abs dword FREE + 32], 0
	FAIL_UNLESS e, "the clock is longer than its page"
	write NONE, 0x4b564d00, FREE + 64, 0
	cmp dword [abs dword FREE + 68], 0
	FAIL_UNLESS ne, "the wall clock says nothing"
	clock_each NONE, 0, 0
CASE_END

CASE kvm_pv_eoi
	write EXC_GP, 0x4b564d04, 2, 0
	write EXC_GP, 0x4b564d04, 3, 0
	write EXC_GP, 0x4b564d04, RAM_END | 1, 0
	write EXC_GP, 0x4b564d04, DEVICE | 1, 0
	write EXC_GP, 0x4b564d04, 0xfee00001, 0
	write EXC_GP, 0x4b564d04, 1, 0x80000000
	write NONE, 0x4b564d04, RAM_END - 4 + 1, 0
	write NONE, 0x4b564d04, 0, 0
CASE_END

CASE x2apic_msrs_in_xapic_mode
	mov ebx, 0x800
.x2apic:
	mov ecx, ebx
	expect EXC_GP, rdmsr
	xor eax, eax
	xor edx, edx
	mov ecx, ebx
	expect EXC_GP, wrmsr
	inc ebx
	cmp ebx, 0x900
	jb .x2apic
CASE_END

CASE feature_control_locked
	mov ecx, 0x3a
	jump_if_amd .no_feature_control
	expect NONE, rdmsr
	and eax, 7
	cmp eax, 1
	FAIL_UNLESS e, "not locked, or VMX allowed"
	write EXC_GP, 0x3a, 5, 0
	write EXC_GP, 0x3a, 0, 0
	jmp .feature_control_done
.no_feature_control:
	expect EXC_GP, rdmsr
	expect EXC_GP, wrmsr
.feature_control_done:
CASE_END

CASE vmx_msrs_hidden
	mov ebx, 0x480
.vmx_msr:
	mov ecx, ebx
	expect EXC_GP, rdmsr
	mov ecx, ebx
	expect EXC_GP, wrmsr
	inc ebx
	cmp ebx, 0x4a0
	jb .vmx_msr
CASE_END

CASE svm_msrs_hidden
	mov ebx, 0xc0010114			; VM_CR, IGNNE, SMM_CTL, VM_HSAVE_PA, SVM_KEY
.svm_msr:
	mov ecx, ebx
	expect EXC_GP, rdmsr
	mov ecx, ebx
	mov eax, 0x1000
	xor edx, edx
	expect EXC_GP, wrmsr
	inc ebx
	cmp ebx, 0xc0010119
	jb .svm_msr
CASE_END

CASE read_only_msrs
	write EXC_GP, 0xfe, 0x508, 0
	write EXC_GP, 0x179, 0, 0
	write EXC_GP, 0x17a, 8, 0
	write NONE, 0x17a, 7, 0
	write NONE, 0x17a, 0, 0
	write EXC_GP, 0x1d9, 4, 0
	write EXC_GP, 0x1d9, 0, 1
CASE_END

	pair tsc, 1, 0, edx, 4, 0x10
	pair mtrr, 1, 0, edx, 12, 0xfe
	pair mtrr_default, 1, 0, edx, 12, 0x2ff
	pair pat, 1, 0, edx, 16, 0x277
	pair mca, 1, 0, edx, 14, 0x179
	pair apic, 1, 0, edx, 9, 0x1b
	pair sep, 1, 0, edx, 11, 0x174
	pair debug_store, 1, 0, edx, 21, 0x600
	pair thermal, 1, 0, edx, 22, 0x19c
	pair vmx, 1, 0, ecx, 5, 0x480
	pair eist, 1, 0, ecx, 7, 0x198
	pair pdcm, 1, 0, ecx, 15, 0x345
	pair tsc_deadline, 1, 0, ecx, 24, 0x6e0
	pair digital_thermal, 6, 0, eax, 0, 0x19c
	pair hwp, 6, 0, eax, 7, 0x770
	pair aperf, 6, 0, ecx, 0, 0xe7
	pair energy_bias, 6, 0, ecx, 3, 0x1b0
	pair tsc_adjust, 7, 0, ebx, 1, 0x3b
	pair cmt, 7, 0, ebx, 12, 0xc8d
	pair mpx, 7, 0, ebx, 14, 0xd90
	pair processor_trace, 7, 0, ebx, 25, 0x570
	pair waitpkg, 7, 0, ecx, 5, 0xe1
	pair cet_ss, 7, 0, ecx, 7, 0x6a0
	pair rdpid, 7, 0, ecx, 22, 0xc0000103
	pair pks, 7, 0, ecx, 31, 0x6e1
	pair cet_ibt, 7, 0, edx, 20, 0x6a2
	pair spec_ctrl, 7, 0, edx, 26, 0x48
	pair stibp, 7, 0, edx, 27, 0x48
	pair arch_capabilities, 7, 0, edx, 29, 0x10a
	pair core_capabilities, 7, 0, edx, 30, 0xcf
	pair ssbd, 7, 0, edx, 31, 0x48
	pair xss, 0xd, 1, eax, 3, 0xda0
	pair xfd, 0xd, 1, eax, 4, 0x1c4
	pair syscall, 0x80000001, 0, edx, 11, 0xc0000081
	pair long_mode, 0x80000001, 0, edx, 29, 0xc0000102
	pair rdtscp, 0x80000001, 0, edx, 27, 0xc0000103
	pair svm, 0x80000001, 0, ecx, 2, 0xc0010114
	pair osvw, 0x80000001, 0, ecx, 9, 0xc0010140
	pair ibs, 0x80000001, 0, ecx, 10, 0xc0011030
	pair lwp, 0x80000001, 0, ecx, 15, 0xc0000105
	pair core_counters, 0x80000001, 0, ecx, 23, 0xc0010200
	pair amd_spec_ctrl, 0x80000008, 0, ebx, 14, 0x48
	pair amd_ssbd, 0x80000008, 0, ebx, 24, 0x48
	pair virt_ssbd, 0x80000008, 0, ebx, 25, 0xc001011f
	pair kvm_clock, 0x40000001, 0, eax, 0, 0x12
	pair kvm_clock2, 0x40000001, 0, eax, 3, 0x4b564d01
	pair kvm_async_fault, 0x40000001, 0, eax, 4, 0x4b564d02
	pair kvm_steal_time, 0x40000001, 0, eax, 5, 0x4b564d03
	pair kvm_eoi, 0x40000001, 0, eax, 6, 0x4b564d04
	pair_write pred_cmd, 7, 0, edx, 26, 0x49
	pair_write flush_cmd, 7, 0, edx, 28, 0x10b

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
lax:	dd 0
	align 8
efer_writable: dq 0xd01

	guest_end
