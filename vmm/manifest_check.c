/*
 * manifest_check.c: rules for the manifest's values, one by one and together.
 */
#include "vmm/manifest_check.h"
#include "arch/platform.h"
#include "vmm/toml.h"

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_alnum(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static char to_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

static bool starts_with(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool manifest_parse_number(const char **p, const char *end, uint64_t *out)
{
	const char *start = *p;

	for (*out = 0; *p < end && is_digit(**p); ++*p) {
		unsigned digit = (unsigned)(**p - '0');

		if (*out > (UINT64_MAX - digit) / 10)
			return false;
		*out = *out * 10 + digit;
	}
	return *p > start;
}

bool manifest_parse_size(const char *text, size_t len, uint64_t *out_bytes)
{
	static const char letters[] = "KMGT";
	const char *p = text, *end = text + len;
	unsigned shift = 0;

	if (!manifest_parse_number(&p, end, out_bytes))
		return false;
	if (p < end) {
		for (unsigned i = 0; i < sizeof(letters) - 1; i++)
			if (*p == letters[i])
				shift = 10 * (i + 1);
		if (!shift || p + 1 != end || *out_bytes > UINT64_MAX >> shift)
			return false;
	}
	*out_bytes <<= shift;
	return true;
}

int manifest_check_name(const char *text, size_t len)
{
	if (!len || len > sizeof(((struct manifest_guest *)0)->name) - 1)
		return -EINVAL;
	for (size_t i = 0; i < len; i++)
		if (!is_alnum(text[i]) && text[i] != '-' && text[i] != '_' && text[i] != '.')
			return -EINVAL;
	return 0;
}

int manifest_check_file(const char *text, size_t len)
{
	size_t start = 0; /* of the path's current part */

	if (!len || len >= MANIFEST_STR_MAX)
		return -EINVAL;
	for (size_t i = 0; i <= len; i++) {
		if (i == len || text[i] == '/') {
			size_t part = i - start;

			if (!part || (part == 1 && text[start] == '.') ||
			    (part == 2 && text[start] == '.' && text[start + 1] == '.'))
				return -EINVAL;
			start = i + 1;
		} else if (text[i] <= ' ' || text[i] > '~' || text[i] == '\\' || text[i] == ':' ||
		           text[i] == '*' || text[i] == '?' || text[i] == '"' || text[i] == '<' ||
		           text[i] == '>' || text[i] == '|') {
			return -EINVAL;
		}
	}
	return 0;
}

/* --- disk sources --- */

/* A number without leading zeros, at least min. */
static bool take_number(const char **p, uint64_t min, uint64_t *out)
{
	const char *start = *p;

	return manifest_parse_number(p, start + strlen(start), out) && *out >= min &&
	       *out <= UINT32_MAX && (*start != '0' || *p == start + 1);
}

/* nvme0n1 or nvme0n1p2: controllers count from 0, namespaces and partitions from 1. part 0: all. */
static bool parse_nvme(const char *source, uint64_t *ctrl, uint64_t *ns, uint64_t *part)
{
	const char *p = source + 4;

	*part = 0;
	if (!starts_with(source, "nvme") || !take_number(&p, 0, ctrl) || *p++ != 'n' ||
	    !take_number(&p, 1, ns))
		return false;
	if (!*p)
		return true;
	return *p++ == 'p' && take_number(&p, 1, part) && !*p;
}

static bool is_uuid(const char *text)
{
	for (unsigned i = 0; i < 36; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;

		if (dash ? text[i] != '-' : !is_hex(text[i]))
			return false;
	}
	return !text[36];
}

const char *manifest_check_source(const char *source)
{
	uint64_t a, b, c;

	if (starts_with(source, "ram:"))
		return manifest_check_file(source + 4, strlen(source + 4))
		               ? "after \"ram:\" write the name of a file beside quell.efi"
		               : NULL;
	if (starts_with(source, "null:"))
		return manifest_parse_size(source + 5, strlen(source + 5), &a) && a &&
		                       IS_ALIGNED(a, 512) && a <= MANIFEST_MEMORY_MAX * 1024
		               ? NULL
		               : "after \"null:\" write a size such as \"1G\", a multiple of 512 "
		                 "bytes";
	if (starts_with(source, "PARTUUID="))
		return is_uuid(source + 9) ? NULL
		                           : "after \"PARTUUID=\" write a UUID such as "
		                             "01234567-89ab-cdef-0123-456789abcdef";
	if (starts_with(source, "PARTLABEL="))
		return source[10] ? NULL : "after \"PARTLABEL=\" write the partition's name";
	if (parse_nvme(source, &a, &b, &c))
		return NULL;
	return "no such kind of disk: use nvme0n1, nvme0n1p2, PARTUUID=, PARTLABEL=, ram:FILE or "
	       "null:SIZE";
}

static bool same_text(const char *a, const char *b, bool fold_case)
{
	for (; *a && *b; a++, b++)
		if (*a != *b && !(fold_case && to_lower(*a) == to_lower(*b)))
			return false;
	return *a == *b;
}

/* Whether two sources share blocks, as far as their spelling tells; start-up checks the rest. */
static bool sources_overlap(const char *a, const char *b)
{
	uint64_t ctrl_a, ns_a, part_a, ctrl_b, ns_b, part_b;

	if (starts_with(a, "null:"))
		return false;
	if (parse_nvme(a, &ctrl_a, &ns_a, &part_a) && parse_nvme(b, &ctrl_b, &ns_b, &part_b))
		return ctrl_a == ctrl_b && ns_a == ns_b && (part_a == part_b || !part_a || !part_b);
	/* UUIDs, and files on a FAT file system, know no case. */
	return same_text(a, b, starts_with(a, "PARTUUID=") || starts_with(a, "ram:"));
}

/* --- typing errors --- */

unsigned manifest_typo_distance(const char *text, size_t len, const char *word)
{
	enum { WORD_MAX = 16 };
	size_t word_len = strlen(word);
	uint8_t row[3][WORD_MAX + 1]; /* of the table, modulo 3 */
	unsigned distance;

	if (word_len > WORD_MAX || len > WORD_MAX || !len)
		return MANIFEST_TYPO_MAX + 1;
	for (size_t j = 0; j <= word_len; j++)
		row[0][j] = (uint8_t)j;
	for (size_t i = 1; i <= len; i++) {
		uint8_t *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];

		now[0] = (uint8_t)i;
		for (size_t j = 1; j <= word_len; j++) {
			bool same = to_lower(text[i - 1]) == word[j - 1];
			unsigned best = last[j - 1] + !same;

			best = MIN(best, last[j] + 1u);
			best = MIN(best, now[j - 1] + 1u);
			if (i > 1 && j > 1 && text[i - 1] == word[j - 2] &&
			    text[i - 2] == word[j - 1])
				best = MIN(best, before[j - 2] + 1u);
			now[j] = (uint8_t)best;
		}
	}
	distance = row[len % 3][word_len];
	if (!distance) /* equal but for capitals */
		return len == word_len && memcmp(text, word, len) == 0 ? 0 : 1;
	return distance > MANIFEST_TYPO_MAX || distance * 2 > word_len ? MANIFEST_TYPO_MAX + 1
	                                                               : distance;
}

/* --- all guests together --- */

static int check_cores(const struct manifest *m, const struct manifest_guest *g, uint32_t index,
                       struct manifest_error *err)
{
	for (uint32_t i = 0; i < g->cpu_count; i++) {
		if (g->cpus[i] == m->io_core)
			return toml_fail(err, g->cpus_pos,
			                 "guest \"%s\" has core %u in \"cpus\", which is "
			                 "io_core: give it another",
			                 g->name, g->cpus[i]);
		for (uint32_t other = 0; other < index; other++)
			for (uint32_t j = 0; j < m->guest[other].cpu_count; j++)
				if (m->guest[other].cpus[j] == g->cpus[i])
					return toml_fail(err, g->cpus_pos,
					                 "guest \"%s\" has core %u in "
					                 "\"cpus\", and so has guest \"%s\" (line "
					                 "%u): a core "
					                 "runs one vCPU",
					                 g->name, g->cpus[i], m->guest[other].name,
					                 m->guest[other].cpus_pos.line);
	}
	return 0;
}

/* One disk against all before it. */
static int check_disk(const struct manifest *m, uint32_t guest, uint32_t disk,
                      struct manifest_error *err)
{
	const struct manifest_disk *d = &m->guest[guest].disk[disk];

	if (d->readonly)
		return 0;
	for (uint32_t g = 0; g <= guest; g++) {
		uint32_t count = g == guest ? disk : m->guest[g].disk_count;

		for (uint32_t i = 0; i < count; i++) {
			const struct manifest_disk *other = &m->guest[g].disk[i];

			if (!other->readonly && sources_overlap(d->source, other->source))
				return toml_fail(
				        err, d->source_pos,
				        "\"%.60s\" is written by two disks, here "
				        "and at line %u: give each its own, or make one readonly",
				        d->source, other->source_pos.line);
		}
	}
	return 0;
}

int manifest_check_all(const struct manifest *m, struct manifest_error *err)
{
	if (!m->guest_count)
		return toml_fail(err, (struct manifest_pos){1, 1},
		                 "no guest: add a [[guest]] with name, kernel "
		                 "and memory");
	for (uint32_t i = 0; i < m->guest_count; i++) {
		const struct manifest_guest *g = &m->guest[i];

		for (uint32_t j = 0; j < i; j++)
			if (strcmp(g->name, m->guest[j].name) == 0)
				return toml_fail(err, g->name_pos,
				                 "two guests are named \"%s\" (the other at "
				                 "line %u): rename one",
				                 g->name, m->guest[j].name_pos.line);
		if (check_cores(m, g, i, err))
			return -EINVAL;
		for (uint32_t d = 0; d < g->disk_count; d++)
			if (check_disk(m, i, d, err))
				return -EINVAL;
	}
	return 0;
}
