#include "tests/unit/fetch_mutant.h"

#include "arch/platform.h"

uint32_t fetch_mutant_read_once(const volatile uint32_t *len_bytes)
{
	return *len_bytes;
}

uint32_t fetch_mutant_check_then_use(const volatile uint32_t *len_bytes, uint32_t max)
{
	if (*len_bytes > max)
		return 0;
	return *len_bytes;
}

uint32_t fetch_mutant_copy_twice(const void *from)
{
	uint32_t first, second;

	memcpy(&first, from, sizeof(first));
	memcpy(&second, from, sizeof(second));
	return first ^ second;
}
