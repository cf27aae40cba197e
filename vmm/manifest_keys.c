/*
 * manifest_keys.c: the manifest's keys: one table of them, and one setter for each.
 */
#include "arch/platform.h"
#include "vmm/manifest_check.h"
#include "vmm/manifest_impl.h"

static const char *const section_name[SECTION_COUNT] = {"the top level", "[host]", "[[guest]]",
                                                        "[[guest.disk]]"};

/* A key, its type, and what takes its value; arrays come element by element. */
struct key {
	const char *name;
	enum section section;
	uint32_t types; /* BIT(enum toml_type) */
	const char *wants;
	int (*set)(struct parse *p);
	int (*add)(struct parse *p);
};

#define FAIL_VALUE(p, ...) toml_fail((p)->err, (p)->item.value_pos, __VA_ARGS__)

/* --- setters: item holds the value --- */

static int set_text(struct parse *p, char *out, size_t size, const char *what)
{
	if (p->item.string_len >= size)
		return FAIL_VALUE(p, "\"%s\" is too long: at most %u bytes", what,
		                  (unsigned)size - 1);
	memcpy(out, p->item.string, p->item.string_len + 1);
	return 0;
}

static int set_number(struct parse *p, const char *what, int64_t min, int64_t max, uint32_t *out)
{
	if (p->item.integer < min || p->item.integer > max)
		return FAIL_VALUE(p, "\"%s\" is %ld: it must be from %ld to %ld", what,
		                  (long)p->item.integer, (long)min, (long)max);
	*out = (uint32_t)p->item.integer;
	return 0;
}

/* One word of a list; its place goes to *out. */
static int set_word(struct parse *p, const char *what, const char *const *words, unsigned count,
                    unsigned *out)
{
	for (*out = 0; *out < count; ++*out)
		if (strcmp(p->item.string, words[*out]) == 0)
			return 0;
	return FAIL_VALUE(p, "\"%s\" may not be \"%.40s\": use \"%s\" or \"%s\"%s", what,
	                  p->item.string, words[0], words[1],
	                  count > 2 ? " (docs/manifest.md lists all)" : "");
}

static int set_io_core(struct parse *p)
{
	p->out->io_core_pos = p->item.value_pos;
	return set_number(p, "io_core", 0, MANIFEST_CORE_MAX, &p->out->io_core);
}

static int set_poll_weight(struct parse *p)
{
	return set_number(p, "poll_weight", 1, MANIFEST_POLL_WEIGHT_MAX, &p->out->poll_weight);
}

static int set_idle(struct parse *p)
{
	static const char *const words[] = {"auto", "mwait", "hlt", "poll"};
	unsigned word;

	if (set_word(p, "idle", words, ARRAY_LEN(words), &word))
		return -EINVAL;
	p->out->idle_pos = p->item.value_pos;
	p->out->idle = (enum manifest_idle)word;
	return 0;
}

static int add_disable(struct parse *p)
{
	struct manifest *m = p->out;

	if (p->item.type != TOML_STRING)
		return FAIL_VALUE(p, "\"disable\" needs an array of strings such as [\"vpid\"]");
	if (m->disable_count == MANIFEST_DISABLE_MAX)
		return FAIL_VALUE(p, "too many words in \"disable\": at most %u",
		                  MANIFEST_DISABLE_MAX);
	if (!p->item.string_len)
		return FAIL_VALUE(p, "empty word in \"disable\": name a control such as \"vpid\"");
	m->disable_pos[m->disable_count] = p->item.value_pos;
	return set_text(p, m->disable[m->disable_count++], sizeof(m->disable[0]), "disable");
}

static int set_name(struct parse *p)
{
	p->guest->name_pos = p->item.value_pos;
	if (manifest_check_name(p->item.string, p->item.string_len))
		return FAIL_VALUE(p, "\"name\" must be 1 to 31 letters, digits, '-', '_' or '.'");
	return set_text(p, p->guest->name, sizeof(p->guest->name), "name");
}

static int set_file(struct parse *p, char *out, struct manifest_pos *pos, const char *what)
{
	*pos = p->item.value_pos;
	if (manifest_check_file(p->item.string, p->item.string_len))
		return FAIL_VALUE(
		        p,
		        "\"%s\" must name a file beside quell.efi, such as \"vmlinuz\" or "
		        "\"debian/vmlinuz\": plain ASCII, no leading /, no .. and no \\",
		        what);
	return set_text(p, out, MANIFEST_STR_MAX, what);
}

