/*
 * fake/bzimage.h: a kernel that says what Debian's say, with a small payload.
 */
#ifndef QUELL_TESTS_FAKE_BZIMAGE_H
#define QUELL_TESTS_FAKE_BZIMAGE_H

#include "arch/types.h"

#define BZIMAGE_SETUP_SECTS 3u
#define BZIMAGE_PAYLOAD     0x3000u
#define BZIMAGE_LEN         ((BZIMAGE_SETUP_SECTS + 1) * 512u + BZIMAGE_PAYLOAD)

void bzimage_make(uint8_t file[BZIMAGE_LEN]);

#endif
