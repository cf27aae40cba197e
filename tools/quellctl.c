/*
 * quellctl: asks the Quell below this guest to poll otherwise, to begin a phase of its accounts, or
 * for its counts (docs/control.md). Linux on x86-64, static, without a C library; needs no
 * privilege.
 *
 * gcc -O2 -static -nostdlib -ffreestanding -fno-stack-protector -I. tools/quellctl.c -o quellctl
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/control_abi.h"

#define NAME_BYTES 32u
#define WAIT_TRIES 2000u /* of 1 ms */

enum { EXIT_OK, EXIT_REFUSED, EXIT_USAGE };

/* --- the system ------------------------------------------------------------------------------- */

enum { SYS_WRITE = 1, SYS_NANOSLEEP = 35, SYS_EXIT_GROUP = 231 };

static long syscall3(long number, long a, long b, long c)
{
	long result;

	__asm__ volatile("syscall"
	                 : "=a"(result)
	                 : "a"(number), "D"(a), "S"(b), "d"(c)
	                 : "rcx", "r11", "memory");
	return result;
}

static void sleep_1ms(void)
{
	long time[2] = {0, 1000000};

	syscall3(SYS_NANOSLEEP, (long)time, 0, 0);
}

/* --- text: one buffer for each of the two outputs -----------------------------------------------
 */

static struct text {
	int fd;
	unsigned len;
	char buf[4096];
} out = {.fd = 1}, err = {.fd = 2};

static void flush(struct text *t)
{
	unsigned done = 0;

	while (done < t->len) {
		long n = syscall3(SYS_WRITE, t->fd, (long)(t->buf + done), t->len - done);

		if (n <= 0)
			break;
		done += (unsigned)n;
	}
	t->len = 0;
}

static void put_char(struct text *t, char c)
{
	if (t->len == sizeof(t->buf))
		flush(t);
	t->buf[t->len++] = c;
}

static unsigned length(const char *s)
{
	unsigned n = 0;

	while (s[n])
		n++;
	return n;
}

static bool same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

/* Text in a column: width > 0 pads on the left, width < 0 on the right. */
static void put(struct text *t, const char *s, int width)
{
	int pad = (width < 0 ? -width : width) - (int)length(s);

	for (int i = 0; width > 0 && i < pad; i++)
		put_char(t, ' ');
	while (*s)
		put_char(t, *s++);
	for (int i = 0; width < 0 && i < pad; i++)
		put_char(t, ' ');
}

/* A number with so many digits after the point. */
static void put_fixed(struct text *t, uint64_t n, unsigned decimals, const char *unit, int width)
{
	char buf[40];
	unsigned at = sizeof(buf), unit_len = length(unit), digits = 0;

	buf[--at] = 0;
	for (unsigned i = unit_len; i-- > 0;)
		buf[--at] = unit[i];
	do {
		if (digits == decimals && digits)
			buf[--at] = '.';
		buf[--at] = (char)('0' + n % 10);
		n /= 10;
		digits++;
	} while (n || digits <= decimals);
	put(t, buf + at, width);
}

static void put_number(struct text *t, uint64_t n, int width)
{
	put_fixed(t, n, 0, "", width);
}

static __attribute__((noreturn)) void leave(int code)
{
	flush(&out);
	flush(&err);
	for (;;)
		syscall3(SYS_EXIT_GROUP, code, 0, 0);
}

static __attribute__((noreturn)) void fail(int code, const char *what, const char *more)
{
	put(&err, "quellctl: ", 0);
	put(&err, what, 0);
	put(&err, more, 0);
	put(&err, "\n", 0);
	leave(code);
}

/* --- Quell -------------------------------------------------------------------------------------
 */

static uint32_t flags, abi_version;

static void cpuid(uint32_t leaf, uint32_t r[4])
{
	__asm__ volatile("cpuid"
	                 : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3])
	                 : "a"(leaf), "c"(0));
}

