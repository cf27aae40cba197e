#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"
#include "vmm/cpuid.h"

#include <string.h>

#define V (&fx_vcpu[0])

#define EFER_ALL 0xd01u /* SCE LME LMA NX */

static const char *host_vendor;
static bool host_has_nx, host_has_rdtscp;

static void host_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
	(void)subleaf;
	memset(out, 0, 4 * sizeof(out[0]));
	switch (leaf) {
	case 0:
		out[0] = 0x16;
		memcpy(&out[1], host_vendor, 4);
		memcpy(&out[3], host_vendor + 4, 4);
		memcpy(&out[2], host_vendor + 8, 4);
		break;
	case 0x80000000: out[0] = 0x80000008; break;
	case 0x80000001:
		out[3] = (host_has_nx ? 1u << 20 : 0) | (host_has_rdtscp ? 1u << 27 : 0);
		break;
	case 0x80000008: out[0] = 40 | 48 << 8; break;
	}
}

static void setup(const char *vendor)
{
	fx_init(2);
	host_vendor = vendor;
	host_has_nx = host_has_rdtscp = true;
	fake_cpuid = host_cpuid;
	msr_init(&fx_vcpu[0]);
	msr_init(&fx_vcpu[1]);
	pvclock_init(&fx_vm.clock, 1000000000, 5000000000);
}

#define INTEL "GenuineIntel"
#define AMD   "AuthenticAMD"

/* What RDMSR gives, or all ones and a note that it faulted. */
static int rd_err;

static uint64_t rd(uint32_t index)
{
	uint64_t value = UINT64_MAX;

	rd_err = msr_read(V, index, &value);
	return value;
}

static bool faults(uint32_t index)
{
	uint64_t value = 0x1234567890abcdefull;
	int err = msr_read(V, index, &value);

	/* #GP leaves EDX:EAX alone. */
	CHECK(!err || value == 0x1234567890abcdefull);
	return err == -EINVAL;
}

/* --- EFER and what else the control block holds ----------------------------------------------- */

static void efer(void)
{
	setup(INTEL);
	CHECK_EQ(rd(0xc0000080), 0);
	CHECK_EQ(msr_write(V, 0xc0000080, 0x901), 0);
	CHECK_EQ(fx_state.efer, 0x901);
	CHECK_EQ(rd(0xc0000080), 0x901);
	for (unsigned bit = 0; bit < 64; bit++)
		CHECK_EQ(msr_write(V, 0xc0000080, BIT(bit)), BIT(bit) & EFER_ALL ? 0 : -EINVAL);
	/* Paging on: LMA is the processor's, LME stays. */
	fx_state.efer = 0xd01;
	fx_state.cr0 = BIT(31);
	CHECK_EQ(msr_write(V, 0xc0000080, 0x501), 0);
	CHECK_EQ(fx_state.efer, 0x501);
	CHECK_EQ(msr_write(V, 0xc0000080, 0x901), 0);
	CHECK_EQ(fx_state.efer, 0xd01);
	CHECK_EQ(msr_write(V, 0xc0000080, 0xc01), -EINVAL);
	CHECK_EQ(fx_state.efer, 0xd01);
	/* No NX, no NXE. */
	host_has_nx = false;
	CHECK_EQ(msr_write(V, 0xc0000080, 0xd01), -EINVAL);
	CHECK_EQ(msr_write(V, 0xc0000080, 0x501), 0);
	/* SVM is hidden: SVME is reserved. */
	setup(AMD);
	CHECK_EQ(msr_write(V, 0xc0000080, 0x1000), -EINVAL);
}

