/* The choice of VMX controls, each capability taken away in turn. Bit numbers are the SDM's. */
#include "arch/x86/vmx/controls.h"
#include "arch/x86/nested.h"
#include "arch/x86/vmx/cr.h"
#include "arch/x86/vmx/ept.h"
#include "tests/fake/platform.h"
#include "tests/unit/test.h"

#include <string.h>

static char why[200];

#define DEFAULT1_PIN   0x16u
#define DEFAULT1_PROC  0x0401e172u
#define DEFAULT1_EXIT  0x36dffu
#define DEFAULT1_ENTRY 0x11ffu

/* A processor that may set everything. */
static struct vmx_caps full_caps(void)
{
	struct vmx_caps caps = {
	        .basic = 0x1234 | 4096ull << 32 | 6ull << 50 | BIT(54) | BIT(55),
	        .misc = 5 | BIT(5),
	        .ept_vpid = BIT(0) | BIT(6) | BIT(14) | BIT(16) | BIT(17) | BIT(20) | BIT(21) |
	                    BIT(25) | BIT(26) | BIT(32) | BIT(40) | BIT(41) | BIT(42) | BIT(43),
	        .feature_control = 5,
	        .has_feature_control = true,
	        .cr0_fixed0 = 0x80000021,
	        .cr0_fixed1 = 0xffffffff,
	        .cr4_fixed0 = 0x2000,
	        .cr4_fixed1 = 0x7727ff,
	        .word =
	                {
	                        [VMX_PIN] = 0xffffffff00000000ull | DEFAULT1_PIN,
	                        [VMX_PROC] = 0xffffffff00000000ull | DEFAULT1_PROC,
	                        [VMX_PROC2] = 0xffffffff00000000ull,
	                        [VMX_EXIT] = 0xffffffff00000000ull | DEFAULT1_EXIT,
	                        [VMX_ENTRY] = 0xffffffff00000000ull | DEFAULT1_ENTRY,
	                },
	};

	memcpy(caps.true_word, caps.word, sizeof(caps.word));
	caps.true_word[VMX_PROC2] = 0;
	caps.true_word[VMX_PROC] &= ~(BIT(15) | BIT(16));
	caps.true_word[VMX_EXIT] &= ~BIT(2);
	caps.true_word[VMX_ENTRY] &= ~BIT(2);
	return caps;
}

static void mask(struct vmx_caps *caps, enum vmx_word w, unsigned bit)
{
	caps->word[w] &= ~(BIT(32 + bit) | BIT(bit));
	caps->true_word[w] &= ~(BIT(32 + bit) | BIT(bit));
}

static int choose(struct vmx_controls *c, const struct vmx_caps *caps)
{
	why[0] = 0;
	return vmx_controls_choose(c, caps, NULL, 0, why, sizeof(why));
}

static void full_machine(void)
{
	struct vmx_caps caps = full_caps();
	struct vmx_controls c;

	CHECK_EQ(choose(&c, &caps), 0);
	CHECK_EQ(c.word[VMX_PIN], DEFAULT1_PIN | BIT(0) | BIT(3) | BIT(5));
	CHECK_EQ(c.word[VMX_PROC], (DEFAULT1_PROC & ~(BIT(15) | BIT(16))) | BIT(3) | BIT(7) |
	                                   BIT(10) | BIT(11) | BIT(19) | BIT(20) | BIT(21) |
	                                   BIT(24) | BIT(28) | BIT(29) | BIT(31));
	CHECK_EQ(c.word[VMX_PROC2],
	         BIT(1) | BIT(3) | BIT(5) | BIT(6) | BIT(7) | BIT(9) | BIT(12) | BIT(20));
	CHECK_EQ(c.word[VMX_EXIT], DEFAULT1_EXIT | BIT(9) | BIT(18) | BIT(19) | BIT(20) | BIT(21));
	CHECK_EQ(c.word[VMX_ENTRY], DEFAULT1_ENTRY | BIT(14) | BIT(15));
	CHECK_EQ(c.features, BIT(20) - 1);
	CHECK_EQ(c.revision, 0x1234);
	CHECK_EQ(c.timer_shift, 5);
	CHECK_EQ(c.eptp_flags, 6 | 3 << 3 | 1 << 6);
	CHECK_EQ(c.cr0_must, 0x20); /* NE; PE and PG belong to unrestricted guests */
	CHECK_EQ(c.cr4_must, 0x2000);
	CHECK(!(c.cr4_guest & CR4_VMXE));
	CHECK_EQ(vmx_controls_check(&c, &caps, why, sizeof(why)), 0);
}

