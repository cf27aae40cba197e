/*
 * manifest_check.h: what single values of the manifest must look like, and what must be true of
 * all guests together. Pure. For manifest.c; docs/manifest.md states the rules.
 */
#ifndef QUELL_VMM_MANIFEST_CHECK_H
#define QUELL_VMM_MANIFEST_CHECK_H

#include "arch/types.h"
#include "vmm/manifest.h"

#define MANIFEST_CORE_MAX        255u /* boot_info.h: BOOT_CPU_MAX - 1 */
#define MANIFEST_QUEUE_SIZE_MAX  1024 /* ring.h: VIRTQ_SIZE_MAX */
#define MANIFEST_POLL_NS_MAX     1000000000
#define MANIFEST_POLL_WEIGHT     16 /* by default */
#define MANIFEST_POLL_WEIGHT_MAX 1000
#define MANIFEST_MEMORY_MIN      (16 * MIB)
#define MANIFEST_MEMORY_MAX      (1024 * GIB)
#define MANIFEST_TYPO_MAX        2u

/* Decimal digits at *p, which moves behind them. False: none, or more than 64 bits. Any core. */
bool manifest_parse_number(const char **p, const char *end, uint64_t *out);

/* "512M", "1G": digits and K, M, G or T; without a letter, bytes. False: anything else. Any core.
 */
bool manifest_parse_size(const char *text, size_t len, uint64_t *out_bytes);

/* 0, or -EINVAL: not 1 to 31 of [A-Za-z0-9._-]. Any core. */
int manifest_check_name(const char *text, size_t len);

/* 0, or -EINVAL: no relative path of ASCII names without .. and backslash. Any core. */
int manifest_check_file(const char *text, size_t len);

/* NULL, or what to write instead. Any core. */
const char *manifest_check_source(const char *source);

/* Typing errors between text and a known word: insertions, deletions, replacements and swapped
 * neighbours; MANIFEST_TYPO_MAX + 1 when there are more, or as many as the word has letters. */
unsigned manifest_typo_distance(const char *text, size_t len, const char *word);

/* All guests together: names, cores, partitions. 0, or -EINVAL with err filled. Any core. */
int manifest_check_all(const struct manifest *manifest, struct manifest_error *err);

#endif
