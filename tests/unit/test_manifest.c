/*
 * The manifest: what each key means, its default, and the exact position and words of its errors.
 * tests/unit/test_manifest_toml.py compares the grammar with another TOML reader.
 */
#include "tests/unit/test.h"
#include "vmm/manifest.h"
#include <stdlib.h>
#include <string.h>

static struct manifest m;
static struct manifest_error err;

/* From memory exactly as long as the text, so that the sanitizer sees a read beyond it. */
static int parse(const char *text)
{
	size_t len = strlen(text);
	char *copy = malloc(len ? len : 1);
	int result;

	memcpy(copy, text, len);
	result = manifest_parse(copy, len, &m, &err);
	free(copy);
	return result;
}

#define DISK  "[[guest.disk]]\nsource = \"nvme0n1p2\"\n"
#define GUEST "[[guest]]\nname = \"a\"\nkernel = \"k\"\nmemory = \"512M\"\n"

static void defaults(void)
{
	CHECK_EQ(parse(GUEST DISK), 0);
	CHECK_EQ(m.io_core, 0);
	CHECK_EQ(m.io_core_pos.line, 0);
	CHECK_EQ(m.idle, MANIFEST_IDLE_AUTO);
	CHECK_EQ(m.poll_weight, 16);
	CHECK_EQ(m.disable_count, 0);
	CHECK_EQ(m.guest_count, 1);
	CHECK_EQ(m.guest[0].memory_bytes, 512 * MIB);
	CHECK_EQ(m.guest[0].vcpus, 1);
	CHECK_EQ(m.guest[0].cpu_count, 0);
	CHECK(m.guest[0].serial && !m.guest[0].control);
	CHECK_EQ(m.guest[0].unknown_msr, MANIFEST_MSR_FAULT);
	CHECK(m.guest[0].initrd[0] == '\0' && m.guest[0].cmdline[0] == '\0');
	CHECK_EQ(m.guest[0].disk_count, 1);
	CHECK_EQ(m.guest[0].disk[0].num_queues, 1);
	CHECK_EQ(m.guest[0].disk[0].queue_size, 256);
	CHECK_EQ(m.guest[0].disk[0].poll, MANIFEST_POLL_AUTO);
	CHECK(m.guest[0].disk[0].coalesce);
	CHECK(!m.guest[0].disk[0].readonly);
}

static void every_key(void)
{
	CHECK_EQ(parse("[host]\nio_core = 3\nidle = \"hlt\"\ndisable = [\"vpid\", \"ept-1g\"]\n"
	               "[[guest]]\nname = \"deb-1.x\"\nkernel = \"d/k\"\ninitrd = 'i'\ncmdline = "
	               "\"a=\\\"b\\\"\"\n"
	               "memory = \"2G\"\nvcpus = 3\ncpus = \"4-5,1\"\nserial = \"none\"\ncontrol = "
	               "true\n"
	               "unknown_msr = \"ignore\"\n[[guest.disk]]\nsource = "
	               "\"ram:disk.img\"\nreadonly = true\n"
	               "num_queues = 2\nqueue_size = 64\npoll_ns = 50_000\n[[guest.disk]]\n"
	               "source = \"null:1G\"\npoll_ns = \"always\"\n"
	               "coalesce = \"off\"\n"),
	         0);
	CHECK_EQ(m.io_core, 3);
	CHECK_EQ(m.io_core_pos.line, 2);
	CHECK_EQ(m.io_core_pos.col, 11);
	CHECK_EQ(m.idle, MANIFEST_IDLE_HLT);
	CHECK_EQ(m.disable_count, 2);
	CHECK(strcmp(m.disable[1], "ept-1g") == 0);
	CHECK_EQ(m.disable_pos[1].col, 20);
	CHECK(strcmp(m.guest[0].name, "deb-1.x") == 0 && strcmp(m.guest[0].kernel, "d/k") == 0);
	CHECK(strcmp(m.guest[0].initrd, "i") == 0 && strcmp(m.guest[0].cmdline, "a=\"b\"") == 0);
	CHECK_EQ(m.guest[0].memory_bytes, 2 * GIB);
	CHECK_EQ(m.guest[0].vcpus, 3);
	CHECK_EQ(m.guest[0].cpu_count, 3);
	CHECK(m.guest[0].cpus[0] == 4 && m.guest[0].cpus[1] == 5 && m.guest[0].cpus[2] == 1);
	CHECK(!m.guest[0].serial && m.guest[0].control);
	CHECK_EQ(m.guest[0].unknown_msr, MANIFEST_MSR_IGNORE);
	CHECK(m.guest[0].disk[0].readonly);
	CHECK_EQ(m.guest[0].disk[0].num_queues, 2);
	CHECK_EQ(m.guest[0].disk[0].queue_size, 64);
	CHECK_EQ(m.guest[0].disk[0].poll, MANIFEST_POLL_NS);
	CHECK_EQ(m.guest[0].disk[0].poll_ns, 50000);
	CHECK_EQ(m.guest[0].disk[1].poll, MANIFEST_POLL_ALWAYS);
	CHECK(m.guest[0].disk[0].coalesce && !m.guest[0].disk[1].coalesce);
	CHECK_EQ(m.guest[0].disk[1].source_pos.line, 23);
}