static const struct {
	enum vmx_word w;
	unsigned bit;
	const char *name;
} mandatory[] = {
        {VMX_PIN, 0, "external-interrupt exiting"},
        {VMX_PIN, 3, "NMI exiting"},
        {VMX_PIN, 5, "virtual NMIs"},
        {VMX_PROC, 22, "NMI-window exiting"},
        {VMX_PROC, 2, "interrupt-window exiting"},
        {VMX_PROC, 3, "TSC offsetting"},
        {VMX_PROC, 7, "HLT exiting"},
        {VMX_PROC, 19, "CR8-load exiting"},
        {VMX_PROC, 20, "CR8-store exiting"},
        {VMX_PROC, 28, "MSR bitmaps"},
        {VMX_PROC, 31, "secondary controls"},
        {VMX_PROC2, 1, "enable EPT"},
        {VMX_PROC2, 7, "unrestricted guest"},
        {VMX_EXIT, 2, "save debug controls"},
        {VMX_EXIT, 9, "host address-space size"},
        {VMX_EXIT, 20, "save IA32_EFER"},
        {VMX_EXIT, 21, "load IA32_EFER"},
        {VMX_ENTRY, 2, "load debug controls"},
        {VMX_ENTRY, 9, "IA-32e mode guest"},
        {VMX_ENTRY, 15, "load IA32_EFER"},
};

static void mandatory_missing(void)
{
	for (unsigned i = 0; i < ARRAY_LEN(mandatory); i++) {
		struct vmx_caps caps = full_caps();
		struct vmx_controls c;

		mask(&caps, mandatory[i].w, mandatory[i].bit);
		CHECK_EQ(choose(&c, &caps), -ENODEV);
		CHECK(strstr(why, mandatory[i].name));
		CHECK(strstr(why, "use a processor"));
		CHECK(!strchr(why, '\n'));
	}
}

static void mandatory_capabilities(void)
{
	static const struct {
		uint64_t ept, basic;
		const char *name;
	} cases[] = {
	        {BIT(6), 0, "EPT page-walk length 4"},
	        {BIT(14), 0, "EPT write-back"},
	        {BIT(20), 0, "INVEPT"},
	        {BIT(25) | BIT(26), 0, "INVEPT"},
	        {0, BIT(48), "64-bit VMCS addresses"},
	};

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		struct vmx_caps caps = full_caps();
		struct vmx_controls c;

		caps.ept_vpid &= ~cases[i].ept;
		caps.basic |= cases[i].basic;
		CHECK_EQ(choose(&c, &caps), -ENODEV);
		CHECK(strstr(why, cases[i].name));
	}
}

static const struct {
	enum vmx_word w;
	unsigned bit;
	const char *word;
	uint32_t feature;
} optional[] = {
        {VMX_PIN, 6, "preemption-timer", VMX_F_PREEMPT_TIMER},
        {VMX_PROC, 10, "mwait-exit", VMX_F_MWAIT},
        {VMX_PROC, 11, "rdpmc-exit", VMX_F_RDPMC},
        {VMX_PROC, 24, "io-exiting", VMX_F_IO_UNCOND},
        {VMX_PROC, 29, "monitor-exit", VMX_F_MONITOR},
        {VMX_PROC, 21, "virtual-interrupts", VMX_F_VIRT_INTR},
        {VMX_PROC2, 9, "virtual-interrupts", VMX_F_VIRT_INTR},
        {VMX_PROC2, 3, "rdtscp", VMX_F_RDTSCP},
        {VMX_PROC2, 5, "vpid", VMX_F_VPID},
        {VMX_PROC2, 6, "wbinvd-exit", VMX_F_WBINVD},
        {VMX_PROC2, 12, "invpcid", VMX_F_INVPCID},
        {VMX_PROC2, 20, "xsaves", VMX_F_XSAVES},
        {VMX_EXIT, 18, "pat", VMX_F_PAT},
        {VMX_EXIT, 19, "pat", VMX_F_PAT},
        {VMX_ENTRY, 14, "pat", VMX_F_PAT},
};

