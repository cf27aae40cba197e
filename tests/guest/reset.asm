; A guest that says a line and resets itself through the reset control register.
%define GUEST_NAME "reset"
%include "bzimage.inc"

guest_main:
	mov dx, 0xcf9
	mov al, 2
	out dx, al
	mov al, 6
	out dx, al
	ret

	guest_end
