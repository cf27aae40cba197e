#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"
#include "vmm/cpuid.h"

#include <string.h>

enum { EAX, EBX, ECX, EDX };

#define CR4_OSXSAVE BIT(18)
#define CR4_PKE     BIT(22)

/* --- hosts ------------------------------------------------------------------------------------ */

static const char *host_vendor;
static uint32_t host_basic_max, host_extended_max, host_fill;

/* A host with every bit of every leaf, or none, but where a number has a meaning. */
static void host_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
	for (unsigned i = 0; i < 4; i++)
		out[i] = host_fill;
	switch (leaf) {
	case 0:
		out[EAX] = host_basic_max;
		memcpy(&out[EBX], host_vendor, 4);
		memcpy(&out[EDX], host_vendor + 4, 4);
		memcpy(&out[ECX], host_vendor + 8, 4);
		break;
	case 4: /* L1D, L1I, L2, L3, end; 16 threads share the last on the host */
	case 0x8000001d:
		out[EAX] = subleaf > 3 ? 0
		                       : (subleaf == 3 ? 3 : 1 + (subleaf == 2) * 2) |
		                                 (subleaf < 2 ? 1u : subleaf) << 5 | 1u << 8 |
		                                 (subleaf == 3 ? 15u : 1u) << 14 |
		                                 (leaf == 4 ? 7u << 26 : 0);
		out[EBX] = 0x01c0003f;
		break;
	case 0xd:
		if (subleaf >= 2 && subleaf < 32) {
			out[EAX] = 64 * subleaf;
			out[EBX] = 512 + 64 * subleaf;
		}
		break;
	case 0x80000000: out[EAX] = host_extended_max; break;
	case 0x80000008:
		out[EAX] = 0x3930; /* 48 physical, 57 linear */
		break;
	}
}

static void host(const char *vendor, uint32_t basic_max, uint32_t extended_max, uint32_t fill,
                 unsigned vcpus)
{
	fx_init(vcpus);
	host_vendor = vendor;
	host_basic_max = basic_max;
	host_extended_max = extended_max;
	host_fill = fill;
	fake_cpuid = host_cpuid;
}

#define INTEL "GenuineIntel"
#define AMD   "AuthenticAMD"

static uint32_t reg_of(unsigned vcpu, uint32_t leaf, uint32_t subleaf, unsigned reg)
{
	uint32_t out[4] = {0xdead, 0xdead, 0xdead, 0xdead};

	cpuid_emulate(&fx_vcpu[vcpu], leaf, subleaf, out);
	return out[reg];
}

static bool bit_of(uint32_t leaf, unsigned reg, unsigned bit)
{
	return reg_of(0, leaf, 0, reg) >> bit & 1;
}

static bool is_zero(uint32_t leaf, uint32_t subleaf)
{
	uint32_t out[4];

	cpuid_emulate(&fx_vcpu[0], leaf, subleaf, out);
	return !(out[0] | out[1] | out[2] | out[3]);
}

/* --- feature bits ----------------------------------------------------------------------------- */

struct feature {
	uint32_t leaf;
	uint8_t reg, bit;
};