static int set_kernel(struct parse *p)
{
	return set_file(p, p->guest->kernel, &p->guest->kernel_pos, "kernel");
}

static int set_initrd(struct parse *p)
{
	return set_file(p, p->guest->initrd, &p->guest->initrd_pos, "initrd");
}

static int set_cmdline(struct parse *p)
{
	return set_text(p, p->guest->cmdline, sizeof(p->guest->cmdline), "cmdline");
}

static int set_memory(struct parse *p)
{
	uint64_t bytes;

	p->guest->memory_pos = p->item.value_pos;
	if (!manifest_parse_size(p->item.string, p->item.string_len, &bytes))
		return FAIL_VALUE(
		        p, "\"memory\" is \"%.40s\": write a size such as \"512M\" or \"1G\"",
		        p->item.string);
	if (bytes < MANIFEST_MEMORY_MIN || bytes > MANIFEST_MEMORY_MAX || !IS_ALIGNED(bytes, MIB))
		return FAIL_VALUE(
		        p,
		        "\"memory\" is \"%.40s\": it must be whole megabytes from \"16M\" "
		        "to \"1T\"",
		        p->item.string);
	p->guest->memory_bytes = bytes;
	return 0;
}

static int set_vcpus(struct parse *p)
{
	p->guest->vcpus_pos = p->item.value_pos;
	return set_number(p, "vcpus", 1, MANIFEST_CPU_MAX, &p->guest->vcpus);
}

static int add_cpu(struct parse *p, uint64_t core)
{
	struct manifest_guest *g = p->guest;

	if (core > MANIFEST_CORE_MAX)
		return FAIL_VALUE(p, "\"cpus\" names core %lu: cores are numbered 0 to %u",
		                  (unsigned long)core, MANIFEST_CORE_MAX);
	for (uint32_t i = 0; i < g->cpu_count; i++)
		if (g->cpus[i] == core)
			return FAIL_VALUE(
			        p,
			        "\"cpus\" names core %u twice: each vCPU needs a core of its own",
			        (unsigned)core);
	if (g->cpu_count == MANIFEST_CPU_MAX)
		return FAIL_VALUE(p, "\"cpus\" names too many cores: at most %u", MANIFEST_CPU_MAX);
	g->cpus[g->cpu_count++] = (uint32_t)core;
	return 0;
}

/* "1-2,4", or an array's beginning. */
static int set_cpus(struct parse *p)
{
	const char *s = p->item.string, *end = s + p->item.string_len;
	uint64_t first, last;

	p->guest->cpus_pos = p->item.value_pos;
	if (p->item.type == TOML_ARRAY)
		return 0;
	for (;;) {
		if (!manifest_parse_number(&s, end, &first))
			break;
		last = first;
		if (s < end && *s == '-') {
			s++;
			if (!manifest_parse_number(&s, end, &last))
				break;
		}
		if (last < first)
			return FAIL_VALUE(
			        p, "\"cpus\" has the range %lu-%lu: write the smaller number first",
			        (unsigned long)first, (unsigned long)last);
		for (uint64_t core = first; core <= last; core++)
			if (add_cpu(p, core))
				return -EINVAL;
		if (s == end)
			return 0;
		if (*s++ != ',')
			break;
	}
	return FAIL_VALUE(p, "\"cpus\" is \"%.40s\": write cores as \"1-2,4\" or [1, 2, 4]",
	                  p->item.string);
}

static int add_cpus(struct parse *p)
{
	if (p->item.type != TOML_INTEGER || p->item.integer < 0)
		return FAIL_VALUE(p, "\"cpus\" needs an array of core numbers such as [1, 2]");
	return add_cpu(p, (uint64_t)p->item.integer);
}

static int set_serial(struct parse *p)
{
	static const char *const words[] = {"host", "none"};
	unsigned word;

	if (set_word(p, "serial", words, ARRAY_LEN(words), &word))
		return -EINVAL;
	p->guest->serial = word == 0;
	return 0;
}