static void control_block_registers(void)
{
	setup(INTEL);
	CHECK_EQ(msr_write(V, 0x277, 0x0007040600070406), 0);
	CHECK_EQ(fx_state.pat, 0x0007040600070406);
	CHECK_EQ(msr_write(V, 0x277, 0x0007040600070402), -EINVAL);
	CHECK_EQ(msr_write(V, 0x277, 0x0807040600070406), -EINVAL);
	CHECK_EQ(rd(0x277), 0x0007040600070406);
	CHECK_EQ(msr_write(V, 0x174, 0x1234500000010), 0);
	CHECK_EQ(rd(0x174), 0x10);
	CHECK_EQ(msr_write(V, 0x176, 0xffffffff81000000), 0);
	CHECK_EQ(rd(0x176), 0xffffffff81000000);
	CHECK_EQ(msr_write(V, 0x175, 0x0000800000000000), -EINVAL);
	CHECK_EQ(msr_write(V, 0xc0000100, 0x00007fffffffffff), 0);
	CHECK_EQ(fx_state.seg[HVM_FS].base, 0x00007fffffffffff);
	CHECK_EQ(msr_write(V, 0xc0000101, 0xffff7fffffffffff), -EINVAL);
	CHECK_EQ(msr_write(V, 0xc0000101, 0xffff800000000000), 0);
	CHECK_EQ(rd(0xc0000101), 0xffff800000000000);
}

/* --- memory types ----------------------------------------------------------------------------- */

static void mtrr(void)
{
	setup(INTEL);
	CHECK_EQ(rd(0xfe), 0x508);
	CHECK_EQ(rd(0x2ff), 0xc06);
	CHECK_EQ(rd(0x250), 0x0606060606060606);
	for (uint32_t index = 0x200; index < 0x210; index += 2) {
		CHECK_EQ(rd(index), 0);
		CHECK_EQ(rd(index + 1), 0);
		CHECK_EQ(msr_write(V, index, 0xc000000000 | index << 12 | 6), 0);
		CHECK_EQ(msr_write(V, index + 1, 0xffc0000800), 0);
	}
	CHECK_EQ(rd(0x204), 0xc000204006);
	CHECK_EQ(rd(0x20f), 0xffc0000800);
	/* Types 2, 3 and 7, bits 11:8, and beyond the 40 address bits. */
	CHECK_EQ(msr_write(V, 0x200, 2), -EINVAL);
	CHECK_EQ(msr_write(V, 0x200, 7), -EINVAL);
	CHECK_EQ(msr_write(V, 0x200, 0x106), -EINVAL);
	CHECK_EQ(msr_write(V, 0x200, BIT(40) | 6), -EINVAL);
	CHECK_EQ(msr_write(V, 0x201, 0x400), -EINVAL);
	CHECK_EQ(msr_write(V, 0x201, BIT(40)), -EINVAL);
	CHECK(faults(0x210));
	CHECK(faults(0x211));
	static const uint32_t fixed[] = {0x250, 0x258, 0x259, 0x268, 0x269, 0x26a,
	                                 0x26b, 0x26c, 0x26d, 0x26e, 0x26f};
	for (unsigned i = 0; i < ARRAY_LEN(fixed); i++)
		CHECK_EQ(msr_write(V, fixed[i], 0x0001040506000000 | i % 2), 0);
	for (unsigned i = 0; i < ARRAY_LEN(fixed); i++)
		CHECK_EQ(rd(fixed[i]), 0x0001040506000000 | i % 2);
	CHECK_EQ(msr_write(V, 0x250, 0x0200000000000000), -EINVAL);
	CHECK(faults(0x251));
	CHECK(faults(0x25a));
	CHECK(faults(0x267));
	CHECK(faults(0x270));
	CHECK_EQ(msr_write(V, 0x2ff, 0), 0);
	CHECK_EQ(rd(0x2ff), 0);
	CHECK_EQ(msr_write(V, 0x2ff, 0x1000), -EINVAL);
	CHECK_EQ(msr_write(V, 0x2ff, 0x803), -EINVAL);
	CHECK_EQ(msr_write(V, 0xfe, 0x508), -EINVAL);
	/* Each vCPU has its own. */
	CHECK_EQ(fx_vcpu[1].msr.mtrr_def_type, 0xc06);
}

/* --- by CPUID's word -------------------------------------------------------------------------- */