/* What a guest must never see, be the host ever so rich. */
static const struct feature hidden[] = {
        {1, ECX, 2},
        {1, ECX, 3} /* MONITOR */,
        {1, ECX, 4},
        {1, ECX, 5} /* VMX */,
        {1, ECX, 6} /* SMX */,
        {1, ECX, 7},
        {1, ECX, 8},
        {1, ECX, 10},
        {1, ECX, 11},
        {1, ECX, 14},
        {1, ECX, 15},
        {1, ECX, 18},
        {1, EDX, 18},
        {1, EDX, 21},
        {1, EDX, 22},
        {1, EDX, 29},
        {1, EDX, 31},
        {7, EBX, 1},
        {7, EBX, 2} /* SGX */,
        {7, EBX, 12},
        {7, EBX, 14} /* MPX */,
        {7, EBX, 15},
        {7, EBX, 25} /* PT */,
        {7, ECX, 5},
        {7, ECX, 7},
        {7, ECX, 13},
        {7, ECX, 16} /* LA57 */,
        {7, ECX, 23},
        {7, ECX, 24},
        {7, ECX, 29},
        {7, ECX, 30},
        {7, ECX, 31},
        {7, EDX, 15},
        {7, EDX, 18},
        {7, EDX, 19},
        {7, EDX, 20},
        {7, EDX, 22},
        {7, EDX, 24},
        {7, EDX, 25},
        {7, EDX, 26} /* SPEC_CTRL */,
        {7, EDX, 27},
        {7, EDX, 28},
        {7, EDX, 29},
        {7, EDX, 30},
        {7, EDX, 31},
        {0x80000001, ECX, 2} /* SVM */,
        {0x80000001, ECX, 3},
        {0x80000001, ECX, 9},
        {0x80000001, ECX, 10},
        {0x80000001, ECX, 12},
        {0x80000001, ECX, 13},
        {0x80000001, ECX, 15},
        {0x80000001, ECX, 17},
        {0x80000001, ECX, 19},
        {0x80000001, ECX, 23},
        {0x80000001, ECX, 24},
        {0x80000001, ECX, 28},
        {0x80000001, ECX, 29} /* MWAITX */,
        {0x80000001, EDX, 25} /* FFXSR */,
        {0x80000007, EDX, 0},
        {0x80000007, EDX, 7},
        {0x80000007, EDX, 9},
        {0x80000008, EBX, 12} /* IBPB */,
        {0x80000008, EBX, 14},
        {0x80000008, EBX, 15},
        {0x80000008, EBX, 24},
        {0x80000008, EBX, 25} /* VIRT_SSBD */,
        {0x80000021, EAX, 8},
};

/* What a guest sees if the host has it. */
static const struct feature shown[] = {
        {1, ECX, 0},
        {1, ECX, 17} /* PCID */,
        {1, ECX, 25},
        {1, ECX, 26},
        {1, ECX, 28},
        {1, ECX, 30},
        {1, EDX, 0},
        {1, EDX, 4},
        {1, EDX, 7},
        {1, EDX, 12},
        {1, EDX, 14},
        {1, EDX, 16},
        {7, EBX, 0},
        {7, EBX, 4},
        {7, EBX, 5},
        {7, EBX, 7},
        {7, EBX, 10} /* INVPCID */,
        {7, EBX, 11},
        {7, EBX, 16},
        {7, EBX, 20} /* SMAP */,
        {7, ECX, 2},
        {7, ECX, 3} /* PKU */,
        {7, ECX, 22},
        {7, EDX, 4},
        {7, EDX, 10},
        {0x80000001, ECX, 0},
        {0x80000001, ECX, 5},
        {0x80000001, ECX, 22},
        {0x80000001, EDX, 11},
        {0x80000001, EDX, 20},
        {0x80000001, EDX, 26},
        {0x80000001, EDX, 27},
        {0x80000001, EDX, 29},
        {0x80000007, EDX, 8},
        {0x80000008, EBX, 0},
        {0x80000021, EAX, 2},
};

/* What a guest sees on any host. */
static const struct feature always[] = {
        {1, ECX, 21} /* x2APIC */,     {1, ECX, 24} /* TSC deadline */,
        {1, ECX, 31} /* hypervisor */, {1, EDX, 9},
        {6, EAX, 2} /* ARAT */,
};

static void feature_policy(void)
{
	for (unsigned amd = 0; amd < 2; amd++) {
		const char *vendor = amd ? AMD : INTEL;

		host(vendor, 0x20, 0x80000028, UINT32_MAX, 2);
		for (size_t i = 0; i < ARRAY_LEN(hidden); i++)
			if (bit_of(hidden[i].leaf, hidden[i].reg, hidden[i].bit)) {
				printf("  %x.%u[%u]\n", hidden[i].leaf, hidden[i].reg,
				       hidden[i].bit);
				CHECK(!"hidden");
			}
		for (size_t i = 0; i < ARRAY_LEN(shown); i++)
			CHECK(bit_of(shown[i].leaf, shown[i].reg, shown[i].bit));
		for (size_t i = 0; i < ARRAY_LEN(always); i++)
			CHECK(bit_of(always[i].leaf, always[i].reg, always[i].bit));
		host(vendor, 0x20, 0x80000028, 0, 1);
		for (size_t i = 0; i < ARRAY_LEN(shown); i++)
			CHECK(!bit_of(shown[i].leaf, shown[i].reg, shown[i].bit));
		for (size_t i = 0; i < ARRAY_LEN(always); i++)
			CHECK(bit_of(always[i].leaf, always[i].reg, always[i].bit));
	}
}

