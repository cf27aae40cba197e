#include "tests/fake/bzimage.h"

#include <string.h>

static void put(uint8_t *file, unsigned offset, uint64_t value, unsigned width)
{
	memcpy(file + offset, &value, width);
}

void bzimage_make(uint8_t file[BZIMAGE_LEN])
{
	for (unsigned i = 0; i < BZIMAGE_LEN; i++)
		file[i] = (uint8_t)(i * 7 + i / 256);
	memset(file + 0x1f1, 0, 0x29f - 0x1f1);
	put(file, 0x1f1, BZIMAGE_SETUP_SECTS, 1);
	put(file, 0x1f4, BZIMAGE_PAYLOAD / 16, 4);
	put(file, 0x1fe, 0xaa55, 2);
	put(file, 0x200, 0x6aeb, 2);
	put(file, 0x202, 0x53726448, 4);
	put(file, 0x206, 0x020f, 2);
	put(file, 0x211, 1, 1);
	put(file, 0x22c, 0x7fffffff, 4);
	put(file, 0x230, 0x200000, 4);
	put(file, 0x234, 1, 1);
	put(file, 0x235, 21, 1);
	put(file, 0x236, 0x3f, 2);
	put(file, 0x238, 2047, 4);
	put(file, 0x258, 0x1000000, 8);
	put(file, 0x260, 0x2400000, 4);
}
