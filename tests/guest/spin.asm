; A guest that says a line and runs for ever without an exit.
%define GUEST_NAME "spin"
%include "bzimage.inc"

guest_main:
	pause
	jmp guest_main

	guest_end
