#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"
#include "vmm/console.c"

#include <string.h>

/* Guests join in this order and stay: the console has no way back. */
static struct vm guest[3];
static size_t seen;

static void join(unsigned index, const char *name)
{
	guest[index].name = name;
	vuart_init(&guest[index].uart, NULL);
	guest[index].uart.vm = NULL;
	console_guest_add(&guest[index]);
}

static void put(unsigned index, const char *text)
{
	for (; *text; text++)
		console_put(&guest[index], (uint8_t)*text);
}

/* What was written since the last call. */
static bool wrote(const char *text)
{
	bool same = !strcmp(fake_console + seen, text);

	if (!same)
		printf("  got \"%s\"\n", fake_console + seen);
	seen = strlen(fake_console);
	return same;
}

static const char *received(unsigned index)
{
	static char text[2048];
	size_t len = 0;

	while (vuart_read(&guest[index].uart, 0x3fd) & 1 && len < sizeof(text) - 1)
		text[len++] = (char)vuart_read(&guest[index].uart, 0x3f8);
	text[len] = 0;
	return text;
}

static struct vm stranger = {.name = "who"}; /* its serial port goes nowhere */

static void put_stranger(void)
{
	console_put(&stranger, 'x');
	console_put(&stranger, '\n');
	console_flush(&stranger);
}

static void one_guest_is_raw(void)
{
	fake_reset();
	put_stranger();
	CHECK(wrote(""));
	join(0, "alpha");
	put_stranger();
	CHECK(wrote(""));
	put(0, "a\r\033[1mb\n");
	CHECK(wrote("a\r\033[1mb\n"));
	put(0, "login: ");
	CHECK(wrote("login: "));
	console_flush(&guest[0]);
	CHECK(wrote(""));
	fake_console_input = "root\r";
	CHECK_EQ(console_input_poll(), 5);
	CHECK(!strcmp(received(0), "root\r"));
	CHECK_EQ(console_input_poll(), 0);
}

static void several_share_by_lines(void)
{
	join(1, "beta");
	join(2, "gamma");
	put(0, "one ");
	put(1, "two ");
	CHECK(wrote(""));
	put(0, "half\r\n");
	CHECK(wrote("alpha| one half\r\n"));
	put(1, "half\n");
	CHECK(wrote("beta| two half\n"));
	/* A lone carriage return would write over the prefix. */
	put(2, "10%\r20%\r\n");
	CHECK(wrote("gamma| 10%20%\r\n"));
	put(2, "\n");
	CHECK(wrote("gamma| \n"));
}

static void unfinished_lines(void)
{
	put(0, "login: ");
	CHECK(wrote(""));
	console_flush(&guest[0]);
	CHECK(wrote("alpha| login: "));
	console_flush(&guest[0]);
	CHECK(wrote(""));
	/* It goes on where it stands, */
	put(0, "ro");
	console_flush(&guest[0]);
	CHECK(wrote("ro"));
	/* another begins a line of its own, */
	put(1, "hello\r\n");
	CHECK(wrote("\r\nbeta| hello\r\n"));
	/* and then it needs its name again. */
	put(0, "ot\r\n");
	CHECK(wrote("alpha| ot\r\n"));
	put(0, "x");
	console_flush(&guest[0]);
	put(0, "\r\n");
	CHECK(wrote("alpha| x\r\n"));
}

static unsigned spins;
static struct spinlock *held_lock;

static void on_relax(void)
{
	spins++;
	spin_unlock(held_lock);
}

/* A guest that halts without a word of its own does not wait for one that floods the console. */
static void a_halt_does_not_wait_for_neighbours(void)
{
	held_lock = &console_lock;
	fake_relax = on_relax;
	spin_lock(&console_lock);
	console_flush(&guest[1]);
	CHECK_EQ(spins, 0);
	spin_unlock(&console_lock);
	put(1, "x");
	spin_lock(&console_lock);
	console_flush(&guest[1]);
	CHECK_EQ(spins, 1);
	CHECK(wrote("beta| x"));
	put(1, "\n");
	CHECK(wrote("\n"));
	fake_relax = NULL;
}

static void long_lines(void)
{
	size_t len;

	for (unsigned i = 0; i < 511; i++)
		put(1, "z");
	CHECK(wrote(""));
	put(1, "z");
	len = strlen(fake_console) - seen;
	CHECK_EQ(len, 6 + 512);
	seen += len;
	put(1, "end\n");
	CHECK(wrote("end\n"));
}

static void a_stranger_is_silent(void)
{
	put_stranger();
	CHECK(wrote(""));
}

static void input_follows_focus(void)
{
	fake_console_input = "a\x1d"
	                     "2b\x1d\x1d"
	                     "c\x1d"
	                     "3d\x1d"
	                     "1e";
	console_input_poll();
	CHECK(!strcmp(received(0), "ae"));
	CHECK(!strcmp(received(1), "b\x1d"
	                           "c"));
	CHECK(!strcmp(received(2), "d"));
	CHECK(strstr(fake_log, "console: input goes to guest 2, beta\n"));
	/* No such guest: stays. Other keys after Ctrl-] do nothing. */
	fake_console_input = "\x1d"
	                     "8f\x1dqg\x1d"
	                     "0h\x1d"
	                     "9";
	console_input_poll();
	CHECK(!strcmp(received(0), "fgh"));
	CHECK(strstr(fake_log, "no guest 8"));
	/* The escape may come in two parts. */
	fake_console_input = "\x1d";
	console_input_poll();
	fake_console_input = "2i";
	console_input_poll();
	CHECK(!strcmp(received(1), "i"));
}

static void full_receiver_keeps_the_rest(void)
{
	static char paste[900];
	char got[1000];

	memset(paste, 'p', sizeof(paste) - 2);
	paste[sizeof(paste) - 2] = 'q';
	fake_console_input = paste;
	while (console_input_poll())
		;
	CHECK_EQ(guest[1].uart.rx_count, VUART_FIFO_LEN);
	CHECK(console_input_waits());
	got[0] = 0;
	for (unsigned i = 0; i < 5; i++) {
		strcat(got, received(1));
		console_input_poll();
	}
	CHECK(!console_input_waits());
	CHECK(!strcmp(got, paste));
	/* A guest that reads nothing does not keep us from the others. */
	fake_console_input = paste;
	while (console_input_poll())
		;
	fake_console_input = paste;
	while (console_input_poll())
		;
	fake_console_input = "\x1d"
	                     "1ok";
	/* Nor does the I/O core wait for a guest that is at its devices. */
	held_lock = &guest[0].device_lock;
	fake_relax = on_relax;
	spins = 0;
	spin_lock(held_lock);
	console_input_poll();
	CHECK_EQ(spins, 0);
	CHECK(console_input_waits());
	spin_unlock(held_lock);
	console_input_poll();
	CHECK(!strcmp(received(0), "ok"));
	CHECK(!console_input_waits());
	CHECK_EQ(atomic_load(&guest[0].device_lock.held), 0);
}

TESTS(T(one_guest_is_raw), T(several_share_by_lines), T(unfinished_lines),
      T(a_halt_does_not_wait_for_neighbours), T(long_lines), T(a_stranger_is_silent),
      T(input_follows_focus), T(full_receiver_keeps_the_rest))