static int set_control(struct parse *p)
{
	p->guest->control = p->item.boolean;
	return 0;
}

static int set_unknown_msr(struct parse *p)
{
	static const char *const words[] = {"fault", "ignore"};
	unsigned word;

	if (set_word(p, "unknown_msr", words, ARRAY_LEN(words), &word))
		return -EINVAL;
	p->guest->unknown_msr = word ? MANIFEST_MSR_IGNORE : MANIFEST_MSR_FAULT;
	return 0;
}

static int set_source(struct parse *p)
{
	const char *why;

	p->disk->source_pos = p->item.value_pos;
	if (set_text(p, p->disk->source, sizeof(p->disk->source), "source"))
		return -EINVAL;
	why = manifest_check_source(p->disk->source);
	return why ? FAIL_VALUE(p, "\"source\" is \"%.60s\": %s", p->disk->source, why) : 0;
}

static int set_readonly(struct parse *p)
{
	p->disk->readonly = p->item.boolean;
	return 0;
}

static int set_num_queues(struct parse *p)
{
	uint32_t value = 0;

	if (set_number(p, "num_queues", 1, MANIFEST_CPU_MAX, &value))
		return -EINVAL;
	p->disk->num_queues = (uint16_t)value;
	return 0;
}

static int set_queue_size(struct parse *p)
{
	uint32_t value = 0;

	if (set_number(p, "queue_size", 2, MANIFEST_QUEUE_SIZE_MAX, &value))
		return -EINVAL;
	if (value & (value - 1))
		return FAIL_VALUE(p, "\"queue_size\" is %u: it must be a power of two", value);
	p->disk->queue_size = (uint16_t)value;
	return 0;
}

static int set_poll_ns(struct parse *p)
{
	static const char *const words[] = {"auto", "always"};
	unsigned word;
	uint32_t value = 0;

	if (p->item.type == TOML_STRING) {
		if (set_word(p, "poll_ns", words, ARRAY_LEN(words), &word))
			return -EINVAL;
		p->disk->poll = word ? MANIFEST_POLL_ALWAYS : MANIFEST_POLL_AUTO;
		return 0;
	}
	if (set_number(p, "poll_ns", 0, MANIFEST_POLL_NS_MAX, &value))
		return -EINVAL;
	p->disk->poll = MANIFEST_POLL_NS;
	p->disk->poll_ns = value;
	return 0;
}

static int set_coalesce(struct parse *p)
{
	static const char *const words[] = {"auto", "off"};
	unsigned word;

	if (set_word(p, "coalesce", words, ARRAY_LEN(words), &word))
		return -EINVAL;
	p->disk->coalesce = word == 0;
	return 0;
}

#define STRING  BIT(TOML_STRING)
#define INTEGER BIT(TOML_INTEGER)
#define BOOLEAN BIT(TOML_BOOLEAN)
#define ARRAY   BIT(TOML_ARRAY)

static const struct key keys[] = {
        {"io_core", SECTION_HOST, INTEGER, "a core number such as 0", set_io_core, NULL},
        {"idle", SECTION_HOST, STRING, "a string such as \"auto\"", set_idle, NULL},
        {"poll_weight", SECTION_HOST, INTEGER, "a number such as 16", set_poll_weight, NULL},
        {"disable", SECTION_HOST, ARRAY, "an array of strings such as [\"vpid\"]", NULL,
         add_disable},
        {"name", SECTION_GUEST, STRING, "a string such as \"debian\"", set_name, NULL},
        {"kernel", SECTION_GUEST, STRING, "a file name such as \"vmlinuz\"", set_kernel, NULL},
        {"initrd", SECTION_GUEST, STRING, "a file name such as \"initrd.img\"", set_initrd, NULL},
        {"cmdline", SECTION_GUEST, STRING, "a string such as \"console=ttyS0\"", set_cmdline, NULL},
        {"memory", SECTION_GUEST, STRING, "a string such as \"512M\" or \"1G\"", set_memory, NULL},
        {"vcpus", SECTION_GUEST, INTEGER, "a number such as 1", set_vcpus, NULL},
        {"cpus", SECTION_GUEST, STRING | ARRAY, "core numbers such as \"1-2,4\" or [1, 2, 4]",
         set_cpus, add_cpus},
        {"serial", SECTION_GUEST, STRING, "\"host\" or \"none\"", set_serial, NULL},
        {"control", SECTION_GUEST, BOOLEAN, "true or false", set_control, NULL},
        {"unknown_msr", SECTION_GUEST, STRING, "\"fault\" or \"ignore\"", set_unknown_msr, NULL},
        {"source", SECTION_DISK, STRING, "a string such as \"nvme0n1p2\"", set_source, NULL},
        {"readonly", SECTION_DISK, BOOLEAN, "true or false", set_readonly, NULL},
        {"num_queues", SECTION_DISK, INTEGER, "a number such as 1", set_num_queues, NULL},
        {"queue_size", SECTION_DISK, INTEGER, "a power of two such as 256", set_queue_size, NULL},
        {"poll_ns", SECTION_DISK, INTEGER | STRING, "nanoseconds, \"auto\" or \"always\"",
         set_poll_ns, NULL},
        {"coalesce", SECTION_DISK, STRING, "\"auto\" or \"off\"", set_coalesce, NULL},
};