/* The instruction is undefined where nobody intercepts it: ask CPUID first, which always works. */
static void quell_find(void)
{
	const char *signature = QUELL_CPUID_SIGNATURE;
	uint32_t r[4];

	cpuid(1, r);
	if (r[2] >> 31) {
		cpuid(QUELL_CPUID, r);
		for (unsigned i = 0; i < 12; i++)
			if ((char)(r[1 + i / 4] >> i % 4 * 8) != signature[i])
				r[0] = 0;
		if (r[0] >= QUELL_CPUID_FEATURES) {
			cpuid(QUELL_CPUID_FEATURES, r);
			abi_version = r[0];
			flags = r[1];
			return;
		}
	}
	fail(EXIT_REFUSED, "this machine is not a guest of Quell", "");
}

/* Arguments and results in r; returns 0 or a negative error. */
static long call(enum quell_op op, uint64_t r[6])
{
	register uint64_t r8 __asm__("r8") = r[5];
	long result = QUELL_CALL(op);

	if (flags & QUELL_FLAG_VMMCALL)
		__asm__ volatile("vmmcall"
		                 : "+a"(result), "+b"(r[0]), "+c"(r[1]), "+d"(r[2]), "+S"(r[3]),
		                   "+D"(r[4]), "+r"(r8)
		                 :
		                 : "memory");
	else
		__asm__ volatile("vmcall"
		                 : "+a"(result), "+b"(r[0]), "+c"(r[1]), "+d"(r[2]), "+S"(r[3]),
		                   "+D"(r[4]), "+r"(r8)
		                 :
		                 : "memory");
	r[5] = r8;
	return result;
}

static void error_explain(long error)
{
	switch (-error) {
	case 0: return;
	case QUELL_EPERM:
		fail(EXIT_REFUSED, "refused: this guest's manifest does not say control = true",
		     "");
	case QUELL_ENOENT:
		fail(EXIT_REFUSED, "no such disk or queue: disks and queues count from 0", "");
	case QUELL_EINVAL:
		fail(EXIT_REFUSED, "a phase's name is 1 to 31 of A-Z a-z 0-9 - _ . : = + / @ %",
		     "");
	case QUELL_ENOSPC:
		fail(EXIT_REFUSED, "no more phases: as many as there can be have begun", "");
	case QUELL_ERANGE:
		fail(EXIT_REFUSED, "no such policy: auto, always, or 0 to 1000000000 ns", "");
	case QUELL_ENOSYS:
		fail(EXIT_REFUSED, "this Quell does not know the operation: use its own quellctl",
		     "");
	default: fail(EXIT_REFUSED, "refused for a reason this quellctl does not know", "");
	}
}

/* As call, with up to four arguments; ends the program on an error. */
static void ask(enum quell_op op, uint64_t r[6], uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	r[0] = a;
	r[1] = b;
	r[2] = c;
	r[3] = d;
	r[4] = r[5] = 0;
	error_explain(call(op, r));
}

/* --- poll ----------------------------------------------------------------------------------------
 */

static bool number_read(const char *s, uint64_t *n)
{
	*n = 0;
	if (!*s)
		return false;
	for (; *s; s++) {
		if (*s < '0' || *s > '9' || *n > (UINT64_MAX - 9) / 10)
			return false;
		*n = *n * 10 + (uint64_t)(*s - '0');
	}
	return true;
}

static void policy_put(uint64_t policy)
{
	if (policy == QUELL_POLL_AUTO)
		put(&out, "auto", 0);
	else if (policy == QUELL_POLL_ALWAYS)
		put(&out, "always", 0);
	else
		put_number(&out, policy, 0);
}

