/*
 * memlist.h: boot_info.mem from the firmware's descriptors. Pure.
 */
#ifndef QUELL_BOOT_MEMLIST_H
#define QUELL_BOOT_MEMLIST_H

#include "boot/boot_info.h"

/* UEFI 2.10 7.2: what a memory type means to us. By type alone: some firmware forgets
 * EFI_MEMORY_RUNTIME. */
enum boot_mem_type memlist_type(uint32_t efi_type);

/* Adds a range. What does not fit any more is dropped, which only means that it is not used. */
void memlist_add(struct boot_info *info, hpa_t base_hpa, uint64_t len_bytes,
                 enum boot_mem_type type);

/* Sorts; joins neighbours of one type; where ranges overlap, free memory is what nobody else
 * claims. */
void memlist_finish(struct boot_info *info);

/* The highest free page below 1 MiB but page 0, for starting processors; 0: none. */
hpa_t memlist_low_page(const struct boot_info *info);

#endif