/* --- keys --- */

static bool slice_is(const struct toml_slice *slice, const char *text)
{
	return strlen(text) == slice->len && memcmp(slice->text, text, slice->len) == 0;
}

static int fail_unknown_key(struct parse *p)
{
	const struct toml_slice *key = &p->item.path[0];
	int len = (int)MIN(key->len, 40u);
	unsigned best = MANIFEST_TYPO_MAX + 1;
	const char *near = NULL, *home = NULL;

	for (unsigned i = 0; i < ARRAY_LEN(keys); i++) {
		unsigned distance = manifest_typo_distance(key->text, key->len, keys[i].name);

		if (distance == 0)
			home = section_name[keys[i].section];
		if (keys[i].section == p->section && distance < best) {
			best = distance;
			near = keys[i].name;
		}
	}
	if (home)
		return toml_fail(p->err, p->item.pos,
		                 "key \"%.*s\" does not belong in %s: move it under %s", len,
		                 key->text, section_name[p->section], home);
	if (slice_is(key, "disk") || slice_is(key, "guest"))
		return toml_fail(p->err, p->item.pos, "\"%.*s\" is a table: begin it with [[%s]]",
		                 len, key->text, key->text[0] == 'd' ? "guest.disk" : "guest");
	if (near)
		return toml_fail(p->err, p->item.pos,
		                 "unknown key \"%.*s\" in %s: did you mean \"%s\"?", len, key->text,
		                 section_name[p->section], near);
	return toml_fail(p->err, p->item.pos,
	                 "unknown key \"%.*s\" in %s: remove it, or see "
	                 "docs/manifest.md for the keys there are",
	                 len, key->text, section_name[p->section]);
}

static const char *type_name(enum toml_type type)
{
	static const char *const names[] = {"a string", "an integer", "a boolean", "an array"};

	return names[type];
}

static int parse_array(struct parse *p, const struct key *key)
{
	for (;;) {
		if (toml_next(&p->toml, &p->item))
			return -EINVAL;
		if (p->item.kind == TOML_ARRAY_END)
			return 0;
		if (key->add(p))
			return -EINVAL;
	}
}

int manifest_parse_pair(struct parse *p)
{
	uint32_t *given = p->section == SECTION_HOST    ? &p->host_keys
	                  : p->section == SECTION_GUEST ? &p->guest_keys
	                                                : &p->disk_keys;

	for (unsigned i = 0; i < ARRAY_LEN(keys); i++) {
		const struct key *key = &keys[i];

		if (key->section != p->section || !slice_is(&p->item.path[0], key->name))
			continue;
		if (*given & BIT(i))
			return toml_fail(p->err, p->item.pos,
			                 "key \"%s\" comes twice in this %s: keep one", key->name,
			                 section_name[p->section]);
		*given |= (uint32_t)BIT(i);
		if (!(key->types & BIT(p->item.type)))
			return FAIL_VALUE(p, "\"%s\" is %s: it needs %s", key->name,
			                  type_name(p->item.type), key->wants);
		if (key->set && key->set(p))
			return -EINVAL;
		return p->item.type == TOML_ARRAY ? parse_array(p, key) : 0;
	}
	return fail_unknown_key(p);
}