static void leaves_of_hidden_features_are_zero(void)
{
	static const uint32_t leaves[] = {
	        3,    5,    8,    9,          0xa,        0xc,        0xe,        0xf,       0x10,
	        0x11, 0x12, 0x13, 0x14,       0x17,       0x18,       0x19,       0x1a,      0x1b,
	        0x1c, 0x1d, 0x1e, 0x8000000a, 0x8000001b, 0x8000001c, 0x8000001f, 0x80000020};

	host(AMD, 0x20, 0x80000028, UINT32_MAX, 2);
	for (size_t i = 0; i < ARRAY_LEN(leaves); i++)
		for (uint32_t subleaf = 0; subleaf < 4; subleaf++)
			CHECK(is_zero(leaves[i], subleaf));
	CHECK(is_zero(7, 2));
	CHECK_EQ(reg_of(0, 7, 0, EAX), 1);
	CHECK_EQ(reg_of(0, 6, 0, EAX), 4);
	CHECK_EQ(reg_of(0, 6, 0, ECX), 0);
}

static void bits_follow_cr4(void)
{
	host(INTEL, 0x16, 0x80000008, UINT32_MAX, 1);
	CHECK(!bit_of(1, ECX, 27));
	CHECK(!bit_of(7, ECX, 4));
	fx_state.cr4 = CR4_OSXSAVE;
	CHECK(bit_of(1, ECX, 27));
	CHECK(!bit_of(7, ECX, 4));
	fx_state.cr4 = CR4_PKE;
	CHECK(!bit_of(1, ECX, 27));
	CHECK(bit_of(7, ECX, 4));
	host(INTEL, 0x16, 0x80000008, 0, 1);
	fx_state.cr4 = CR4_OSXSAVE | CR4_PKE;
	CHECK(!bit_of(1, ECX, 27));
	CHECK(!bit_of(7, ECX, 4));
}

static void xsave_states(void)
{
	host(INTEL, 0x16, 0x80000008, UINT32_MAX, 1);
	CHECK_EQ(reg_of(0, 0xd, 0, EAX), 0x2e7); /* no MPX, no AMX */
	CHECK_EQ(reg_of(0, 0xd, 0, EDX), 0);
	CHECK_EQ(reg_of(0, 0xd, 0, EBX), UINT32_MAX); /* live */
	CHECK_EQ(reg_of(0, 0xd, 0, ECX), 512 + 128 * 9);
	CHECK_EQ(reg_of(0, 0xd, 1, EAX), 7); /* no XSAVES */
	CHECK_EQ(reg_of(0, 0xd, 1, ECX), 0);
	fx_xcr0 = 3;
	CHECK_EQ(reg_of(0, 0xd, 1, EBX), 576); /* legacy area and header */
	fx_xcr0 = 7;
	CHECK_EQ(reg_of(0, 0xd, 1, EBX), 576 + 128);
	CHECK_EQ(reg_of(0, 0xd, 2, EAX), 128);
	CHECK_EQ(reg_of(0, 0xd, 9, EBX), 512 + 64 * 9);
	CHECK(is_zero(0xd, 3));
	CHECK(is_zero(0xd, 8));
	CHECK(is_zero(0xd, 11));
	CHECK(is_zero(0xd, 17));
	CHECK(is_zero(0xd, 33));
	CHECK(is_zero(0xd, UINT32_MAX));
	host(INTEL, 0x16, 0x80000008, 0, 1);
	CHECK_EQ(reg_of(0, 0xd, 0, ECX), 576);
}

/* --- topology --------------------------------------------------------------------------------- */

static unsigned bits_for(unsigned count)
{
	unsigned bits = 0;

	while (1u << bits < count)
		bits++;
	return bits;
}