/* Each alone, by capability and by word: the same result, legal, and nothing else changes. */
static void optional_missing(void)
{
	for (unsigned i = 0; i < ARRAY_LEN(optional); i++) {
		struct vmx_caps caps = full_caps(), whole = full_caps();
		struct vmx_controls c, d, all;
		const char *disable[] = {"nonsense", optional[i].word};

		mask(&caps, optional[i].w, optional[i].bit);
		CHECK_EQ(choose(&all, &whole), 0);
		CHECK_EQ(choose(&c, &caps), 0);
		CHECK_EQ(vmx_controls_check(&c, &caps, why, sizeof(why)), 0);
		CHECK(!(c.word[optional[i].w] & BIT(optional[i].bit)));
		CHECK_EQ(c.features, all.features & ~optional[i].feature);
		CHECK_EQ(vmx_controls_choose(&d, &whole, disable, 2, why, sizeof(why)), 0);
		CHECK(memcmp(&c, &d, sizeof(c)) == 0);
	}
}

static void optional_capabilities(void)
{
	static const struct {
		uint64_t bit;
		const char *word;
		uint32_t feature;
	} cases[] = {
	        {BIT(16), "ept-2m", VMX_F_EPT_2M},
	        {BIT(17), "ept-1g", VMX_F_EPT_1G},
	        {BIT(21), "ept-ad", VMX_F_EPT_AD},
	        {BIT(25), "invept-types", VMX_F_INVEPT_SINGLE},
	        {BIT(41), "invvpid-types", VMX_F_INVVPID_SINGLE},
	};
	const char *word = "mmio-misconfig";
	struct vmx_caps whole = full_caps();
	struct vmx_controls all, c, d;

	CHECK_EQ(choose(&all, &whole), 0);
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		struct vmx_caps caps = full_caps();

		caps.ept_vpid &= ~cases[i].bit;
		CHECK_EQ(choose(&c, &caps), 0);
		CHECK_EQ(c.features, all.features & ~cases[i].feature);
		CHECK_EQ(!!(c.eptp_flags & BIT(6)), cases[i].bit != BIT(21));
		CHECK_EQ(vmx_controls_choose(&d, &whole, &cases[i].word, 1, why, sizeof(why)), 0);
		CHECK(memcmp(&c, &d, sizeof(c)) == 0);
	}
	CHECK_EQ(vmx_controls_choose(&d, &whole, &word, 1, why, sizeof(why)), 0);
	CHECK_EQ(d.features, all.features & ~VMX_F_MMIO_MISCONF);
	whole.basic &= ~BIT(54);
	CHECK_EQ(choose(&d, &whole), 0);
	CHECK_EQ(d.features, all.features & ~VMX_F_STRING_INFO);
}

/* VPID with no INVVPID that covers a whole VPID is no VPID. */
static void vpid_needs_invvpid(void)
{
	static const uint64_t gone[] = {BIT(32), BIT(41) | BIT(42)};

	for (unsigned i = 0; i < ARRAY_LEN(gone); i++) {
		struct vmx_caps caps = full_caps();
		struct vmx_controls c;

		caps.ept_vpid &= ~gone[i];
		CHECK_EQ(choose(&c, &caps), 0);
		CHECK(!(c.features & (VMX_F_VPID | VMX_F_INVVPID_SINGLE)));
		CHECK(!(c.word[VMX_PROC2] & BIT(5)));
	}
}

/* Told to do without the finer kind where the coarse one is missing: better the finer one. */
static void one_kind_of_flush(void)
{
	const char *words[] = {"invvpid-types", "invept-types"};
	struct vmx_caps caps = full_caps();
	struct vmx_controls c;

	caps.ept_vpid &= ~(BIT(26) | BIT(42));
	CHECK_EQ(vmx_controls_choose(&c, &caps, words, 2, why, sizeof(why)), 0);
	CHECK(c.features & VMX_F_VPID);
	CHECK(c.features & VMX_F_INVVPID_SINGLE);
	CHECK(c.features & VMX_F_INVEPT_SINGLE);
}

static void cr4_follows_the_processor(void)
{
	struct vmx_caps caps = full_caps();
	struct vmx_controls c;

	CHECK_EQ(choose(&c, &caps), 0);
	CHECK(c.cr4_guest & CR4_SMAP);
	caps.cr4_fixed1 &= ~CR4_SMAP;
	CHECK_EQ(choose(&c, &caps), 0);
	CHECK(!(c.cr4_guest & CR4_SMAP));
}

