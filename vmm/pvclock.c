#include "vmm/pvclock.h"

#include "arch/platform.h"
#include "vmm/scale.h"

#define NS_PER_S 1000000000ull

#define FLAG_TSC_STABLE 1u

/* The pages' layout, as Linux Documentation/virt/kvm/x86/msr.rst gives it. */
struct time_page {
	uint32_t version; /* odd: being written */
	uint32_t pad0;
	uint64_t tsc_timestamp;
	uint64_t system_time_ns;
	uint32_t tsc_to_system_mul;
	int8_t tsc_shift;
	uint8_t flags;
	uint8_t pad[2];
};
_Static_assert(sizeof(struct time_page) == 32, "ABI");
_Static_assert(offsetof(struct time_page, flags) == 29, "ABI");

struct wall_page {
	uint32_t version;
	uint32_t sec, nsec;
};
_Static_assert(sizeof(struct wall_page) == 12, "ABI");

void pvclock_init(struct pvclock_base *base, uint64_t tsc_hz, uint64_t wall_unix_ns)
{
	uint64_t ratio = scale_ratio(NS_PER_S, tsc_hz);
	int shift = 0;

	/* ns = (tsc shifted left by shift) * mul / 2^32, with mul's highest bit set. */
	for (; ratio < BIT(SCALE_FRAC_BITS - 1); ratio <<= 1)
		shift--;
	for (; ratio >= BIT(SCALE_FRAC_BITS); ratio >>= 1)
		shift++;
	base->tsc_to_system_mul = (uint32_t)(ratio >> (SCALE_FRAC_BITS - 32));
	base->tsc_shift = (int8_t)shift;
	base->wall_unix_ns = wall_unix_ns;
}

/*
 * Writes a page behind its version: odd, contents, even. The guest's own readers may be at it
 * already; a version that was used never comes back with other contents.
 */
static int page_write(const struct gmem *mem, gpa_t gpa, void *page, size_t len_bytes)
{
	uint32_t *version = page;
	size_t rest = sizeof(*version);
	int err;

	err = gmem_read(mem, gpa, version, sizeof(*version));
	if (err)
		return -EFAULT;
	*version |= 1;
	err = gmem_write(mem, gpa, version, sizeof(*version));
	if (err)
		return -EFAULT;
	atomic_thread_fence(memory_order_release);
	err = gmem_write(mem, gpa + rest, (uint8_t *)page + rest, len_bytes - rest);
	if (err)
		return -EFAULT;
	atomic_thread_fence(memory_order_release);
	*version += 1;
	return gmem_write(mem, gpa, version, sizeof(*version)) ? -EFAULT : 0;
}

int pvclock_system_time_set(const struct pvclock_base *base, const struct gmem *mem, uint64_t value)
{
	struct time_page page = {
	        .tsc_to_system_mul = base->tsc_to_system_mul,
	        .tsc_shift = base->tsc_shift,
	        .flags = FLAG_TSC_STABLE,
	};

	if (!(value & 1))
		return 0;
	return page_write(mem, value & ~1ull, &page, sizeof(page));
}

int pvclock_wall_clock_set(const struct pvclock_base *base, const struct gmem *mem, uint64_t value)
{
	struct wall_page page = {
	        .sec = (uint32_t)(base->wall_unix_ns / NS_PER_S),
	        .nsec = (uint32_t)(base->wall_unix_ns % NS_PER_S),
	};

	return page_write(mem, value, &page, sizeof(page));
}