/* Leaves 1, 4, 0xB, 0x1F, 0x80000008, 0x8000001D and 0x8000001E tell one story for every vCPU. */
static void topology_agrees(void)
{
	static const unsigned counts[] = {1, 2, 3, 4, 5, 8, 16, 32};

	for (unsigned amd = 0; amd < 2; amd++)
		for (size_t c = 0; c < ARRAY_LEN(counts); c++) {
			unsigned n = counts[c], bits = bits_for(n);

			host(amd ? AMD : INTEL, 0x1f, 0x80000021, UINT32_MAX, n);
			for (unsigned i = 0; i < n; i++) {
				CHECK_EQ(reg_of(i, 1, 0, EBX) >> 24, i);
				CHECK_EQ(reg_of(i, 1, 0, EBX) >> 16 & 0xff, 1u << bits);
				CHECK_EQ(reg_of(i, 1, 0, EDX) >> 28 & 1, n > 1);
				for (uint32_t leaf = 0xb; leaf <= 0x1f; leaf += 0x14) {
					CHECK_EQ(reg_of(i, leaf, 0, EAX), 0);
					CHECK_EQ(reg_of(i, leaf, 0, EBX), 1);
					CHECK_EQ(reg_of(i, leaf, 0, ECX), 0x100);
					CHECK_EQ(reg_of(i, leaf, 1, EAX), bits);
					CHECK_EQ(reg_of(i, leaf, 1, EBX), n);
					CHECK_EQ(reg_of(i, leaf, 1, ECX), 0x201);
					CHECK_EQ(reg_of(i, leaf, 2, EBX), 0);
					CHECK_EQ(reg_of(i, leaf, 2, ECX), 2);
					for (uint32_t sub = 0; sub < 5; sub++)
						CHECK_EQ(reg_of(i, leaf, sub, EDX), i);
				}
				CHECK_EQ(reg_of(i, 0x8000001e, 0, EAX), i);
				CHECK_EQ(reg_of(i, 0x8000001e, 0, EBX), i);
				CHECK_EQ(reg_of(i, 0x8000001e, 0, ECX), 0);
			}
			for (uint32_t sub = 0; sub < 4; sub++) {
				CHECK_EQ(reg_of(0, 4, sub, EAX) >> 26, (1u << bits) - 1);
				CHECK_EQ(reg_of(0, 4, sub, EAX) >> 14 & 0xfff,
				         sub == 3 ? (1u << bits) - 1 : 0);
				CHECK_EQ(reg_of(0, 0x8000001d, sub, EAX) >> 14,
				         sub == 3 ? (1u << bits) - 1 : 0);
			}
			CHECK_EQ(reg_of(0, 4, 3, EAX) & 0x3fff, 0x163);
			CHECK_EQ(reg_of(0, 4, 3, EBX), 0x01c0003f);
			CHECK(is_zero(4, 4));
			CHECK(is_zero(0x8000001d, 4));
			CHECK_EQ(reg_of(0, 0x80000008, 0, ECX), amd ? (n - 1) | bits << 12 : 0);
			CHECK_EQ(reg_of(0, 0x80000008, 0, EAX), 0x3030);
			CHECK_EQ(bit_of(0x80000001, ECX, 1), amd && n > 1);
		}
}

/* --- timing and hypervisor leaves ------------------------------------------------------------- */

static void timing(void)
{
	uint32_t num, den;
	static const uint64_t rates[] = {1000000000, 2400000000, 2399998765, 3792123456,
	                                 1896000000, 2099999999, 5700000001, 800000000};

	host(INTEL, 0xd, 0x80000008, 0, 1);
	CHECK_EQ(reg_of(0, 0, 0, EAX), 0x16);
	CHECK_EQ(reg_of(0, 0x15, 0, ECX), 1000000000);
	CHECK_EQ(reg_of(0, 0x15, 0, EAX), 1);
	CHECK_EQ(reg_of(0, 0x15, 0, EBX), 1);
	CHECK_EQ(reg_of(0, 0x16, 0, EAX), 1000);
	CHECK_EQ(reg_of(0, 0x16, 0, ECX), 100);
	host(AMD, 0xd, 0x8000001f, UINT32_MAX, 1);
	CHECK_EQ(reg_of(0, 0, 0, EAX), 0xd);
	CHECK(is_zero(0x15, 0));
	CHECK(is_zero(0x16, 0));
	for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
		uint64_t told;

		cpuid_fraction(rates[i], 1000000000, 4294, &num, &den);
		CHECK(num > 0 && num <= 4294 && den > 0);
		/* As Linux does it: kHz, 32 bits. */
		told = (uint64_t)((uint32_t)(1000000u * num) / den) * 1000;
		CHECK(told + 20000 > rates[i] && told < rates[i] + 20000);
	}
}