static void io_needs_one_way(void)
{
	struct vmx_caps caps = full_caps();
	struct vmx_controls c;

	mask(&caps, VMX_PROC, 24);
	CHECK_EQ(choose(&c, &caps), 0);
	CHECK(c.word[VMX_PROC] & BIT(25));
	mask(&caps, VMX_PROC, 25);
	CHECK_EQ(choose(&c, &caps), -ENODEV);
	CHECK(strstr(why, "I/O bitmaps"));
}

static void without_true_msrs(void)
{
	struct vmx_caps caps = full_caps(), whole = full_caps();
	struct vmx_controls c, d;
	const char *word = "true-controls";

	caps.basic &= ~BIT(55);
	memset(caps.true_word, 0, sizeof(caps.true_word));
	CHECK_EQ(choose(&c, &caps), 0);
	CHECK_EQ(c.word[VMX_PROC] & (BIT(15) | BIT(16)), BIT(15) | BIT(16));
	CHECK(!(c.features & VMX_F_CR3_FREE));
	CHECK_EQ(vmx_controls_choose(&d, &whole, &word, 1, why, sizeof(why)), 0);
	CHECK(memcmp(&c, &d, sizeof(c)) == 0);
}

static void forced_on(void)
{
	struct vmx_caps caps = full_caps();
	struct vmx_controls c;

	caps.true_word[VMX_PROC] |= BIT(12); /* RDTSC exiting */
	CHECK_EQ(choose(&c, &caps), -ENODEV);
	CHECK(strstr(why, "processor-based") && strstr(why, "0x1000"));
	caps = full_caps();
	caps.true_word[VMX_ENTRY] |= BIT(9);
	CHECK_EQ(choose(&c, &caps), -ENODEV);
}

static void check_finds_other_cores(void)
{
	struct vmx_caps caps = full_caps(), other = full_caps();
	struct vmx_controls c;

	CHECK_EQ(choose(&c, &caps), 0);
	mask(&other, VMX_PROC2, 12);
	CHECK_EQ(vmx_controls_check(&c, &other, why, sizeof(why)), -EINVAL);
	other = full_caps();
	other.true_word[VMX_EXIT] |= BIT(22);
	CHECK_EQ(vmx_controls_check(&c, &other, why, sizeof(why)), -EINVAL);
	other = full_caps();
	other.basic++;
	CHECK_EQ(vmx_controls_check(&c, &other, why, sizeof(why)), -EINVAL);
}

static void feature_control(void)
{
	static const struct {
		uint64_t value;
		int err;
		uint64_t write;
	} cases
	        [] =
	                {
	                        {0, 0, 5},
	                        {1, -ENODEV, 0},
	                        {2, 0, 7},
	                        {3, -ENODEV, 0},
	                        {4, 0, 5},
	                        {5, 0, 0},
	                        {6, 0, 7},
	                        {7, 0, 0},
	                        {0x100000, 0, 0x100005}, /* other bits stay */
	                };

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		struct vmx_caps caps = full_caps();
		uint64_t write = 99;

		caps.feature_control = cases[i].value;
		why[0] = 0;
		CHECK_EQ(vmx_feature_control(&caps, &write, why, sizeof(why)), cases[i].err);
		CHECK_EQ(write, cases[i].write);
		CHECK_EQ(strstr(why, "firmware setup") != NULL, cases[i].err != 0);
	}
}

static uint32_t asked[32];
static unsigned asked_count;
static struct vmx_caps machine;

static bool machine_rdmsr(uint32_t index, uint64_t *value)
{
	asked[asked_count++ % 32] = index;
	switch (index) {
	case 0x3a: return false;
	case 0x480: *value = machine.basic; return true;
	case 0x482: *value = machine.word[VMX_PROC]; return true;
	case 0x48b: *value = machine.word[VMX_PROC2]; return true;
	case 0x48c: *value = machine.ept_vpid; return true;
	default: *value = index; return true;
	}
}

static bool was_asked(uint32_t index)
{
	for (unsigned i = 0; i < asked_count; i++)
		if (asked[i] == index)
			return true;
	return false;
}

