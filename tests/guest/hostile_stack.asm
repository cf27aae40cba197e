; A guest whose stack lies in a device: what is pushed there cannot be, nor can the exception that says
; so be delivered. It ends, and it alone.
%define GUEST_NAME "hostile_stack"
%define GUEST_ENDS "error"
%include "bzimage.inc"
%include "hostile.inc"

guest_main:
	call hostile_start
	mov esp, 0xc0000800
	push rax
	ret

	guest_end