/* A CPUID bit advertised is an MSR implemented, and the other way round. */
static void advertised_is_implemented(void)
{
	for (unsigned amd = 0; amd < 2; amd++) {
		setup(amd ? AMD : INTEL);
		/* MCE, MCA: a capability word that says no banks; and none there. */
		CHECK_EQ(rd(0x179), 0);
		CHECK_EQ(rd_err, 0);
		CHECK_EQ(rd(0x17a), 0);
		CHECK_EQ(msr_write(V, 0x17a, 0), 0);
		CHECK_EQ(msr_write(V, 0x17a, 8), -EINVAL);
		CHECK(faults(0x17b));
		CHECK(faults(0x400));
		CHECK(faults(0x403));
		/* Hidden: SPEC_CTRL, PRED_CMD, ARCH_CAPABILITIES, FLUSH_CMD, TSX_CTRL, TSC_ADJUST,
		 * XSS, PERF_GLOBAL_CTRL, VMX, SVM, VIRT_SPEC_CTRL, LS_CFG, async page faults, steal
		 * time. */
		static const uint32_t hidden[] = {
		        0x48,       0x10a,      0x122,      0x3b,       0xda0,      0x38f,
		        0x480,      0x48b,      0xc0010114, 0xc0010117, 0xc001011f, 0xc0011020,
		        0x4b564d02, 0x4b564d03, 0xe7,       0xe8,       0x40000000};
		for (size_t i = 0; i < ARRAY_LEN(hidden); i++) {
			CHECK(faults(hidden[i]));
			CHECK_EQ(msr_write(V, hidden[i], 0), -EINVAL);
		}
		CHECK_EQ(msr_write(V, 0x49, 1), -EINVAL);
		CHECK_EQ(msr_write(V, 0x10b, 1), -EINVAL);
	}
}

static void tsc_and_tsc_aux(void)
{
	setup(INTEL);
	V->hv.tsc_offset = -1000000000ull;
	fake_tsc += 42;
	CHECK_EQ(rd(0x10), 42);
	CHECK_EQ(msr_write(V, 0x10, 7), 0);
	CHECK_EQ(rd(0x10), 42);
	CHECK_EQ(msr_write(V, 0xc0000103, 3), 0);
	CHECK_EQ(fx_live_msr, 3);
	CHECK_EQ(rd(0xc0000103), 3);
	CHECK_EQ(msr_write(V, 0xc0000103, BIT(32)), -EINVAL);
	CHECK_EQ(fx_live_msr, 3);
	host_has_rdtscp = false;
	CHECK(faults(0xc0000103));
	CHECK_EQ(msr_write(V, 0xc0000103, 1), -EINVAL);
}

static void apic(void)
{
	uint64_t value;

	setup(INTEL);
	CHECK_EQ(rd(0x1b), 0xfee00900);
	CHECK_EQ(msr_read(&fx_vcpu[1], 0x1b, &value), 0);
	CHECK_EQ(value, 0xfee00800);
	CHECK(faults(0x802));
	CHECK_EQ(msr_write(V, 0x1b, 0xfee00d00), 0);
	CHECK_EQ(rd(0x802), 0);
	CHECK(!faults(0x802));
	CHECK_EQ(msr_write(V, 0x80f, 0x1ff), 0);
	CHECK_EQ(msr_write(V, 0x832, 0x40040), 0);
	CHECK_EQ(msr_write(V, 0x6e0, 2000000000), 0);
	CHECK_EQ(rd(0x6e0), 2000000000);
	CHECK_EQ(vlapic_deadline(&V->lapic), 2000000000);
}

