/*
 * manifest_dump.c: parses manifests and prints each as one line of JSON, for comparison with
 * another TOML reader. Input: documents, each a decimal length, a newline and that many bytes.
 */
#include "vmm/manifest.h"
#include <stdio.h>
#include <stdlib.h>

static void put_string(const char *s)
{
	putchar('"');
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else if ((unsigned char)*s < 0x20 || *s == 0x7f)
			printf("\\u%04x", *s);
		else
			putchar(*s);
	}
	putchar('"');
}

static void put_key(const char *key, const char *value)
{
	printf("\"%s\": ", key);
	put_string(value);
	printf(", ");
}

static void put_disk(const struct manifest_disk *d)
{
	printf("{");
	put_key("source", d->source);
	put_key("coalesce", d->coalesce ? "auto" : "off");
	printf("\"readonly\": %s, \"num_queues\": %u, \"queue_size\": %u, \"poll_ns\": ",
	       d->readonly ? "true" : "false", d->num_queues, d->queue_size);
	if (d->poll == MANIFEST_POLL_NS)
		printf("%lu}", (unsigned long)d->poll_ns);
	else
		printf("\"%s\"}", d->poll == MANIFEST_POLL_AUTO ? "auto" : "always");
}

static void put_guest(const struct manifest_guest *g)
{
	printf("{");
	put_key("name", g->name);
	put_key("kernel", g->kernel);
	put_key("initrd", g->initrd);
	put_key("cmdline", g->cmdline);
	put_key("serial", g->serial ? "host" : "none");
	put_key("unknown_msr", g->unknown_msr == MANIFEST_MSR_FAULT ? "fault" : "ignore");
	printf("\"memory\": %lu, \"vcpus\": %u, \"control\": %s, \"cpus\": [",
	       (unsigned long)g->memory_bytes, g->vcpus, g->control ? "true" : "false");
	for (uint32_t i = 0; i < g->cpu_count; i++)
		printf("%s%u", i ? ", " : "", g->cpus[i]);
	printf("], \"disk\": [");
	for (uint32_t i = 0; i < g->disk_count; i++) {
		printf("%s", i ? ", " : "");
		put_disk(&g->disk[i]);
	}
	printf("]}");
}

static void put_manifest(const struct manifest *m)
{
	static const char *const idle[] = {"auto", "mwait", "hlt", "poll"};

	printf("{\"io_core\": %u, \"idle\": \"%s\", \"poll_weight\": %u, \"disable\": [",
	       m->io_core, idle[m->idle], m->poll_weight);
	for (uint32_t i = 0; i < m->disable_count; i++) {
		printf("%s", i ? ", " : "");
		put_string(m->disable[i]);
	}
	printf("], \"guest\": [");
	for (uint32_t i = 0; i < m->guest_count; i++) {
		printf("%s", i ? ", " : "");
		put_guest(&m->guest[i]);
	}
	printf("]}\n");
}

int main(void)
{
	static struct manifest manifest;
	struct manifest_error err;
	size_t len;

	while (scanf("%zu", &len) == 1 && getchar() == '\n') {
		/* Exactly as long as the document, so that the sanitizer sees a read beyond it. */
		char *text = malloc(len ? len : 1);

		if (!text || fread(text, 1, len, stdin) != len)
			return 1;
		if (manifest_parse(text, len, &manifest, &err) == 0) {
			put_manifest(&manifest);
		} else {
			printf("{\"line\": %u, \"col\": %u, ", err.pos.line, err.pos.col);
			put_key("error", err.text);
			printf("\"end\": 0}\n");
		}
		free(text);
	}
	return 0;
}
