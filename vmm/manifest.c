/*
 * manifest.c: what quell.toml may say. toml.c knows the grammar, manifest_keys.c the keys; here are
 * the tables, and what each must hold when it ends.
 */
#include "arch/platform.h"
#include "vmm/manifest_check.h"
#include "vmm/manifest_impl.h"

static bool slice_is(const struct toml_slice *slice, const char *text)
{
	return strlen(text) == slice->len && memcmp(slice->text, text, slice->len) == 0;
}

static int close_disk(struct parse *p)
{
	if (p->disk && !p->disk->source[0])
		return toml_fail(p->err, p->disk->pos,
		                 "[[guest.disk]] without \"source\": add one such as "
		                 "source = \"nvme0n1p2\"");
	p->disk = NULL;
	return 0;
}

static int close_guest(struct parse *p)
{
	struct manifest_guest *g = p->guest;
	const char *missing;

	if (close_disk(p))
		return -EINVAL;
	if (!g)
		return 0;
	p->guest = NULL;
	missing = !g->name[0]        ? "name = \"debian\""
	          : !g->kernel[0]    ? "kernel = \"vmlinuz\""
	          : !g->memory_bytes ? "memory = \"512M\""
	                             : NULL;
	if (missing)
		return toml_fail(p->err, g->pos, "[[guest]]%s%s lacks a key: add one such as %s",
		                 g->name[0] ? " " : "", g->name, missing);
	if (g->cpu_count && !g->vcpus_pos.line)
		g->vcpus = g->cpu_count;
	if (g->cpus_pos.line && g->cpu_count != g->vcpus)
		return toml_fail(p->err, g->cpus_pos,
		                 "\"cpus\" names %u cores for %u vCPUs: name one core for "
		                 "each",
		                 g->cpu_count, g->vcpus);
	if (!g->disk_count)
		return toml_fail(p->err, g->pos,
		                 "guest \"%s\" has no disk: add a [[guest.disk]] with a "
		                 "\"source\" (\"null:1M\" if it needs none)",
		                 g->name);
	return 0;
}

static int open_host(struct parse *p)
{
	if (p->host_seen)
		return toml_fail(p->err, p->item.pos, "[host] comes twice: keep one");
	if (close_guest(p))
		return -EINVAL;
	p->host_seen = true;
	p->section = SECTION_HOST;
	return 0;
}

static int open_guest(struct parse *p)
{
	if (close_guest(p))
		return -EINVAL;
	if (p->out->guest_count == MANIFEST_GUEST_MAX)
		return toml_fail(p->err, p->item.pos, "too many guests: at most %u",
		                 MANIFEST_GUEST_MAX);
	p->guest = &p->out->guest[p->out->guest_count++];
	p->guest->pos = p->item.pos;
	p->guest->vcpus = 1;
	p->guest->serial = true;
	p->guest_keys = 0;
	p->section = SECTION_GUEST;
	return 0;
}

static int open_disk(struct parse *p)
{
	if (close_disk(p))
		return -EINVAL;
	if (!p->guest)
		return toml_fail(p->err, p->item.pos,
		                 "[[guest.disk]] belongs to the [[guest]] above it, and "
		                 "there is none: move it below one");
	if (p->guest->disk_count == MANIFEST_DISK_MAX)
		return toml_fail(p->err, p->item.pos, "too many disks for one guest: at most %u",
		                 MANIFEST_DISK_MAX);
	p->disk = &p->guest->disk[p->guest->disk_count++];
	p->disk->pos = p->item.pos;
	p->disk->num_queues = 1;
	p->disk->queue_size = 256;
	p->disk->poll = MANIFEST_POLL_AUTO;
	p->disk->coalesce = true;
	p->disk_keys = 0;
	p->section = SECTION_DISK;
	return 0;
}

static int parse_table(struct parse *p)
{
	static const struct {
		const char *first, *second;
		enum toml_kind kind;
		int (*open)(struct parse *p);
		const char *spelling;
	} tables[] = {
	        {"host", NULL, TOML_TABLE, open_host, "[host]"},
	        {"guest", NULL, TOML_TABLE_ARRAY, open_guest, "[[guest]]"},
	        {"guest", "disk", TOML_TABLE_ARRAY, open_disk, "[[guest.disk]]"},
	};
	const struct toml_item *item = &p->item;

	for (unsigned i = 0; i < ARRAY_LEN(tables); i++) {
		if (!slice_is(&item->path[0], tables[i].first) ||
		    item->path_len != (tables[i].second ? 2u : 1u) ||
		    (tables[i].second && !slice_is(&item->path[1], tables[i].second)))
			continue;
		if (item->kind != tables[i].kind)
			return toml_fail(p->err, item->pos, "write this table as %s",
			                 tables[i].spelling);
		return tables[i].open(p);
	}
	return toml_fail(
	        p->err, item->pos,
	        "unknown table \"%.*s%s%.*s\": Quell knows [host], [[guest]] and "
	        "[[guest.disk]]",
	        (int)MIN(item->path[0].len, 40u), item->path[0].text, item->path_len > 1 ? "." : "",
	        item->path_len > 1 ? (int)MIN(item->path[1].len, 40u) : 0, item->path[1].text);
}

int manifest_parse(const char *text, size_t len_bytes, struct manifest *out,
                   struct manifest_error *err)
{
	struct parse p = {.out = out, .err = err, .section = SECTION_ROOT};

	memset(out, 0, sizeof(*out));
	out->poll_weight = MANIFEST_POLL_WEIGHT;
	memset(err, 0, sizeof(*err));
	if (toml_init(&p.toml, text, len_bytes, err))
		return -EINVAL;
	for (;;) {
		if (toml_next(&p.toml, &p.item))
			return -EINVAL;
		if (p.item.kind == TOML_END)
			break;
		if (p.item.kind == TOML_PAIR ? manifest_parse_pair(&p) : parse_table(&p))
			return -EINVAL;
	}
	if (close_guest(&p))
		return -EINVAL;
	return manifest_check_all(out, err);
}