static void cpus_alone_count_vcpus(void)
{
	CHECK_EQ(parse(GUEST "cpus = [1, 2]\n" DISK), 0);
	CHECK_EQ(m.guest[0].vcpus, 2);
}

static void sharing_allowed(void)
{
	CHECK_EQ(parse(GUEST DISK
	               "[[guest]]\nname = \"b\"\nkernel = \"k\"\nmemory = \"512M\"\n" DISK
	               "readonly = true\n[[guest.disk]]\nsource = \"nvme0n1p3\"\n"
	               "[[guest.disk]]\nsource = \"null:1M\"\n[[guest.disk]]\nsource = "
	               "\"null:1M\"\n"),
	         0);
}

/* Nothing read beyond the end, wherever it is; every error has a position. */
static void truncated(void)
{
	static const char text[] =
	        "# \xc3\xa9\r\n[host]\r\nio_core = 0\ndisable = [ \"a\", 'b' ,\n]\n" GUEST
	        "cmdline = \"\\u00e9\\t\"\ncpus = \"1-1\"\n" DISK "poll_ns = \"auto\"";

	CHECK_EQ(parse(text), 0);
	for (size_t len = 0; len < sizeof(text) - 1; len++) {
		char *copy = malloc(len ? len : 1);

		memcpy(copy, text, len);
		if (manifest_parse(copy, len, &m, &err))
			CHECK(err.pos.line && err.pos.col && err.text[0]);
		free(copy);
	}
}

struct bad {
	const char *text;
	uint32_t line, col;
	const char *says; /* part of the error */
};

