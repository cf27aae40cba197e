/*
 * The report: rows with known numbers, and every line of JSON parsed by a strict little parser.
 */
#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"

#include "tests/fake/bio_fake.h"
#include "virtio/blk.h"
#include "vmm/phase.h"
#include "vmm/report.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static struct ioloop loop;
static struct bio_fake disk;
static struct vblk *blk;

const char *vm_end_name(enum vm_end end)
{
	return end == VM_POWER_OFF ? "power-off" : "?";
}

void vm_end(struct vm *vm, enum vm_end reason)
{
	(void)vm;
	(void)reason;
}

static void setup(unsigned vcpus)
{
	struct bio_extent extent = {&disk.dev, 0, 64};

	fx_init(vcpus);
	fx_config.control = true;
	fx_config.disk[0].num_queues = 2;
	fx_config.disk[0].queue_size = 16;
	memcpy(fx_config.disk[0].source, "PARTLABEL=a\"b\\c", 16);
	bio_fake_init(&disk, 64, 512);
	disk.dev.name = "fake0";
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, &fx_config.disk[0], extent, &fx_vm.mem, "s"))
		abort();
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	for (unsigned i = 0; i < 2; i++)
		ioloop_queue_add(&loop, &blk->queue[i].ioq);
	fx_vm.disk[0] = blk;
	fx_vm.disk_count = 1;
	if (phases_create(&fx_vm, &loop))
		abort();
	atomic_store(&fx_vm.end, VM_POWER_OFF);
}

static void print(void)
{
	struct vm *vms[] = {&fx_vm};
	struct report report = {vms, 1, &loop, 5000000000};

	report_print(&report);
	bio_fake_free(&disk);
}

static void mark(const char *name)
{
	char padded[PHASE_NAME_BYTES] = {0};

	memcpy(padded, name, strlen(name));
	phase_mark(&fx_vm, padded);
	for (unsigned i = 0; i < fx_vm.vcpu_count; i++)
		phase_follow(&fx_vcpu[i], fake_tsc);
	ioloop_pass(&loop);
}

/* --- JSON: a value at s; returns what follows it, or NULL
 * --------------------------------------------- */

static unsigned numbers;

static const char *json_value(const char *s, unsigned depth);

static const char *json_text(const char *s)
{
	if (*s++ != '"')
		return NULL;
	for (; *s != '"'; s++) {
		if ((unsigned char)*s < ' ')
			return NULL;
		if (*s == '\\' && !strchr("\"\\u", *++s))
			return NULL;
	}
	return s + 1;
}

static const char *json_list(const char *s, unsigned depth, char close, bool named)
{
	if (*s == close)
		return s + 1;
	for (;;) {
		if (named) {
			s = json_text(s);
			if (!s || *s++ != ':')
				return NULL;
		}
		s = json_value(s, depth + 1);
		if (!s)
			return NULL;
		if (*s == close)
			return s + 1;
		if (*s++ != ',')
			return NULL;
	}
}

static const char *json_value(const char *s, unsigned depth)
{
	if (depth > 12)
		return NULL;
	if (*s == '{')
		return json_list(s + 1, depth, '}', true);
	if (*s == '[')
		return json_list(s + 1, depth, ']', false);
	if (*s == '"')
		return json_text(s);
	if (!isdigit((unsigned char)*s) || (*s == '0' && isdigit((unsigned char)s[1])))
		return NULL;
	while (isdigit((unsigned char)*s))
		s++;
	numbers++;
	return s;
}

/* Checks every line that begins with word; returns how many there are. */
static unsigned json_lines(const char *word)
{
	unsigned count = 0;
	const char *at = fake_console;

	while ((at = strstr(at, word))) {
		const char *end;

		CHECK(at == fake_console || at[-1] == '\n');
		at += strlen(word);
		end = json_value(at, 0);
		CHECK(end && end[0] == '\r' && end[1] == '\n');
		count++;
	}
	return count;
}

static bool log_has(const char *text)
{
	if (strstr(fake_log, text))
		return true;
	printf("  the log lacks \"%s\"; it is:\n%s\n", text, fake_log);
	return false;
}

static bool json_has(const char *text)
{
	if (strstr(fake_console, text))
		return true;
	printf("  the console lacks %s; it is:\n%s\n", text, fake_console);
	return false;
}

/* --- tests
 * -----------------------------------------------------------------------------------------------
 */

