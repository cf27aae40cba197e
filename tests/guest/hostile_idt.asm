; A guest whose descriptor tables lie in a device: no exception of its can ever be delivered. What
; becomes of it is its own affair, and that it ends.
%define GUEST_NAME "hostile_idt"
%define GUEST_ENDS "error"
%include "bzimage.inc"

guest_main:
	lidt [device_idt]
	ud2
	ret

device_idt:
	dw 4095
	dq 0xc0000000

	guest_end