/* Calls visit for each queue that is meant. */
static void queues_each(uint64_t disk, uint64_t queue, void (*visit)(uint64_t disk, uint64_t queue))
{
	uint64_t r[6], disks;

	ask(QUELL_GUEST, r, 0, 0, 0, 0);
	disks = r[1];
	for (uint64_t d = 0; d < disks; d++) {
		if (disk != QUELL_ALL && disk != d)
			continue;
		for (uint64_t q = 0;; q++) {
			r[0] = d;
			r[1] = q;
			if (call(QUELL_POLL_GET, r))
				break;
			if (queue == QUELL_ALL || queue == q)
				visit(d, q);
		}
	}
}

/* Returns when the I/O core goes by the new policy. */
static void poll_wait(uint64_t disk, uint64_t queue)
{
	uint64_t r[6];

	for (unsigned i = 0; i < WAIT_TRIES; i++) {
		ask(QUELL_POLL_GET, r, disk, queue, 0, 0);
		if (r[0] == r[1])
			return;
		sleep_1ms();
	}
	fail(EXIT_REFUSED, "the I/O core did not take the policy over within 2 s", "");
}

static void poll_show(uint64_t disk, uint64_t queue)
{
	uint64_t r[6];

	ask(QUELL_POLL_GET, r, disk, queue, 0, 0);
	put(&out, "disk ", 0);
	put_number(&out, disk, 0);
	put(&out, " queue ", 0);
	put_number(&out, queue, 0);
	put(&out, " poll ", 0);
	policy_put(r[1]);
	put(&out, "\n", 0);
}

static void poll_command(int argc, char **argv)
{
	uint64_t policy = 0, which[2] = {QUELL_ALL, QUELL_ALL}, r[6];

	for (int i = 3; i < argc; i++)
		if (i > 4 || (!same(argv[i], "all") && !number_read(argv[i], &which[i - 3])))
			fail(EXIT_USAGE, "not a disk or queue: ", argv[i]);
	if (argc > 2) {
		if (same(argv[2], "auto"))
			policy = QUELL_POLL_AUTO;
		else if (same(argv[2], "always"))
			policy = QUELL_POLL_ALWAYS;
		else if (!number_read(argv[2], &policy))
			fail(EXIT_USAGE, "not a policy: ", argv[2]);
		ask(QUELL_POLL_SET, r, which[0], which[1], policy, 0);
		queues_each(which[0], which[1], poll_wait);
	}
	queues_each(which[0], which[1], poll_show);
}

/* --- mark
 * ------------------------------------------------------------------------------------------ */

static void mark_command(const char *name)
{
	uint64_t r[6] = {0}, phase;

	if (length(name) >= NAME_BYTES)
		error_explain(-QUELL_EINVAL);
	for (unsigned i = 0; name[i]; i++)
		r[i / 8] |= (uint64_t)(unsigned char)name[i] << i % 8 * 8;
	error_explain(call(QUELL_MARK, r));
	phase = r[0];
	/* So that what comes next is all in the new phase. */
	for (unsigned i = 0; i < WAIT_TRIES; i++) {
		ask(QUELL_PHASE, r, phase, 0, 0, 0);
		if (r[5]) {
			put(&out, "phase ", 0);
			put_number(&out, phase, 0);
			put(&out, " ", 0);
			put(&out, name, 0);
			put(&out, "\n", 0);
			return;
		}
		sleep_1ms();
	}
	fail(EXIT_REFUSED, "not every processor has begun the phase within 2 s", "");
}

/* --- stats
 * ----------------------------------------------------------------------------------------- */

struct tally {
	uint64_t count, total, min, max;
	double square;
};

static uint64_t vcpus, disks, phases, reasons;
static double tsc_hz;

static void tally_take(struct tally *t, const uint64_t r[6])
{
	if (!r[0])
		return;
	if (!t->count || r[2] < t->min)
		t->min = r[2];
	if (r[3] > t->max)
		t->max = r[3];
	t->count += r[0];
	t->total += r[1];
	t->square += (double)r[4] + (double)r[5] * 18446744073709551616.0;
}

static double root(double x)
{
	double result;

	__asm__("sqrtsd %1, %0" : "=x"(result) : "x"(x));
	return result;
}

