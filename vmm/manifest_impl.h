/*
 * manifest_impl.h: what manifest.c (tables) and manifest_keys.c (keys and their values) share.
 */
#ifndef QUELL_VMM_MANIFEST_IMPL_H
#define QUELL_VMM_MANIFEST_IMPL_H

#include "vmm/manifest.h"
#include "vmm/toml.h"

enum section { SECTION_ROOT, SECTION_HOST, SECTION_GUEST, SECTION_DISK, SECTION_COUNT };

struct parse {
	struct toml toml;
	struct toml_item item;
	struct manifest *out;
	struct manifest_error *err;
	enum section section;
	struct manifest_guest *guest; /* the open [[guest]] */
	struct manifest_disk *disk;   /* the open [[guest.disk]] */
	bool host_seen;
	uint32_t host_keys, guest_keys, disk_keys; /* given so far: bit = place in keys[] */
};

/* Takes the key and value in p->item. 0, or -EINVAL with the error filled. */
int manifest_parse_pair(struct parse *p);

#endif