static void test_rows(void)
{
	struct exit_stats *s;

	setup(1);
	s = fx_vcpu[0].stats;
	for (unsigned i = 0; i < 3; i++)
		tally_add(&s->reason[HVM_EXIT_HLT], 100000 * (i + 1)); /* 100, 200, 300 us */
	tally_add(&s->kick[1], 1234567);
	s->guest_tsc = 700000;
	s->handling_tsc = 200000;
	s->halted_tsc = 90000;
	s->wall_tsc = 1000000;
	blk->queue[1].ioq.counts.requests = 42;
	atomic_store(&blk->queue[1].ioq.kicks, 1);
	tally_add(&blk->queue[1].interrupt, 5000);
	print();
	CHECK(log_has("guest fx: 4 exits in 0.001 s; time in guest 70.00%, in exits 20.00%, halted "
	              "9.00%, rest "
	              "1.00%; fake on "));
	CHECK(log_has("  VM-EXIT                 Samples  Samples%    Time%     Min Time     Max "
	              "Time     Avg time"));
	/* Of two reasons the one that took longer first. */
	CHECK(log_has("  OTHER                         1    25.00%   67.29%    1234.56us    "
	              "1234.56us    1234.56us"
	              " ( +-   0.00% )\n"));
	CHECK(log_has("  OTHER                         3    75.00%   32.70%     100.00us     "
	              "300.00us     200.00us"
	              " ( +-  28.86% )\n"));
	CHECK(log_has("  disk 0 queue 1                1   100.00%  100.00%    1234.56us"));
	CHECK(log_has("  disk 0 queue 1                1   100.00%  100.00%       5.00us"));
	CHECK(!strstr(fake_log, "disk 0 queue 0 "));
	CHECK(!strstr(fake_log, ", phase 0")); /* unmarked: the whole is all there is */
	CHECK_EQ(json_lines("quell-stats: "), 1);
	CHECK_EQ(json_lines("quell-phase: "), 1);
	CHECK(numbers > 100);
	CHECK(json_has("\"source\":\"PARTLABEL=a\\\"b\\\\c\""));
	CHECK(json_has("\"ended\":\"power-off\",\"vcpus\":1,\"exit_count\":4,\"wall_ns\":1000000,"
	               "\"guest_ns\":700000,"
	               "\"handling_ns\":200000,\"halted_ns\":90000,\"rest_ns\":10000"));
	CHECK(json_has(
	        "\"kick\":{\"count\":1,\"total_ns\":1234567,\"min_ns\":1234567,\"max_ns\":1234567,"
	        "\"mean_ns\":1234567,\"rse_e4\":0,\"log2_cycles\":{\"20\":1}}"));
	CHECK(json_has("\"rse_e4\":2886,\"log2_cycles\":{\"16\":1,\"17\":1,\"18\":1}}"));
}

static void test_phases(void)
{
	setup(2);
	tally_add(&fx_vcpu[0].stats->reason[HVM_EXIT_CPUID], 500);
	blk->queue[0].ioq.counts.requests = 10;
	mark("qd1");
	tally_add(&fx_vcpu[0].stats->reason[HVM_EXIT_CPUID], 9);
	tally_add(&fx_vcpu[1].stats->reason[HVM_EXIT_CPUID], 11);
	blk->queue[0].ioq.counts.requests = 15;
	fake_tsc += 1000;
	mark("qd64");
	blk->queue[0].ioq.counts.requests = 115;
	print();
	CHECK(log_has("guest fx, phase 0 start: 1 exits"));
	CHECK(log_has("guest fx, phase 1 qd1: 2 exits"));
	CHECK(log_has("guest fx, phase 2 qd64: 0 exits"));
	CHECK(log_has("guest fx, vCPU 1: 1 exits"));
	CHECK(log_has("guest fx: 3 exits"));
	CHECK_EQ(json_lines("quell-phase: "), 3);
	CHECK_EQ(json_lines("quell-stats: "), 1);
	/* A phase's minimum is its own, and the whole run's that of all. */
	CHECK(json_has("\"name\":\"qd1\",\"begin_ns\":0,\"vcpus\":[{\"exit_count\":1,"));
	CHECK(json_has("\"OTHER\":{\"count\":2,\"total_ns\":20,\"min_ns\":9,\"max_ns\":11,\"mean_"
	               "ns\":10,"));
	CHECK(json_has("\"OTHER\":{\"count\":3,\"total_ns\":520,\"min_ns\":9,\"max_ns\":500,"));
	CHECK(json_has("\"name\":\"qd1\",\"begin_ns\":0,\"exit_count\":2,"));
	CHECK(json_has("\"name\":\"qd64\",\"begin_ns\":1000,\"exit_count\":0,"));
	CHECK(json_has("\"requests\":5,"));
	CHECK(json_has("\"requests\":100,"));
	CHECK(json_has("\"requests\":115,"));
}

/* As much as can be: far more than any one buffer, and still JSON. */
static void test_full(void)
{
	setup(2);
	for (unsigned phase = 0; phase < 6; phase++) {
		for (unsigned v = 0; v < 2; v++) {
			for (unsigned r = 0; r < HVM_EXIT_COUNT; r++)
				for (unsigned b = 0; b < 64; b += 11)
					tally_add(&fx_vcpu[v].stats->reason[r], UINT64_MAX >> b);
			tally_add(&fx_vcpu[v].stats->kick[0], UINT64_MAX);
			fx_vcpu[v].stats->guest_tsc = fx_vcpu[v].stats->wall_tsc = UINT64_MAX;
		}
		memset(&blk->queue[0].ioq.counts, 0xff, sizeof(blk->queue[0].ioq.counts));
		memset(&loop.counts, 0xff, sizeof(loop.counts));
		if (phase < 5)
			mark("a-name-of-as-many-bytes-as-it-c");
	}
	/* The fake console holds 64 KiB; a report of this size would not fit it whole. */
	fx_vm.phases.count = 2;
	print();
	CHECK_EQ(json_lines("quell-phase: "), 2);
	CHECK(strstr(fake_console, "quell-stats: ") != NULL);
}

static void test_nothing(void)
{
	struct report report = {NULL, 0, &loop, 0};

	setup(1);
	report_print(&report);
	CHECK_EQ(json_lines("quell-stats: "), 1);
	bio_fake_free(&disk);
}

TESTS(T(test_rows), T(test_phases), T(test_full), T(test_nothing))