static void kvm_clock_and_eoi(void)
{
	setup(AMD);
	for (unsigned old = 0; old < 2; old++) {
		uint32_t time = old ? 0x12 : 0x4b564d01, wall = old ? 0x11 : 0x4b564d00;

		memset(fx_ram, 0, 0x4000);
		CHECK_EQ(msr_write(V, time, 0x1001), 0);
		CHECK_EQ(rd(time), 0x1001);
		CHECK_EQ(fx_ram[0x1000], 2);
		CHECK_EQ(fx_ram[0x101d], 1);
		CHECK_EQ(msr_write(V, time, FX_RAM_BYTES | 1), -EINVAL);
		CHECK_EQ(rd(time), 0x1001);
		CHECK_EQ(msr_write(V, time, 0), 0);
		CHECK_EQ(msr_write(V, wall, 0x2000), 0);
		CHECK_EQ(rd(wall), 0x2000);
		CHECK_EQ(fx_ram[0x2004], 5);
		CHECK_EQ(msr_write(V, wall, UINT64_MAX), -EINVAL);
	}
	CHECK_EQ(msr_write(V, 0x4b564d04, 0x3001), 0);
	CHECK(V->lapic.pv_eoi_word == (atomic_uint_least32_t *)(void *)(fx_ram + 0x3000));
	CHECK_EQ(rd(0x4b564d04), 0x3001);
	CHECK_EQ(msr_write(V, 0x4b564d04, 0x3003), -EINVAL);
	/* What is refused changes nothing. */
	CHECK_EQ(msr_write(V, 0x4b564d04, 0x7ffff0000001), -EINVAL);
	CHECK(V->lapic.pv_eoi_word == (atomic_uint_least32_t *)(void *)(fx_ram + 0x3000));
	CHECK_EQ(rd(0x4b564d04), 0x3001);
	vlapic_init_reset(&V->lapic);
	CHECK_EQ(rd(0x4b564d04), 0);
	CHECK_EQ(msr_write(V, 0x4b564d04, 0x3001), 0);
	CHECK_EQ(msr_write(V, 0x4b564d04, 0), 0);
	CHECK(!V->lapic.pv_eoi_word);
}

/* What Linux touches on its way up on either vendor, where it does not expect a fault. */
static void linux_probes(void)
{
	setup(INTEL);
	CHECK_EQ(rd(0x1a0), 0x1801);
	CHECK_EQ(msr_write(V, 0x1a0, 0x1800), 0);
	CHECK_EQ(rd(0x1a0), 0x1800);
	CHECK_EQ(msr_write(V, 0x1a0, 0x41801), 0); /* MONITOR: dropped, not kept */
	CHECK_EQ(rd(0x1a0), 0x1801);
	CHECK_EQ(msr_write(V, 0x1a0, BIT(63)), -EINVAL);
	CHECK_EQ(msr_write(V, 0x8b, 0), 0);
	CHECK_EQ(rd(0x8b) >> 32, 1);
	CHECK_EQ(msr_write(V, 0x79, 0x1000), 0);
	CHECK(faults(0x79));
	CHECK_EQ(rd(0x3a), 1);
	CHECK_EQ(msr_write(V, 0x3a, 5), -EINVAL);
	CHECK_EQ(rd(0xce), 10ull << 8 | 10ull << 40);
	CHECK_EQ(rd(0x140), 0);
	CHECK_EQ(msr_write(V, 0x140, 0), 0);
	CHECK_EQ(msr_write(V, 0x140, 1), -EINVAL);
	CHECK_EQ(rd(0x1d9), 0);
	CHECK_EQ(msr_write(V, 0x1d9, 3), 0);
	CHECK_EQ(rd(0x1d9), 0);
	CHECK_EQ(msr_write(V, 0x1d9, BIT(20)), -EINVAL);
	/* The other vendor's. */
	CHECK(faults(0xc0010015));
	CHECK(faults(0xc0011029));
	setup(AMD);
	CHECK_EQ(rd(0xc0010015), BIT(24));
	CHECK_EQ(msr_write(V, 0xc0010015, 0x9000011), 0);
	CHECK_EQ(rd(0xc0010015), BIT(24));
	CHECK_EQ(rd(0xc0011029), 2);
	CHECK_EQ(msr_write(V, 0xc0011029, 2), 0);
	CHECK_EQ(rd(0x8b), 0x01000065);
	static const uint32_t zeros[] = {0xc0010000, 0xc0010007, 0xc0010010, 0xc001001a, 0xc001001d,
	                                 0xc001001f, 0xc0010055, 0xc0010058, 0xc0010140, 0xc0010141,
	                                 0xc0010200, 0xc001020b, 0xc001102a};
	for (size_t i = 0; i < ARRAY_LEN(zeros); i++) {
		CHECK_EQ(rd(zeros[i]), 0);
		CHECK_EQ(rd_err, 0);
		CHECK_EQ(msr_write(V, zeros[i], 0), 0);
	}
	CHECK(faults(0x1a0));
	CHECK(faults(0xce));
	CHECK(faults(0x3a));
}