static const struct bad bad[] = {
        /* Grammar. */
        {"", 1, 1, "no guest: add a [[guest]]"},
        {"[host\n", 1, 6, "expected ]"},
        {"io_core 0\n", 1, 9, "expected = after the key \"io_core\""},
        {"[host]\nio_core = 0 1\n", 2, 13, "unexpected text after a value"},
        {"[host]\nio_core =\n", 2, 10, "value missing"},
        {"[host]\nidle = \"au\n", 2, 8, "string without an end"},
        {"[host]\nidle = \"a\\qb\"\n", 2, 10, "unknown escape"},
        {"[host]\nidle = \"\\u12\"\n", 2, 9, "\\u needs 4 hexadecimal digits"},
        {"[host]\nidle = \"\\ud800\"\n", 2, 9, "U+D800 is no Unicode character"},
        {"[host]\nidle = \"\\u0000\"\n", 2, 9, "NUL"},
        {"[host]\nidle = \"\"\"a\"\"\"\n", 2, 8, "multi-line strings"},
        {"[host]\n\"io_core\" = 0\n", 2, 1, "quoted keys are not part"},
        {"[host]\nio.core = 0\n", 2, 3, "dotted keys are not part"},
        {"[host]\nio_core = 0.5\n", 2, 11, "fractions are not part"},
        {"[host]\nio_core = nan\n", 2, 11, "fractions are not part"},
        {"[host]\nio_core = 1979-05-27\n", 2, 11, "dates and times"},
        {"[host]\nio_core = {}\n", 2, 11, "inline tables"},
        {"[host]\nio_core = 01\n", 2, 11, "may not begin with 0"},
        {"[host]\nio_core = 1__0\n", 2, 11, "malformed integer"},
        {"[host]\nio_core = 9223372036854775808\n", 2, 11, "does not fit in 64 bits"},
        {"[host]\ndisable = [\"a\"\n", 3, 1, "array without an end"},
        {"[host]\ndisable = [\"a\" \"b\"]\n", 2, 16, "expected , or ]"},
        {"[host]\ndisable = [\"a\", 1]\n", 2, 17, "all be of one type"},
        {"# \xc3\xa9 \xff\n", 1, 5, "byte 0xff is not UTF-8"},
        {"# \xed\xa0\x80\n", 1, 3, "not UTF-8"},
        {"# a\x01\n", 1, 4, "control character 0x01 in a comment"},
        {"[host]\rx", 1, 7, "carriage return without a line feed"},
        {"\xef\xbb\xbf[host]\n", 1, 1, "byte order mark"},
        {"[host]\nidle = Auto\n", 2, 8, "\"Auto\" is no value"},
        /* Tables and keys. */
        {"[hots]\n", 1, 1, "unknown table \"hots\""},
        {"[guest]\n", 1, 1, "write this table as [[guest]]"},
        {"[host]\n[host]\n", 2, 1, "[host] comes twice"},
        {"[[guest.disk]]\n", 1, 1, "there is none: move it below one"},
        {"io_core = 0\n", 1, 1,
         "key \"io_core\" does not belong in the top level: move it under [host]"},
        {GUEST "kernal = \"k\"\n", 5, 1,
         "unknown key \"kernal\" in [[guest]]: did you mean \"kernel\"?"},
        {GUEST "Initrd = \"k\"\n", 5, 1, "did you mean \"initrd\"?"},
        {GUEST "source = \"x\"\n", 5, 1, "move it under [[guest.disk]]"},
        {GUEST "disk = []\n", 5, 1, "begin it with [[guest.disk]]"},
        {GUEST "zzzzzzz = 1\n", 5, 1, "unknown key \"zzzzzzz\" in [[guest]]: remove it"},
        {GUEST "name = \"b\"\n", 5, 1, "key \"name\" comes twice"},
        /* Types and ranges. */
        {"[host]\nio_core = \"0\"\n", 2, 11, "\"io_core\" is a string: it needs a core number"},
        {"[host]\nio_core = 256\n", 2, 11, "\"io_core\" is 256: it must be from 0 to 255"},
        {"[host]\npoll_weight = 0\n", 2, 15, "\"poll_weight\" is 0: it must be from 1 to 1000"},
        {"[host]\nidle = \"nap\"\n", 2, 8, "\"idle\" may not be \"nap\""},
        {"[host]\ndisable = \"vpid\"\n", 2, 11, "\"disable\" is a string: it needs an array"},
        {"[host]\ndisable = [1]\n", 2, 12, "array of strings"},
        {"[[guest]]\nmemory = 512\n", 2, 10, "\"memory\" is an integer: it needs a string such as"},
        {"[[guest]]\nmemory = \"512MB\"\n", 2, 10, "write a size such as"},
        {"[[guest]]\nmemory = \"1M\"\n", 2, 10, "from \"16M\" to \"1T\""},
        {"[[guest]]\nmemory = \"99999999999999999999G\"\n", 2, 10, "write a size such as"},
        {"[[guest]]\nname = \"a b\"\n", 2, 8, "letters, digits"},
        {"[[guest]]\nkernel = \"../k\"\n", 2, 10, "must name a file beside quell.efi"},
        {"[[guest]]\nkernel = \"a\\\\k\"\n", 2, 10, "no \\"},
        {"[[guest]]\nvcpus = 0\n", 2, 9, "from 1 to 32"},
        {"[[guest]]\ncpus = \"1-\"\n", 2, 8, "write cores as \"1-2,4\""},
        {"[[guest]]\ncpus = \"3-1\"\n", 2, 8, "smaller number first"},
        {"[[guest]]\ncpus = [1, -2]\n", 2, 12, "array of core numbers"},
        {"[[guest]]\ncpus = [1,\n  1]\n", 3, 3, "core 1 twice"},
        {"[[guest]]\ncpus = \"0-4000000000\"\n", 2, 8, "too many cores"},
        {"[[guest]]\nserial = \"yes\"\n", 2, 10, "use \"host\" or \"none\""},
        {"[[guest]]\ncontrol = \"yes\"\n", 2, 11, "needs true or false"},
        {GUEST "[[guest.disk]]\nsource = \"sda\"\n", 6, 10, "no such kind of disk: use nvme0n1"},
        {GUEST "[[guest.disk]]\nsource = \"nvme0n0\"\n", 6, 10, "no such kind of disk"},
        {GUEST "[[guest.disk]]\nsource = \"nvme0n1p02\"\n", 6, 10, "no such kind of disk"},
        {GUEST "[[guest.disk]]\nsource = \"null:0\"\n", 6, 10, "multiple of 512"},
        {GUEST "[[guest.disk]]\nsource = \"PARTUUID=12\"\n", 6, 10, "write a UUID"},
        {GUEST "[[guest.disk]]\nsource = \"ram:\"\n", 6, 10, "name of a file"},
        {GUEST DISK "queue_size = 100\n", 7, 14, "power of two"},
        {GUEST DISK "num_queues = 33\n", 7, 14, "from 1 to 32"},
        {GUEST DISK "poll_ns = -1\n", 7, 11, "from 0 to 1000000000"},
        {GUEST DISK "poll_ns = \"never\"\n", 7, 11, "use \"auto\" or \"always\""},
        {GUEST DISK "coalesce = \"on\"\n", 7, 12, "use \"auto\" or \"off\""},
        {GUEST DISK "coalesce = true\n", 7, 12, "it needs \"auto\" or \"off\""},
        /* Missing keys, and checks across tables. */
        {"[[guest]]\nname = \"a\"\n", 1, 1, "[[guest]] a lacks a key: add one such as kernel"},
        {"\n[[guest]]\nkernel = \"a\"\n", 2, 1, "[[guest]] lacks a key: add one such as name"},
        {GUEST, 1, 1, "guest \"a\" has no disk"},
        {GUEST "[[guest.disk]]\n", 5, 1, "[[guest.disk]] without \"source\""},
        {GUEST "vcpus = 2\ncpus = [1]\n" DISK, 6, 8, "names 1 cores for 2 vCPUs"},
        {GUEST "cpus = [0]\n" DISK, 5, 8, "core 0 in \"cpus\", which is io_core"},
        {GUEST "cpus = [1, 2]\n" DISK "[[guest]]\nname = \"b\"\nkernel = \"k\"\nmemory = \"1G\"\n"
               "cpus = \"2-3\"\n[[guest.disk]]\nsource = \"null:1M\"\n",
         12, 8, "guest \"b\" has core 2 in \"cpus\", and so has guest \"a\" (line 5)"},
        {GUEST DISK GUEST "[[guest.disk]]\nsource = \"null:1M\"\n", 8, 8,
         "two guests are named \"a\""},
        {GUEST DISK DISK, 8, 10, "\"nvme0n1p2\" is written by two disks, here and at line 6"},
        {GUEST DISK "[[guest.disk]]\nsource = \"nvme0n1\"\n", 8, 10, "written by two disks"},
        {GUEST "[[guest.disk]]\nsource = \"PARTUUID=0123abcd-0123-0123-0123-0123456789ab\"\n"
               "[[guest.disk]]\nsource = \"PARTUUID=0123ABCD-0123-0123-0123-0123456789AB\"\n",
         8, 10, "written by two disks"},
};