static void reads_only_what_exists(void)
{
	struct vmx_caps caps;

	machine = full_caps();
	asked_count = 0;
	vmx_caps_read(&caps, machine_rdmsr);
	CHECK(was_asked(0x48b) && was_asked(0x48c) && was_asked(0x48d) && was_asked(0x490));
	CHECK_EQ(caps.true_word[VMX_EXIT], 0x48f);
	CHECK(!caps.has_feature_control);
	CHECK_EQ(caps.feature_control, 0);

	machine.basic &= ~BIT(55);
	asked_count = 0;
	vmx_caps_read(&caps, machine_rdmsr);
	CHECK(!was_asked(0x48d) && !was_asked(0x48e) && !was_asked(0x48f) && !was_asked(0x490));

	machine.word[VMX_PROC2] &= ~(BIT(33) | BIT(37));
	asked_count = 0;
	vmx_caps_read(&caps, machine_rdmsr);
	CHECK(was_asked(0x48b) && !was_asked(0x48c));

	machine.word[VMX_PROC] &= ~BIT(63);
	asked_count = 0;
	vmx_caps_read(&caps, machine_rdmsr);
	CHECK(!was_asked(0x48b));
}

static void timer_ticks(void)
{
	CHECK_EQ(vmx_timer_ticks(100, 50, 5), 0);
	CHECK_EQ(vmx_timer_ticks(100, 100, 0), 0);
	CHECK_EQ(vmx_timer_ticks(100, 101, 0), 1);
	CHECK_EQ(vmx_timer_ticks(0, 64, 5), 2);
	CHECK_EQ(vmx_timer_ticks(31, 64, 5), 2);
	CHECK_EQ(vmx_timer_ticks(31, 65, 5), 3);
	CHECK_EQ(vmx_timer_ticks(0, UINT64_MAX, 0), UINT32_MAX);
	CHECK_EQ(vmx_timer_ticks(0, 0xffffffffull << 5, 5), UINT32_MAX);
	CHECK_EQ(vmx_timer_ticks(0, 0xfffffffeull << 5, 5), 0xfffffffe);
	CHECK_EQ(vmx_timer_ticks(0, UINT64_MAX, 31), UINT32_MAX);
}

/* The timer stops outside the guest; recomputing it from the deadline each time does not drift. */
static void timer_does_not_drift(void)
{
	uint64_t tsc = 12345, deadline = tsc + 3000000000ull;
	unsigned entries = 0;

	while (tsc < deadline && entries < 200000) {
		uint64_t ticks = vmx_timer_ticks(tsc, deadline, 5);
		uint64_t expiry = ((tsc >> 5) + ticks) << 5;

		tsc += 17000; /* in the guest */
		if (tsc >= expiry) {
			tsc = expiry;
			break;
		}
		tsc += 13001; /* outside it */
		entries++;
	}
	CHECK(entries > 90000);
	CHECK(tsc >= deadline && tsc < deadline + 13001 + 32);
}

static void cr0_writes(void)
{
	struct vmx_cr_state real = {.cr0 = 0x60000010}, s;
	struct vmx_cr_effect e;

	CHECK(vmx_cr0_write(&real, 0x11, &e));
	CHECK(!e.lma && !e.load_pdptes && !e.flush);
	CHECK(!vmx_cr0_write(&real, 0x20000011, &e));     /* NW without CD */
	CHECK(!vmx_cr0_write(&real, 0x80000010, &e));     /* PG without PE */
	CHECK(!vmx_cr0_write(&real, 0x100000011ull, &e)); /* upper half */

	s = (struct vmx_cr_state){.cr0 = 0x11, .efer = EFER_LME};
	CHECK(!vmx_cr0_write(&s, 0x80000011, &e)); /* long mode without PAE */
	s.cr4 = CR4_PAE;
	CHECK(vmx_cr0_write(&s, 0x80000011, &e));
	CHECK(e.lma && e.flush && !e.load_pdptes);
	s.cs_long = true;
	CHECK(!vmx_cr0_write(&s, 0x80000011, &e));
	s = (struct vmx_cr_state){.cr0 = 0x11, .cr4 = CR4_PAE};
	CHECK(vmx_cr0_write(&s, 0x80000011, &e));
	CHECK(!e.lma && e.load_pdptes);

	s = (struct vmx_cr_state){.cr0 = 0x80000011, .cr4 = CR4_PAE, .efer = EFER_LME | EFER_LMA};
	CHECK(vmx_cr0_write(&s, 0x11, &e)); /* leaves long mode from compatibility mode */
	CHECK(!e.lma && e.flush);
	s.cs_long = true;
	CHECK(!vmx_cr0_write(&s, 0x11, &e));
	CHECK(vmx_cr0_write(&s, 0x80050013, &e));
	CHECK(e.lma);
}

