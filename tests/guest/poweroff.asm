; A guest that says a line and powers itself off through ACPI's sleep control register (ACPI 6.4
; 4.8.3.7): SLP_TYP 5, SLP_EN.
%define GUEST_NAME "poweroff"
%include "bzimage.inc"

guest_main:
	mov dx, 0x600
	mov al, 5 << 2 | 1 << 5
	out dx, al
	ret

	guest_end
