/*
 * The manifest: any bytes are refused with a place and a reason, or mean something inside all of
 * the documented limits; and lines that say nothing change nothing.
 */
#include "tests/fuzz/fuzz.h"

#include "vmm/manifest.h"

const char fuzz_name[] = "manifest";
const unsigned fuzz_rounds = 8000;

static const char *const seeds[] = {
        "[host]\nio_core = 0\nidle = \"auto\"\npoll_weight = 16\ndisable = [\"vpid\", 'next-rip']\n"
        "[[guest]]\nname = \"debian\"\nkernel = \"vmlinuz\"\ninitrd = 'initrd.img'\n"
        "cmdline = \"console=ttyS0 quiet \\\"x\\\" \\u00e9 \\U0001F600\"\nmemory = \"1G\"\nvcpus = "
        "2\n"
        "cpus = [ 1, # first\n 0x2, ]\nserial = \"host\"\ncontrol = true\nunknown_msr = "
        "\"ignore\"\n"
        "[[guest.disk]]\nsource = \"nvme0n1p2\"\nreadonly = false\nnum_queues = +2\n"
        "queue_size = 1_024\npoll_ns = \"auto\"\ncoalesce = \"off\"\n"
        "  [[ guest . disk ]]\nsource = 'null:64M'\npoll_ns = 50_000\n",
        "[[guest]]\nname = \"b\"\t# tab\nkernel = \"dir/bzImage\"\nmemory = \"512M\"\ncpus = "
        "\"4-5,7\"\n"
        "vcpus = 3\n[[guest.disk]]\nsource = \"PARTLABEL=d\xc3\xa5ta\"\npoll_ns = 0\n",
        "[[guest]]\nname='a'\nkernel='k'\nmemory='16M'\n[[guest.disk]]\nsource='ram:f'\n"
        "readonly=true\n[[guest]]\nname='b'\nkernel='k'\nmemory='16M'\n[[guest.disk]]\n"
        "source='ram:f'\nreadonly=true\npoll_ns='always'\n",
        "[[guest]]\r\nname = \"a\"\r\nkernel = \"k\"\r\nmemory = \"1T\"\r\n[[guest.disk]]\r\n"
        "source = \"PARTUUID=01234567-89ab-cdef-0123-456789abcdef\"\r\nqueue_size = 2\r\n",
        "[host]\nio_core = 0b11\ndisable = [\n\"a\"\n,\n# c\n\"b\"\n]\n",
        "[[guest]]\nname = \"\"\"x\"\"\"\n",
};

size_t fuzz_seed(unsigned index, uint8_t *out)
{
	if (index >= ARRAY_LEN(seeds))
		return 0;
	memcpy(out, seeds[index], strlen(seeds[index]));
	return strlen(seeds[index]);
}

/* --- what holds ------------------------------------------------------------------------------- */

static bool is_ended(const char *text, size_t room)
{
	return memchr(text, 0, room) != NULL;
}

/* Inside the file: a line that exists, a column at most one past its end. */
static void pos_check(const uint8_t *text, size_t len_bytes, struct manifest_pos pos)
{
	size_t at = 0, end;

	FUZZ_CHECK(pos.line >= 1 && pos.col >= 1);
	for (uint32_t line = 1; line < pos.line; line++) {
		const uint8_t *nl = memchr(text + at, '\n', len_bytes - at);

		FUZZ_CHECK(nl);
		at = (size_t)(nl - text) + 1;
	}
	for (end = at; end < len_bytes && text[end] != '\n';)
		end++;
	FUZZ_CHECK(pos.col <= end - at + 1);
}

static void disk_check(const struct manifest_disk *d)
{
	FUZZ_CHECK(is_ended(d->source, sizeof(d->source)) && d->source[0]);
	FUZZ_CHECK(d->num_queues >= 1 && d->num_queues <= 32);
	FUZZ_CHECK(d->queue_size >= 2 && d->queue_size <= 1024);
	FUZZ_CHECK((d->queue_size & (d->queue_size - 1)) == 0);
	FUZZ_CHECK(d->poll_ns <= 1000000000 && d->poll <= MANIFEST_POLL_ALWAYS);
}

/* Of plain parts between slashes; none goes up. */
static void path_check(const char *path)
{
	FUZZ_CHECK(path[0] != '/' && !strchr(path, '\\'));
	for (const char *part = path; part; part = strchr(part, '/')) {
		part += *part == '/';
		FUZZ_CHECK(strcmp(part, "..") && strncmp(part, "../", 3));
	}
}

static void guest_check(const struct manifest *m, const struct manifest_guest *g)
{
	FUZZ_CHECK(is_ended(g->name, sizeof(g->name)) && g->name[0]);
	FUZZ_CHECK(is_ended(g->kernel, sizeof(g->kernel)) && g->kernel[0]);
	FUZZ_CHECK(is_ended(g->initrd, sizeof(g->initrd)));
	FUZZ_CHECK(is_ended(g->cmdline, sizeof(g->cmdline)));
	path_check(g->kernel);
	path_check(g->initrd);
	FUZZ_CHECK(g->memory_bytes >= 16 * MIB && g->memory_bytes <= 1024 * GIB);
	FUZZ_CHECK(g->memory_bytes % MIB == 0);
	FUZZ_CHECK(g->vcpus >= 1 && g->vcpus <= 32);
	FUZZ_CHECK(g->cpu_count == 0 || g->cpu_count == g->vcpus);
	for (uint32_t i = 0; i < g->cpu_count; i++)
		FUZZ_CHECK(g->cpus[i] <= 255 && g->cpus[i] != m->io_core);
	FUZZ_CHECK(g->disk_count >= 1 && g->disk_count <= MANIFEST_DISK_MAX);
	for (uint32_t i = 0; i < g->disk_count; i++)
		disk_check(&g->disk[i]);
}

static void manifest_check(const struct manifest *m)
{
	FUZZ_CHECK(m->io_core <= 255 && m->poll_weight >= 1 && m->poll_weight <= 1000);
	FUZZ_CHECK(m->guest_count >= 1 && m->guest_count <= MANIFEST_GUEST_MAX);
	FUZZ_CHECK(m->disable_count <= MANIFEST_DISABLE_MAX);
	for (uint32_t i = 0; i < m->disable_count; i++)
		FUZZ_CHECK(is_ended(m->disable[i], sizeof(m->disable[i])));
	for (uint32_t i = 0; i < m->guest_count; i++) {
		guest_check(m, &m->guest[i]);
		for (uint32_t k = 0; k < i; k++)
			FUZZ_CHECK(strcmp(m->guest[i].name, m->guest[k].name));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	static struct manifest first, second;
	static char longer[FUZZ_INPUT_MAX + 16];
	struct manifest_error err;
	int rc;

	memset(&first, 0, sizeof(first));
	memset(&err, 0, sizeof(err));
	rc = manifest_parse((const char *)data, len_bytes, &first, &err);
	FUZZ_CHECK(rc == 0 || rc == -EINVAL);
	if (rc) {
		FUZZ_CHECK(err.text[0] && is_ended(err.text, sizeof(err.text)));
		pos_check(data, len_bytes, err.pos);
		return 0;
	}
	manifest_check(&first);
	if (len_bytes > FUZZ_INPUT_MAX)
		return 0;
	memcpy(longer, data, len_bytes);
	memcpy(longer + len_bytes, "\n \t# end\r\n", 10);
	memset(&second, 0, sizeof(second));
	FUZZ_EQ(manifest_parse(longer, len_bytes + 10, &second, &err), 0);
	FUZZ_CHECK(!memcmp(&first, &second, sizeof(first)));
	return 0;
}
