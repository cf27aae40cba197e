; A virtio driver that breaks every rule: rings anywhere and full of nonsense, kicks without
; DRIVER_OK, resets at any moment, status, MSI-X table and window of configuration space at random.
%define GUEST_NAME "hostile_virtio"
%include "bzimage.inc"
%include "hostile.inc"

REGS   equ 0xc0000000		; the first disk's registers; its notify page follows
NOTIFY equ 0xc0004000
STATUS equ REGS + 0x14
ROUNDS equ 400

; RAX: an address, mostly in memory above all that this guest lives by, at times outside or a device.
address:
	call random
	test eax, 0x70000000
	jz .wild
	and eax, 0x1fffff0
	cmp eax, 0x400000
	jae .done
	or eax, 0x800000
.done:
	ret
.wild:
	test eax, 0x08000000
	jnz .device
	mov rcx, 0xfffffffffe000000
	or rax, rcx				; far outside
	ret
.device:
	and eax, 0x3fffff
	or eax, 0xc0000000
	ret

; Garbage from 4 MiB to 5 MiB, shaped like descriptors that at times make sense.
memory_fill:
	mov edi, 0x400000
.again:
	call address
	mov [rdi], rax
	call random
	and eax, 0x0fff
	mov [rdi + 8], eax
	call random
	and eax, 0x00ff0007
	mov [rdi + 12], eax
	add edi, 16
	cmp edi, 0x440000
	jb .again
	ret

reset_wait:
	mov ebx, STATUS
	mov byte [rbx], 0
	mov ecx, 1000000
.wait:
	cmp byte [rbx], 0
	je .done
	pause
	loop .wait
	cmp byte [rbx], 0
	FAIL_UNLESS e, "a reset does not end"
.done:
	ret

; Finds MSI-X of slot 1 and turns it on or off by EAX.
msix_control:
	push rax
	mov edx, 0xcf8
	mov eax, 0x80000834
	out dx, eax
	mov edx, 0xcfc
	in al, dx
	movzx ebx, al
.cap:
	mov eax, 0x80000800
	add eax, ebx
	mov edx, 0xcf8
	out dx, eax
	mov edx, 0xcfc
	in eax, dx
	cmp al, 0x11
	je .found
	movzx ebx, ah
	test ebx, ebx
	jnz .cap
	pop rax
	ret
.found:
	mov edx, 0xcfe
	pop rax
	out dx, ax
	ret

; ECX registers of common configuration at random, in random widths.
registers:
	mov ebp, 60
.again:
	call random
	mov ecx, eax
	and ecx, 0x3f
	mov ebx, REGS
	shr rax, 8
	cmp ecx, 0x14
	je .next				; status has its own turn
	test eax, 1
	jnz .wide
	mov [rbx + rcx], ax
	jmp .next
.wide:
	and ecx, 0x3c
	mov [rbx + rcx], eax
.next:
	mov eax, [rbx + rcx]
	dec ebp
	jnz .again
	ret

; The MSI-X table and what follows it: any destination, any mode but INIT and SIPI, vectors from 32 on or
; below 16.
msix_table:
	mov ebp, 64
.again:
	call random
	mov ecx, eax
	and ecx, 0x7f0
	mov ebx, REGS + 0x3000
	shr rax, 16
	mov edx, eax
	and edx, 0xff00c
	test eax, 0x100000
	jnz .odd
	or edx, 0xfee00000
.odd:
	mov [rbx + rcx], edx
	mov dword [rbx + rcx + 4], 0
	shr rax, 8
	and eax, 0xc9ff
	test eax, 0x400
	jnz .again
	or al, 0x20
	test ebp, 7
	jnz .vector
	and al, 0x0f
.vector:
	mov [rbx + rcx + 8], eax
	and eax, 1
	mov [rbx + rcx + 12], eax
	dec ebp
	jnz .again
	ret

; One queue with addresses as they come, sizes too.
queue:
	mov ebx, REGS
	mov [rbx + 0x16], ax			; select
	call random
	mov ecx, eax
	and ecx, 7
	mov edx, 2
	shl edx, cl
	test eax, 0x300
	jnz .size
	mov edx, eax
.size:
	mov [rbx + 0x18], dx
	call random
	and eax, 3
	mov [rbx + 0x1a], ax
	mov ebp, 0x20
.address:
	call address
	test ebp, 8
	jz .keep
	and eax, ~15
.keep:
	mov ecx, eax
	and ecx, 0x3ff00
	test eax, 0x800000
	jz .put
	lea eax, [rcx + 0x400000]		; in the garbage
.put:
	mov [rbx + rbp], eax
	shr rax, 32
	mov [rbx + rbp + 4], eax
	add ebp, 8
	cmp ebp, 0x38
	jb .address
	mov word [rbx + 0x1c], 1
	ret

kicks:
	mov ebx, NOTIFY
	mov ebp, 40
.again:
	call random
	and eax, 0xffe
	test ebp, 3
	jnz .any
	and eax, 4
.any:
	mov [rbx + rax], ax
	dec ebp
	jnz .again
	ret

; The configuration access capability's window at random BARs, offsets, lengths, and its data.
window:
	mov ebp, 40
.again:
	call random
	and eax, 0xfc
	cmp eax, 0x40
	jb .again
	or eax, 0x80000800
	mov edx, 0xcf8
	out dx, eax
	call random
	mov edx, 0xcfc
	test eax, 0x10000
	jnz .read
	and eax, 0xfff
	out dx, eax
.read:
	in eax, dx
	dec ebp
	jnz .again
	ret

start:
	mov ebx, REGS
	mov byte [rbx + 0x14], 3
	mov dword [rbx + 8], 1
	mov dword [rbx + 12], 1			; VERSION_1
	mov dword [rbx + 8], 0
	call random
	and eax, [rbx + 4]
	mov [rbx + 12], eax
	mov byte [rbx + 0x14], 11
	ret

guest_main:
	call hostile_start
	mov ebx, 0xfee00000
	mov dword [rbx + 0xf0], 0x1ff
	mov dword [rbx + 0xd0], 1 << 24
	mov r14d, ROUNDS
.round:
	call memory_fill
	call registers
	call kicks
	call start
	mov eax, 0x8000
	test r14d, 3
	jnz .on
	call random
.on:
	call msix_control
	call msix_table
	xor eax, eax
	call queue
	mov eax, 1
	call queue
	test r14d, 7
	jz .no_ok
	mov ebx, STATUS
	mov byte [rbx], 15
.no_ok:
	call kicks
	sti
	call window
	call kicks
	call random				; some time for what is in flight, or none
	and eax, 0xfff
.time:
	pause
	dec eax
	jns .time
	call random
	test r14d, 15
	jnz .calm
	mov ebx, STATUS
	mov [rbx], al
	mov [rbx - 3], eax
.calm:
	cli
	mov ebx, STATUS
	mov al, [rbx]
	test al, 0x40
	jz .sane
	inc dword [broken]
.sane:
	test r14d, 31
	jz .next				; the next driver finds it as it is
	call reset_wait
.next:
	dec r14d
	jnz .round
	mov eax, [broken]
	call put_hex
	say "rounds in which the device asked for a reset"
	cmp dword [broken], 0
	FAIL_UNLESS ne, "the device never asked for a reset"
	jmp hostile_end

broken:	dd 0

	guest_end