/* --- unknown ones ----------------------------------------------------------------------------- */

static unsigned log_lines(const char *word)
{
	unsigned count = 0;

	for (const char *p = fake_log; (p = strstr(p, word)); p++)
		count++;
	return count;
}

static void unknown_policy(void)
{
	setup(INTEL);
	CHECK(faults(0x5555));
	CHECK_EQ(msr_write(V, 0x5555, 1), -EINVAL);
	CHECK_EQ(atomic_load(&fx_vm.unknown_msrs), 2);
	CHECK(strstr(fake_log, "guest fx: vcpu 0: unknown MSR 0x5555 read: #GP\n"));
	CHECK(strstr(fake_log, "guest fx: vcpu 0: unknown MSR 0x5555 write: #GP\n"));
	for (unsigned i = 0; i < 1000; i++)
		faults(0x5555);
	CHECK_EQ(log_lines("unknown MSR"), 8);
	CHECK_EQ(atomic_load(&fx_vm.unknown_msrs), 1002);
	setup(INTEL);
	fx_config.unknown_msr = MANIFEST_MSR_IGNORE;
	CHECK_EQ(rd(0x5555), 0);
	CHECK_EQ(rd_err, 0);
	CHECK_EQ(msr_write(V, 0x5555, 1), 0);
	CHECK(strstr(fake_log, "unknown MSR 0x5555 read: ignored"));
	/* Known ones fault all the same. */
	CHECK_EQ(msr_write(V, 0xfe, 0), -EINVAL);
	CHECK(faults(0x802));
}

static void sweep_range(uint32_t first, uint32_t last)
{
	for (uint32_t index = first; index <= last; index++) {
		uint64_t value = 0x1234567890abcdefull;
		int err = msr_read(V, index, &value);

		CHECK(err == 0 || err == -EINVAL);
		if (err)
			CHECK_EQ(value, 0x1234567890abcdefull);
		err = msr_write(V, index, fx_random());
		CHECK(err == 0 || err == -EINVAL);
		/* What it gives it takes back, or refuses; reading never comes to depend on that.
		 */
		if (!msr_read(V, index, &value))
			msr_write(V, index, value);
	}
}

/* Every number in the ranges that mean something, before and after x2APIC; the host's own registers
 * are never asked but for TSC_AUX. */
static void sweep(void)
{
	for (unsigned mode = 0; mode < 8; mode++) {
		setup(mode & 1 ? AMD : INTEL);
		fx_config.unknown_msr = mode & 2 ? MANIFEST_MSR_IGNORE : MANIFEST_MSR_FAULT;
		if (mode & 4)
			fx_x2apic(0);
		sweep_range(0, 0x1fff);
		sweep_range(0x40000000, 0x400000ff);
		sweep_range(0x4b564d00, 0x4b564dff);
		sweep_range(0xc0000000, 0xc0001fff);
		sweep_range(0xc0010000, 0xc0011fff);
		sweep_range(0xffffff00, 0xfffffffe);
		CHECK(fx_live_accesses > 0 && fx_live_accesses <= 4);
		CHECK_EQ(fx_state.efer & ~(uint64_t)EFER_ALL, 0);
		CHECK_EQ(atomic_load(&fx_vm.device_lock.held), 0);
	}
}

TESTS(T(efer), T(control_block_registers), T(mtrr), T(advertised_is_implemented),
      T(tsc_and_tsc_aux), T(apic), T(kvm_clock_and_eoi), T(linux_probes), T(unknown_policy),
      T(sweep))
