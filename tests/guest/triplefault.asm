; A guest that says a line and dies of a triple fault: no IDT, then an invalid instruction.
%define GUEST_NAME "triplefault"
%include "bzimage.inc"

guest_main:
	lidt [no_idt]
	ud2
	ret

no_idt:
	dw 0
	dq 0

	guest_end
