/*
 * manifest.h: quell.toml parsed: a strict subset of TOML 1.0 (docs/manifest.md). Pure; no
 * allocation. boot/ parses it to learn which files to load, vmm/ again after the hand-over.
 */
#ifndef QUELL_VMM_MANIFEST_H
#define QUELL_VMM_MANIFEST_H

#include "arch/types.h"

#define MANIFEST_GUEST_MAX   8
#define MANIFEST_DISK_MAX    8
#define MANIFEST_STR_MAX     128
#define MANIFEST_CMDLINE_MAX 2048
#define MANIFEST_CPU_MAX     32
#define MANIFEST_DISABLE_MAX 16
#define MANIFEST_ERR_MAX     256

/* Where a value stands in the file, for errors found later than parsing. line 0: not given. */
struct manifest_pos {
	uint32_t line, col;
};

enum manifest_poll { MANIFEST_POLL_NS, MANIFEST_POLL_AUTO, MANIFEST_POLL_ALWAYS };
/* How cores wait when there is nothing to do. */
enum manifest_idle {
	MANIFEST_IDLE_AUTO,
	MANIFEST_IDLE_MWAIT,
	MANIFEST_IDLE_HLT,
	MANIFEST_IDLE_POLL
};
enum manifest_unknown_msr { MANIFEST_MSR_FAULT, MANIFEST_MSR_IGNORE };

struct manifest_disk {
	struct manifest_pos pos, source_pos;
	char source[MANIFEST_STR_MAX]; /* nvme0n1p2, PARTUUID=, PARTLABEL=, ram:FILE, null:SIZE */
	bool readonly;
	uint16_t num_queues;     /* default 1 */
	uint16_t queue_size;     /* default 256 */
	enum manifest_poll poll; /* default AUTO */
	uint64_t poll_ns;
	bool coalesce; /* coalesce = "auto" (default) or "off" */
};

struct manifest_guest {
	struct manifest_pos pos, name_pos, kernel_pos, initrd_pos, memory_pos, cpus_pos, vcpus_pos;
	char name[32];
	char kernel[MANIFEST_STR_MAX], initrd[MANIFEST_STR_MAX]; /* initrd "": none */
	char cmdline[MANIFEST_CMDLINE_MAX];
	uint64_t memory_bytes;
	uint32_t vcpus;                  /* default 1 */
	uint32_t cpu_count;              /* 0: chosen by Quell; else equals vcpus */
	uint32_t cpus[MANIFEST_CPU_MAX]; /* core numbers */
	bool serial;                     /* serial = "host" (default) or "none" */
	bool control;
	enum manifest_unknown_msr unknown_msr;
	uint32_t disk_count;
	struct manifest_disk disk[MANIFEST_DISK_MAX];
};

struct manifest {
	struct manifest_pos io_core_pos, idle_pos;
	uint32_t io_core;        /* default 0 */
	enum manifest_idle idle; /* default AUTO */
	uint32_t poll_weight;    /* default 16: a guest's waiting in time of the I/O core */
	uint32_t disable_count;
	char disable[MANIFEST_DISABLE_MAX][32]; /* optional controls to do without */
	struct manifest_pos disable_pos[MANIFEST_DISABLE_MAX];
	uint32_t guest_count;
	struct manifest_guest guest[MANIFEST_GUEST_MAX];
};

struct manifest_error {
	struct manifest_pos pos;
	char text[MANIFEST_ERR_MAX]; /* what is wrong and what to do, without file and position */
};

/*
 * Parses text (len_bytes, no NUL needed). 0, or -EINVAL with err filled. Any core; a few KiB of
 * stack. Checks all that the text alone can tell: syntax, unknown keys, types, ranges, missing
 * keys, doubled names, overlapping cpus, io_core among a guest's cpus, zero disks, one partition
 * given writable twice.
 */
int manifest_parse(const char *text, size_t len_bytes, struct manifest *out,
                   struct manifest_error *err);

#endif