/* Relative standard error of the mean in 1/10000. */
static uint64_t tally_rse(const struct tally *t)
{
	double n = (double)t->count, mean = n ? (double)t->total / n : 0, variance;

	if (t->count < 2 || mean <= 0)
		return 0;
	variance = (t->square - mean * (double)t->total) / (n - 1);
	return variance > 0 ? (uint64_t)(root(variance / n) / mean * 10000.0) : 0;
}

/* Cycles as us with two decimals. */
static void put_us(uint64_t cycles, int width)
{
	put_fixed(&out, (uint64_t)((double)cycles / tsc_hz * 1e8), 2, "us", width);
}

static void put_percent(uint64_t part, uint64_t whole, int width)
{
	put_fixed(&out, whole ? (uint64_t)((double)part * 1e4 / (double)whole) : 0, 2, "%", width);
}

static void tally_put(const char *name, const struct tally *t, const struct tally *all)
{
	put(&out, name, -20);
	put_number(&out, t->count, 11);
	put_percent(t->count, all->count, 10);
	put_percent(t->total, all->total, 9);
	put_us(t->min, 13);
	put_us(t->max, 13);
	put_us(t->total / t->count, 13);
	put(&out, " ( +- ", 0);
	put_fixed(&out, tally_rse(t), 2, "%", 7);
	put(&out, " )\n", 0);
}

static void kick_take(uint64_t disk, uint64_t queue, struct tally *t)
{
	uint64_t r[6];

	for (uint64_t v = 0; v < vcpus; v++) {
		for (uint64_t p = 0; p < phases; p++) {
			ask(QUELL_KICK, r, disk, queue, v, p);
			tally_take(t, r);
		}
	}
}

static struct tally kicks;

static void kick_add(uint64_t disk, uint64_t queue)
{
	kick_take(disk, queue, &kicks);
}

#define REASON_MAX 64u

static void exits_show(void)
{
	static struct tally tally[REASON_MAX], all;
	uint64_t r[6];

	for (uint64_t e = 0; e < reasons; e++) {
		for (uint64_t v = 0; v < vcpus; v++) {
			for (uint64_t p = 0; p < phases; p++) {
				ask(QUELL_EXIT, r, e, v, p, 0);
				tally_take(&tally[e], r);
			}
		}
		all.count += tally[e].count;
		all.total += tally[e].total;
	}
	queues_each(QUELL_ALL, QUELL_ALL, kick_add);
	all.count += kicks.count;
	all.total += kicks.total;
	put(&out,
	    "VM-EXIT                 Samples  Samples%    Time%     Min Time     Max Time"
	    "     Avg time\n",
	    0);
	for (uint64_t e = 0; e < reasons; e++) {
		if (!tally[e].count)
			continue;
		ask(QUELL_REASON, r, e, 0, 0, 0);
		tally_put((const char *)r, &tally[e], &all);
	}
	if (kicks.count)
		tally_put("KICK", &kicks, &all);
}

static void queue_show(uint64_t disk, uint64_t queue)
{
	static const char *const state[] = {"detached", "armed", "cold", "hot", "draining"};
	uint64_t sum[6] = {0}, bytes[2] = {0}, r[6], now = 0;

	for (uint64_t p = 0; p < phases; p++) {
		ask(QUELL_QUEUE, r, disk, queue, p, 0);
		for (unsigned i = 0; i < 6; i++)
			sum[i] += r[i];
		ask(QUELL_BYTES, r, disk, queue, p, 0);
		bytes[0] += r[0];
		bytes[1] += r[1];
		now = r[3];
	}
	put_number(&out, disk, 4);
	put_number(&out, queue, 6);
	put(&out, now < 5 ? state[now] : "?", 9);
	for (unsigned i = 0; i < 6; i++)
		put_number(&out, sum[i], 11);
	put_number(&out, bytes[0], 14);
	put_number(&out, bytes[1], 14);
	put(&out, "\n", 0);
}

