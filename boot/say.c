/* What the loader tells people, while there still is firmware: its console, and COM1 directly. */
#include "boot/boot.h"
#include "arch/platform.h"
#include "arch/x86/arch.h"
#include "drivers/uart.h"
#include "vmm/fmt.h"

#define LINE_MAX       640u
#define CONSOLE_MAX    8u
#define PATH_MAX_BYTES 2048u

static struct uart com1;
static SIMPLE_TEXT_OUTPUT_INTERFACE *console[CONSOLE_MAX];
static unsigned console_count;

/* Does the firmware's own console already go out on a serial line? Then writing to COM1 as well
 * would say everything twice there. */
static bool conout_is_serial(const struct boot *boot)
{
	static uint8_t path[PATH_MAX_BYTES];
	EFI_GUID global = EFI_GLOBAL_VARIABLE;
	UINTN size = sizeof(path);
	UINTN at = 0;

	if (EFI_ERROR(boot->st->RuntimeServices->GetVariable((CHAR16 *)u"ConOut", &global, NULL,
	                                                     &size, path)))
		return false;
	while (at + 4 <= size) {
		const EFI_DEVICE_PATH *node = (const EFI_DEVICE_PATH *)&path[at];
		UINTN len = node->Length[0] | (UINTN)node->Length[1] << 8;

		if (len < 4)
			return false;
		if (node->Type == MESSAGING_DEVICE_PATH && node->SubType == MSG_UART_DP)
			return true;
		at += len;
	}
	return false;
}

/* The screens behind a console that goes to a serial line too. */
static void find_screens(const struct boot *boot)
{
	EFI_GUID text = EFI_SIMPLE_TEXT_OUTPUT_PROTOCOL_GUID;
	EFI_GUID gop = EFI_GRAPHICS_OUTPUT_PROTOCOL_GUID;
	EFI_HANDLE *handles;
	UINTN count;
	void *out, *screen;

	if (EFI_ERROR(boot->bs->LocateHandleBuffer(ByProtocol, &text, NULL, &count, &handles)))
		return;
	for (UINTN i = 0; i < count && console_count < CONSOLE_MAX; i++)
		if (handles[i] != boot->st->ConsoleOutHandle &&
		    !EFI_ERROR(boot->bs->HandleProtocol(handles[i], &gop, &screen)) &&
		    !EFI_ERROR(boot->bs->HandleProtocol(handles[i], &text, &out)))
			console[console_count++] = out;
	boot->bs->FreePool(handles);
}

void say_init(const struct boot *boot)
{
	uart_init(&com1, UART_COM1_PORT);
	if (com1.present && conout_is_serial(boot))
		find_screens(boot);
	else if (boot->st->ConOut)
		console[console_count++] = boot->st->ConOut;
}

void say_raw(const char *text)
{
	CHAR16 wide[LINE_MAX];
	size_t n = 0;

	for (const char *s = text; *s; s++)
		uart_put(&com1, (uint8_t)*s);
	/* Not ASCII shows as '?' rather than as half a character. */
	for (; text[n] && n < LINE_MAX - 1; n++)
		wide[n] = (uint8_t)text[n] < 0x80 ? (CHAR16)text[n] : u'?';
	wide[n] = 0;
	for (unsigned i = 0; i < console_count; i++)
		console[i]->OutputString(console[i], wide);
}

void say(const char *fmt, ...)
{
	char line[LINE_MAX];
	va_list args;

	va_start(args, fmt);
	fmt_vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	say_raw(line);
	say_raw("\r\n");
}

EFI_STATUS say_and_stop(const struct boot *boot)
{
	UINTN index;

	say("quell: halted: failed");
	uart_drain(&com1);
	if (power_on_qemu())
		power_qemu_exit(false);
	if (power_on_qemu() || power_on_bochs())
		boot->st->RuntimeServices->ResetSystem(EfiResetShutdown, EFI_SUCCESS, 0, NULL);
	if (boot->st->ConIn) {
		say("press a key to go back to the firmware");
		boot->st->ConIn->Reset(boot->st->ConIn, FALSE);
		boot->bs->WaitForEvent(1, &boot->st->ConIn->WaitForKey, &index);
	}
	return EFI_LOAD_ERROR;
}
