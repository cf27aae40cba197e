; Boot sector for tools/run: does this machine offer SVM or VMX? Answers through isa-debug-exit at
; 0xf4: 0x10 yes, 0x11 no.
	bits 16
	org 0x7c00
	mov eax, 1
	cpuid
	bt ecx, 5		; VMX
	jc .yes
	mov eax, 0x80000000
	cpuid
	cmp eax, 0x80000001
	jb .no
	mov eax, 0x80000001
	cpuid
	bt ecx, 2		; SVM
	jc .yes
.no:
	mov al, 0x11
	out 0xf4, al
.yes:
	mov al, 0x10
	out 0xf4, al
	hlt
	times 510 - ($ - $$) db 0
	dw 0xaa55
	times 1048576 - ($ - $$) db 0