static void loop_show(void)
{
	static const char *const name[] = {" passes, ", " empty, ", " sleeps, ", " wakes, ",
	                                   " doorbells\n"};
	uint64_t sum[6] = {0}, r[6];

	for (uint64_t p = 0; p < phases; p++) {
		ask(QUELL_LOOP, r, p, 0, 0, 0);
		for (unsigned i = 0; i < 6; i++)
			sum[i] += r[i];
	}
	put(&out, "I/O core: ", 0);
	for (unsigned i = 0; i < 5; i++) {
		put_number(&out, sum[i], 0);
		put(&out, name[i], 0);
	}
}

static void times_show(void)
{
	uint64_t r[6], part[3], wall;

	for (uint64_t v = 0; v < vcpus; v++) {
		part[0] = part[1] = part[2] = wall = 0;
		for (uint64_t p = 0; p < phases; p++) {
			ask(QUELL_TIME, r, v, p, 0, 0);
			for (unsigned i = 0; i < 3; i++)
				part[i] += r[i];
			wall += r[3] ? r[3] : r[4] ? r[5] - r[4] : 0;
		}
		put(&out, "vCPU ", 0);
		put_number(&out, v, 0);
		put(&out, ": in guest ", 0);
		put_percent(part[0], wall, 0);
		put(&out, ", in exits ", 0);
		put_percent(part[1], wall, 0);
		put(&out, ", halted ", 0);
		put_percent(part[2], wall, 0);
		put(&out, " of ", 0);
		put_fixed(&out, (uint64_t)((double)wall / tsc_hz * 1000), 3, " s\n", 0);
	}
}

static void stats_command(void)
{
	uint64_t r[6];

	ask(QUELL_GUEST, r, 0, 0, 0, 0);
	vcpus = r[0];
	disks = r[1];
	phases = r[2];
	reasons = r[3] < REASON_MAX ? r[3] : REASON_MAX;
	tsc_hz = (double)r[4];
	times_show();
	exits_show();
	put(&out,
	    "disk queue    state   requests      kicks interrupts suppressed       arms"
	    "    disarms    read bytes written bytes\n",
	    0);
	queues_each(QUELL_ALL, QUELL_ALL, queue_show);
	loop_show();
}

/* --- version, and which command ------------------------------------------------------------------
 */

static void version_command(void)
{
	put(&out, "Quell control interface ", 0);
	put_number(&out, abi_version, 0);
	put(&out, flags & QUELL_FLAG_VMMCALL ? ", vmmcall" : ", vmcall", 0);
	put(&out, flags & QUELL_FLAG_CONTROL ? ", control = true\n" : ", control = false\n", 0);
}

static const char usage[] =
        "usage: quellctl poll [auto|always|NANOSECONDS [DISK [QUEUE]]]\n"
        "                          how disks' queues are polled; 0: not at all\n"
        "       quellctl mark NAME  begins a phase of the accounts\n"
        "       quellctl stats      exits, times and queues of this guest so far\n"
        "       quellctl version\n";

static int run(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";

	if (same(command, "-h") || same(command, "--help") || same(command, "help")) {
		put(&out, usage, 0);
		return EXIT_OK;
	}
	if (same(command, "poll") && argc <= 5) {
		quell_find();
		poll_command(argc, argv);
	} else if (same(command, "mark") && argc == 3) {
		quell_find();
		mark_command(argv[2]);
	} else if (same(command, "stats") && argc == 2) {
		quell_find();
		stats_command();
	} else if (same(command, "version") && argc == 2) {
		quell_find();
		version_command();
	} else {
		put(&err, usage, 0);
		return EXIT_USAGE;
	}
	return EXIT_OK;
}

/* The stack as the kernel leaves it: argc, then argv. */
__attribute__((noreturn, used)) void start_c(long *stack);

void start_c(long *stack)
{
	leave(run((int)stack[0], (char **)(stack + 1)));
}

__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall "
        "start_c\n");