static void hypervisor_leaves(void)
{
	uint32_t out[4];

	host(INTEL, 0x16, 0x80000008, UINT32_MAX, 1);
	cpuid_emulate(&fx_vcpu[0], 0x40000000, 0, out);
	CHECK_EQ(out[EAX], 0x40000010);
	CHECK(!memcmp(&out[EBX], "KVMKVMKVM\0\0\0", 12));
	CHECK_EQ(reg_of(0, 0x40000001, 0, EAX), 0x0100004b);
	CHECK_EQ(reg_of(0, 0x40000001, 0, EDX), 0);
	CHECK_EQ(reg_of(0, 0x40000010, 0, EAX), 1000000);
	CHECK_EQ(reg_of(0, 0x40000010, 0, EBX), 1000000);
	CHECK(is_zero(0x40000002, 0));
	CHECK(is_zero(0x40000011, 0));
	CHECK(is_zero(0x400000ff, 0));
}

static void out_of_range(void)
{
	static const uint32_t leaves[] = {0x17,       0x1000,     0x3fffffff,
	                                  0x40000200, 0x7fffffff, 0x80000009,
	                                  0x80860000, 0xc0000000, UINT32_MAX};

	host(INTEL, 0x16, 0x80000008, UINT32_MAX, 1);
	for (size_t i = 0; i < ARRAY_LEN(leaves); i++) {
		CHECK_EQ(reg_of(0, leaves[i], 0, EAX), 1000); /* the last basic leaf */
		CHECK_EQ(reg_of(0, leaves[i], 0, ECX), 100);
	}
	host(AMD, 0x10, 0x80000008, UINT32_MAX, 1);
	for (size_t i = 0; i < ARRAY_LEN(leaves); i++)
		CHECK(is_zero(leaves[i], 0));
	/* Never more than we know, never less than the host has. */
	host(AMD, 0x30, 0x80000040, UINT32_MAX, 1);
	CHECK_EQ(reg_of(0, 0, 0, EAX), 0x1f);
	CHECK_EQ(reg_of(0, 0x80000000, 0, EAX), 0x80000021);
	CHECK_EQ(reg_of(0, 0, 0, EBX), 0x68747541);
	/* A host without extended leaves. */
	host(INTEL, 0x16, 0, 0, 1);
	CHECK_EQ(reg_of(0, 0x80000000, 0, EAX), 0x80000000);
	CHECK_EQ(cpuid_phys_bits(), 36);
	CHECK_EQ(reg_of(0, 0x80000001, 0, EAX), 1000);
}

static void vendors(void)
{
	host("GenuineIntel", 1, 0, 0, 1);
	CHECK_EQ(cpuid_vendor(), CPUID_INTEL);
	host("AuthenticAMD", 1, 0, 0, 1);
	CHECK_EQ(cpuid_vendor(), CPUID_AMD);
	host("HygonGenuine", 1, 0, 0, 1);
	CHECK_EQ(cpuid_vendor(), CPUID_AMD);
	host("  Shanghai  ", 1, 0, 0, 1);
	CHECK_EQ(cpuid_vendor(), CPUID_OTHER);
}

/* Every leaf and many subleaves with a hostile host: the sanitizers watch. */
static void sweep(void)
{
	for (unsigned amd = 0; amd < 2; amd++) {
		host(amd ? AMD : INTEL, UINT32_MAX, UINT32_MAX, UINT32_MAX, 32);
		for (uint32_t base = 0; base < 0x10; base++)
			for (uint32_t leaf = 0; leaf < 0x40; leaf++)
				for (uint32_t sub = 0; sub < 40; sub++)
					reg_of(31, base << 28 | leaf, sub == 39 ? UINT32_MAX : sub,
					       EAX);
	}
	CHECK(true);
}

TESTS(T(feature_policy), T(leaves_of_hidden_features_are_zero), T(bits_follow_cr4), T(xsave_states),
      T(topology_agrees), T(timing), T(hypervisor_leaves), T(out_of_range), T(vendors), T(sweep))