static void cr4_writes(void)
{
	struct vmx_cr_state s = {.cr0 = 0x80000011, .cr4 = CR4_PAE, .efer = EFER_LME | EFER_LMA};
	struct vmx_cr_effect e;
	uint64_t allowed = CR4_GUEST & 0x7727ff;

	CHECK(!vmx_cr4_write(&s, CR4_PAE | CR4_VMXE, allowed, &e));
	CHECK(!vmx_cr4_write(&s, CR4_PAE | BIT(14), allowed, &e));
	CHECK(!vmx_cr4_write(&s, CR4_PAE | BIT(12), allowed, &e));
	CHECK(!vmx_cr4_write(&s, BIT(40) | CR4_PAE, allowed, &e));
	CHECK(!vmx_cr4_write(&s, 0, allowed, &e)); /* PAE stays in long mode */
	CHECK(vmx_cr4_write(&s, CR4_PAE | CR4_MCE, allowed, &e));
	CHECK(e.lma && !e.flush && !e.load_pdptes);
	CHECK(vmx_cr4_write(&s, CR4_PAE | CR4_PCIDE, allowed, &e));
	CHECK(e.flush);
	s.cr3 = 1;
	CHECK(!vmx_cr4_write(&s, CR4_PAE | CR4_PCIDE, allowed, &e));
	s = (struct vmx_cr_state){.cr0 = 0x80000011};
	CHECK(!vmx_cr4_write(&s, CR4_PCIDE, allowed, &e));
	CHECK(vmx_cr4_write(&s, CR4_PAE, allowed, &e));
	CHECK(e.load_pdptes && e.flush && !e.lma);
	CHECK(vmx_pdpte_ok(0, 39) && vmx_pdpte_ok(0x1001, 39) && vmx_pdpte_ok(BIT(50), 39));
	CHECK(!vmx_pdpte_ok(0x1003, 39) && !vmx_pdpte_ok(BIT(39) | 1, 39));
}

static void ept_entries(void)
{
	struct nested_format f = ept_format(true, true, true);
	struct hvm_vm vm = {0};

	fake_reset();
	CHECK_EQ(nested_init(&f, &vm), 0);
	CHECK_EQ(nested_map_ram(&f, &vm, 0, 0x40000000, 3 * MIB), 0);
	CHECK_EQ(nested_map_mmio(&f, &vm, 0xfee00000, PAGE_SIZE), 0);
	CHECK_EQ(nested_lookup(&f, &vm, 0).entry, 0x40000000 | 0x3b7);       /* 2 MiB, WB, A, D */
	CHECK_EQ(nested_lookup(&f, &vm, 2 * MIB).entry, 0x40200000 | 0x337); /* 4 KiB */
	CHECK_EQ(nested_lookup(&f, &vm, 0xfee00000).entry, 2);               /* write, not read */
	CHECK(nested_mmio_is_present(&f));
	CHECK_EQ(nested_map_ram(&f, &vm, 4 * GIB, 8 * GIB, GIB), 0);
	CHECK_EQ(nested_lookup(&f, &vm, 4 * GIB).len_bytes, GIB);

	f = ept_format(true, false, false);
	CHECK(!nested_mmio_is_present(&f));
	CHECK_EQ(nested_init(&f, &vm), 0);
	CHECK_EQ(nested_map_mmio(&f, &vm, 0xfee00000, PAGE_SIZE), 0);
	CHECK_EQ(nested_lookup(&f, &vm, 0xfee00000).entry & 7, 0);
	CHECK_EQ(nested_lookup(&f, &vm, 0xfee00000).kind, NESTED_MMIO);
	CHECK_EQ(nested_lookup(&f, &vm, 0xfee01000).kind, NESTED_HOLE);
	fake_reset();
}

TESTS(T(full_machine), T(mandatory_missing), T(mandatory_capabilities), T(optional_missing),
      T(optional_capabilities), T(vpid_needs_invvpid), T(one_kind_of_flush),
      T(cr4_follows_the_processor), T(io_needs_one_way), T(without_true_msrs), T(forced_on),
      T(check_finds_other_cores), T(feature_control), T(reads_only_what_exists), T(timer_ticks),
      T(timer_does_not_drift), T(cr0_writes), T(cr4_writes), T(ept_entries))