static void errors(void)
{
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		bool right = parse(bad[i].text) == -EINVAL && err.pos.line == bad[i].line &&
		             err.pos.col == bad[i].col && strstr(err.text, bad[i].says);

		if (!right)
			printf("  wanted %u:%u: ...%s...\n  got    %u:%u: %s\n", bad[i].line,
			       bad[i].col, bad[i].says, err.pos.line, err.pos.col, err.text);
		CHECK(right);
	}
}

static void limits(void)
{
	static char text[64 * 1024];
	char *p = text;

	for (int i = 0; i < MANIFEST_GUEST_MAX + 1; i++)
		p += sprintf(p,
		             "[[guest]]\nname = \"g%d\"\nkernel = \"k\"\nmemory = \"16M\"\n"
		             "[[guest.disk]]\nsource = \"null:1M\"\n",
		             i);
	CHECK_EQ(parse(text), -EINVAL);
	CHECK_EQ(err.pos.line, MANIFEST_GUEST_MAX * 6 + 1);
	CHECK(strstr(err.text, "too many guests: at most 8"));

	p = text + sprintf(text, GUEST);
	for (int i = 0; i < MANIFEST_DISK_MAX + 1; i++)
		p += sprintf(p, "[[guest.disk]]\nsource = \"null:1M\"\n");
	CHECK_EQ(parse(text), -EINVAL);
	CHECK(strstr(err.text, "too many disks for one guest: at most 8"));

	/* The longest command line, and one byte more. */
	for (unsigned extra = 0; extra < 2; extra++) {
		p = text + sprintf(text, GUEST "cmdline = \"");
		for (unsigned i = 0; i < MANIFEST_CMDLINE_MAX - 1 + extra; i++)
			*p++ = 'x';
		sprintf(p, "\"\n" DISK);
		CHECK_EQ(parse(text), extra ? -EINVAL : 0);
		if (extra)
			CHECK(err.pos.line == 5 &&
			      strstr(err.text, "string too long: at most 2047 bytes"));
		else
			CHECK_EQ(strlen(m.guest[0].cmdline), MANIFEST_CMDLINE_MAX - 1);
	}
	CHECK_EQ(parse("[host]\ndisable = [\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"]\n"),
	         -EINVAL);
	CHECK(strstr(err.text, "\"disable\" is too long: at most 31 bytes"));
}

TESTS(T(defaults), T(every_key), T(cpus_alone_count_vcpus), T(sharing_allowed), T(truncated),
      T(errors), T(limits))
