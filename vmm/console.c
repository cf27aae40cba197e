#include "vmm/console.h"

#include "vmm/vm.h"

#define LINE_MAX       512u
#define ESCAPE         0x1du /* Ctrl-] */
#define INPUT_MAX      1024u
#define INPUT_PER_POLL 64u

/* One guest's line, as far as it came. */
struct line {
	struct vm *vm;
	size_t prefix_len; /* of text: "name| " */
	size_t len;        /* of text, prefix included */
	bool carriage;     /* a '\r' came last: kept only before '\n' */
	char text[sizeof(((struct manifest_guest *)0)->name) + 2 + LINE_MAX + 2];
};

/* Guards lines and open; taken inside a guest's device lock, never around one. */
static struct spinlock console_lock;
static struct line lines[MANIFEST_GUEST_MAX];
static struct line *open_line; /* whose unfinished line stands on the screen */

/* Boot core writes it, before guests start. */
static unsigned guest_count;

/* The I/O core's. Bytes wait while the guest's receiver is full, so that Ctrl-] is still seen. */
static struct {
	unsigned focus;
	bool escaped;
	uint32_t head, count;
	uint8_t byte[INPUT_MAX];
} input;

void console_guest_add(struct vm *vm)
{
	struct line *line;

	if (guest_count == MANIFEST_GUEST_MAX)
		return;
	line = &lines[guest_count];
	memset(line, 0, sizeof(*line));
	line->vm = vm;
	line->prefix_len = MIN(strlen(vm->name), sizeof(line->text) - LINE_MAX - 4);
	memcpy(line->text, vm->name, line->prefix_len);
	memcpy(line->text + line->prefix_len, "| ", 2);
	line->prefix_len += 2;
	line->len = line->prefix_len;
	if (guest_count++ == 0) {
		open_line = NULL;
		memset(&input, 0, sizeof(input));
	}
}

/* --- output ----------------------------------------------------------------------------------- */

static struct line *line_of(const struct vm *vm)
{
	for (unsigned i = 0; i < guest_count; i++)
		if (lines[i].vm == vm)
			return &lines[i];
	return NULL;
}

/* Writes what a line has gathered, in one call; its prefix only where the screen has it not yet. */
static void line_write(struct line *line, bool ended)
{
	size_t from = open_line == line ? line->prefix_len : 0;

	if (open_line && open_line != line)
		plat_console_write("\r\n", 2);
	plat_console_write(line->text + from, line->len - from);
	line->len = line->prefix_len;
	open_line = ended ? NULL : line;
}

static void line_put(struct line *line, uint8_t byte)
{
	bool carriage = line->carriage;

	line->carriage = byte == '\r';
	if (byte == '\r')
		return;
	if (byte != '\n') {
		line->text[line->len++] = (char)byte;
		if (line->len - line->prefix_len == LINE_MAX)
			line_write(line, false);
		return;
	}
	if (carriage)
		line->text[line->len++] = '\r';
	line->text[line->len++] = '\n';
	line_write(line, true);
}

void console_put(struct vm *vm, uint8_t byte)
{
	const char raw = (char)byte;
	struct line *line = line_of(vm);

	if (!line)
		return;
	if (guest_count == 1) {
		plat_console_write(&raw, 1);
		return;
	}
	spin_lock(&console_lock);
	line_put(line, byte);
	spin_unlock(&console_lock);
}

void console_flush(struct vm *vm)
{
	struct line *line = line_of(vm);

	/* Each halt comes here: with nothing to show it must not wait for a neighbour's output. Who
	 * puts a byte there just now flushes it when it halts. */
	if (guest_count <= 1 || !line || *(const volatile size_t *)&line->len == line->prefix_len)
		return;
	spin_lock(&console_lock);
	if (line->len > line->prefix_len)
		line_write(line, false);
	spin_unlock(&console_lock);
}

/* --- input ------------------------------------------------------------------------------------ */

/* Hands on what the guest in focus has room for. */
static void input_pass(void)
{
	struct vm *vm;

	if (!input.count || input.focus >= guest_count)
		return;
	vm = lines[input.focus].vm;
	/* A guest that writes to a slow console holds it long; the I/O core waits for nobody. */
	if (!spin_trylock(&vm->device_lock))
		return;
	while (input.count && vuart_input(&vm->uart, input.byte[input.head])) {
		input.head = (input.head + 1) % INPUT_MAX;
		input.count--;
	}
	spin_unlock(&vm->device_lock);
}

static void focus_set(unsigned focus)
{
	if (focus >= guest_count) {
		plat_log("console: no guest %u; there are %u", focus + 1, guest_count);
		return;
	}
	input_pass();
	input.focus = focus;
	input.count = 0;
	plat_log("console: input goes to guest %u, %s", focus + 1, lines[focus].vm->name);
}

/* A byte beyond INPUT_MAX unread ones is lost, as on a line without flow control. */
static void input_put(uint8_t byte)
{
	if (input.count == INPUT_MAX)
		return;
	input.byte[(input.head + input.count) % INPUT_MAX] = byte;
	input.count++;
}

static void input_take(uint8_t byte)
{
	bool escaped = input.escaped;

	input.escaped = byte == ESCAPE && !escaped;
	if (input.escaped)
		return;
	if (!escaped || byte == ESCAPE)
		input_put(byte);
	else if (byte >= '1' && byte <= '8')
		focus_set(byte - '1');
}

unsigned console_input_poll(void)
{
	unsigned taken = 0;
	int byte;

	while (taken < INPUT_PER_POLL && (byte = plat_console_read()) >= 0) {
		input_take((uint8_t)byte);
		taken++;
	}
	input_pass();
	return taken;
}

bool console_input_waits(void)
{
	return input.count != 0;
}
