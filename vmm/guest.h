/*
 * guest.h: from a manifest entry to a guest that is ready to run, and its end.
 */
#ifndef QUELL_VMM_GUEST_H
#define QUELL_VMM_GUEST_H

#include "drivers/source.h"
#include "vmm/ioloop.h"
#include "vmm/vm.h"

/*
 * Memory, nested paging, vCPUs, platform, kernel and disks of one guest; cores[] says where its vCPUs
 * run, file finds what boot/ loaded. Boot core, after the back end and the drivers are up. Returns NULL with err filled:
 * err->pos is where the manifest asked for what cannot be.
 */
struct vm *guest_create(const struct manifest_guest *config, unsigned index, const uint32_t *cores,
                        source_file_fn file, uint64_t wall_unix_ns, struct ioloop *loop,
                        struct manifest_error *err);

/* Runs one vCPU on the calling core from start to the guest's end. arg: struct vcpu. */
void guest_vcpu_main(void *arg);

#endif
