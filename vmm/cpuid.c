#include "vmm/cpuid.h"

#include "vmm/control.h"
#include "vmm/vm.h"

enum { EAX, EBX, ECX, EDX };

#define B(n) (1u << (n))

#define CR4_OSXSAVE BIT(18)
#define CR4_PKE     BIT(22)

#define HIGHEST_BASIC    0x1fu
#define HIGHEST_EXTENDED 0x80000021u
#define EXTENDED_BASE    0x80000000u

/* What guests may see of the host's bits. A bit not named here is hidden: what the processor after
 * next invents needs a look first. */
#define FEAT_1_ECX                                                                                 \
	(B(0) /* SSE3 */ | B(1) /* PCLMUL */ | B(9) /* SSSE3 */ | B(12) /* FMA */ | B(13) |        \
	 B(17) /* PCID */ | B(19) | B(20) /* SSE4 */ | B(22) | B(23) | B(25) /* AES */ |           \
	 B(26) /* XSAVE */ | B(28) /* AVX */ | B(29) | B(30) /* RDRAND */)
#define FEAT_1_EDX                                                                                 \
	(0x3ffu /* FPU to APIC */ | B(11) | B(12) /* MTRR */ | B(13) | B(14) /* MCA */ | B(15) |   \
	 B(16) /* PAT */ | B(17) | B(19) | B(23) | B(24) | B(25) | B(26) | B(27))
#define FEAT_1_ECX_X2APIC       B(21)
#define FEAT_1_ECX_TSC_DEADLINE B(24)
#define FEAT_1_ECX_XSAVE        B(26)
#define FEAT_1_ECX_OSXSAVE      B(27)
#define FEAT_1_ECX_HYPERVISOR   B(31)
#define FEAT_1_EDX_APIC         B(9)
#define FEAT_1_EDX_HTT          B(28)

/* Hidden: TSC_ADJUST, SGX, RDT, MPX, processor trace. TSX is as the host says. */
#define FEAT_7_EBX                                                                                 \
	(B(0) | B(3) | B(4) | B(5) | B(6) | B(7) | B(8) | B(9) | B(10) | B(11) | B(13) | B(16) |   \
	 B(17) | B(18) | B(19) | B(20) | B(21) | B(23) | B(24) | B(26) | B(27) | B(28) | B(29) |   \
	 B(30) | B(31))
/* Hidden: WAITPKG, CET, LA57, key locker, bus-lock detection, ENQCMD, PKS. */
#define FEAT_7_ECX                                                                                 \
	(B(1) | B(2) /* UMIP */ | B(3) /* PKU */ | B(6) | B(8) | B(9) | B(10) | B(11) | B(12) |    \
	 B(14) | B(22) /* RDPID */ | B(25) | B(27) | B(28))
#define FEAT_7_ECX_PKU   B(3)
#define FEAT_7_ECX_OSPKE B(4)
/* Hidden: SPEC_CTRL, STIBP, L1D_FLUSH, ARCH_CAPABILITIES, SSBD: their MSRs are not emulated. */
#define FEAT_7_EDX                                                                                 \
	(B(2) | B(3) | B(4) /* FSRM */ | B(8) | B(10) /* MD_CLEAR */ | B(14) | B(16) | B(23))
#define FEAT_7_1_EAX (B(4) | B(5) | B(10) | B(11) | B(12) | B(23))

/* Hidden: SVM, EXTAPIC, OSVW, IBS, SKINIT, WDT, LWP, TCE, NODEID, performance counters, MWAITX. */
#define FEAT_81_ECX                                                                                \
	(B(0) | B(4) | B(5) | B(6) | B(7) | B(8) | B(11) | B(16) | B(21) | B(22) /* TOPOEXT */)
#define FEAT_81_ECX_CMP_LEGACY B(1)
#define FEAT_81_EDX                                                                                \
	(0x1ffu | B(9) | B(11) /* SYSCALL */ | B(12) | B(13) | B(14) | B(15) | B(16) | B(17) |     \
	 B(20) /* NX */ | B(22) | B(23) | B(24) | B(26) | B(27) | B(29) | B(30) | B(31))
#define FEAT_87_EDX  B(8) /* invariant TSC */
#define FEAT_88_EBX  (B(0) | B(2) | B(9) | B(26) | B(29))
#define FEAT_821_EAX (B(0) | B(2) /* LFENCE serialises */ | B(6))

/* XCR0: x87, SSE, AVX, AVX-512, PKRU. Not MPX, AMX, nor supervisor states. */
#define XCR0_GUEST         0x2e7u
#define FEAT_D1_EAX        (B(0) | B(1) | B(2)) /* XSAVEOPT, XSAVEC, XGETBV 1; no XSAVES, no XFD */
#define XSAVE_LEGACY_BYTES 576u

/* KVM-compatible features: CLOCKSOURCE, NOP_IO_DELAY, CLOCKSOURCE2, PV_EOI, CLOCKSOURCE_STABLE. */
#define KVM_FEATURES (B(0) | B(1) | B(3) | B(6) | B(24))

/* --- the host --------------------------------------------------------------------------------- */

enum cpuid_vendor cpuid_vendor(void)
{
	uint32_t out[4];

	plat_cpuid(0, 0, out);
	if (!memcmp(&out[EBX], "Genu", 4) && !memcmp(&out[ECX], "ntel", 4))
		return CPUID_INTEL;
	if ((!memcmp(&out[EBX], "Auth", 4) && !memcmp(&out[ECX], "cAMD", 4)) ||
	    (!memcmp(&out[EBX], "Hygo", 4) && !memcmp(&out[ECX], "uine", 4)))
		return CPUID_AMD;
	return CPUID_OTHER;
}

static uint32_t host_extended_max(void)
{
	uint32_t out[4];

	plat_cpuid(EXTENDED_BASE, 0, out);
	return out[EAX] < EXTENDED_BASE ? EXTENDED_BASE : out[EAX];
}

unsigned cpuid_phys_bits(void)
{
	uint32_t out[4];

	if (host_extended_max() < 0x80000008)
		return 36;
	plat_cpuid(0x80000008, 0, out);
	return MIN(MAX(out[EAX] & 0xff, 32), 52);
}

unsigned cpuid_id_bits(unsigned count)
{
	unsigned bits = 0;

	while (bits < 8 && 1u << bits < count)
		bits++;
	return bits;
}

static uint32_t basic_max(enum cpuid_vendor vendor)
{
	uint32_t out[4];

	plat_cpuid(0, 0, out);
	/* Leaves 0x15 and 0x16 are ours to give. */
	if (vendor == CPUID_INTEL)
		return MIN(MAX(out[EAX], 0x16), HIGHEST_BASIC);
	return MIN(out[EAX], HIGHEST_BASIC);
}

static void zero(uint32_t out[4])
{
	memset(out, 0, 4 * sizeof(out[0]));
}

static uint64_t guest_cr4(struct vcpu *v)
{
	struct hvm_state state;

	memset(&state, 0, sizeof(state));
	hvm->state_get_paging(&v->hv, &state);
	return state.cr4;
}

/* --- topology: one package, one core per vCPU, one thread per core ---------------------------- */

/* Leaf 4 and 0x8000001D: levels 1 and 2 are a core's own, others the package's. */
static void cache_sharing(const struct vcpu *v, uint32_t out[4])
{
	uint32_t ids = (1u << cpuid_id_bits(v->vm->vcpu_count)) - 1;

	if (!(out[EAX] & 0x1f)) {
		zero(out);
		return;
	}
	out[EAX] &= 0x3fff;
	if ((out[EAX] >> 5 & 7) >= 3)
		out[EAX] |= ids << 14;
}

static void leaf_4(const struct vcpu *v, uint32_t out[4])
{
	cache_sharing(v, out);
	if (out[EAX] & 0x1f)
		out[EAX] |= ((1u << cpuid_id_bits(v->vm->vcpu_count)) - 1) << 26;
}

static void leaf_topology(const struct vcpu *v, uint32_t subleaf, uint32_t out[4])
{
	enum { LEVEL_THREAD = 1, LEVEL_CORE = 2 };

	zero(out);
	out[ECX] = subleaf & 0xff;
	out[EDX] = v->apic_id;
	if (subleaf == 0) {
		out[EBX] = 1;
		out[ECX] |= LEVEL_THREAD << 8;
	} else if (subleaf == 1) {
		out[EAX] = cpuid_id_bits(v->vm->vcpu_count);
		out[EBX] = v->vm->vcpu_count;
		out[ECX] |= LEVEL_CORE << 8;
	}
}

/* --- basic leaves ----------------------------------------------------------------------------- */

static void leaf_1(struct vcpu *v, uint32_t out[4])
{
	unsigned count = v->vm->vcpu_count;

	out[EBX] = (out[EBX] & 0xffff) | (1u << cpuid_id_bits(count)) << 16 | v->apic_id << 24;
	out[ECX] &= FEAT_1_ECX;
	out[ECX] |= FEAT_1_ECX_X2APIC | FEAT_1_ECX_TSC_DEADLINE | FEAT_1_ECX_HYPERVISOR;
	if ((out[ECX] & FEAT_1_ECX_XSAVE) && (guest_cr4(v) & CR4_OSXSAVE))
		out[ECX] |= FEAT_1_ECX_OSXSAVE;
	out[EDX] = (out[EDX] & FEAT_1_EDX) | FEAT_1_EDX_APIC;
	if (count > 1)
		out[EDX] |= FEAT_1_EDX_HTT;
}

static void leaf_7(struct vcpu *v, uint32_t subleaf, uint32_t out[4])
{
	switch (subleaf) {
	case 0:
		out[EAX] = MIN(out[EAX], 1);
		out[EBX] &= FEAT_7_EBX;
		out[ECX] &= FEAT_7_ECX;
		out[EDX] &= FEAT_7_EDX;
		if ((out[ECX] & FEAT_7_ECX_PKU) && (guest_cr4(v) & CR4_PKE))
			out[ECX] |= FEAT_7_ECX_OSPKE;
		break;
	case 1:
		out[EAX] &= FEAT_7_1_EAX;
		out[EBX] = out[ECX] = out[EDX] = 0;
		break;
	default: zero(out);
	}
}

/* The end of the farthest state component a guest may turn on. */
static uint32_t xsave_bytes_max(uint32_t xcr0)
{
	uint32_t out[4], max = XSAVE_LEGACY_BYTES;

	for (unsigned i = 2; i < 32; i++) {
		if (!(xcr0 >> i & 1))
			continue;
		plat_cpuid(0xd, i, out);
		max = MAX(max, out[EAX] + out[EBX]);
	}
	return max;
}

/* What XSAVEC writes with these states: each behind the last, some aligned (SDM 1 13.4.3). */
static uint32_t xsave_bytes_compact(uint32_t xcr0)
{
	uint32_t out[4], bytes = XSAVE_LEGACY_BYTES;

	for (unsigned i = 2; i < 32; i++) {
		if (!(xcr0 >> i & 1))
			continue;
		plat_cpuid(0xd, i, out);
		if (out[ECX] & B(1))
			bytes = ALIGN_UP(bytes, 64u);
		bytes += out[EAX];
	}
	return bytes;
}

static void leaf_d(uint32_t subleaf, uint32_t out[4])
{
	switch (subleaf) {
	case 0: /* EBX follows XCR0, which is the guest's on this core */
		out[EAX] &= XCR0_GUEST;
		out[ECX] = xsave_bytes_max(out[EAX]);
		out[EDX] = 0;
		break;
	case 1:
		out[EAX] &= FEAT_D1_EAX;
		out[EBX] = xsave_bytes_compact((uint32_t)hvm_xgetbv() & XCR0_GUEST);
		out[ECX] = out[EDX] = 0;
		break;
	default:
		if (subleaf >= 32 || !(XCR0_GUEST >> subleaf & 1))
			zero(out);
	}
}

void cpuid_fraction(uint64_t hz, uint64_t unit_hz, uint32_t num_max, uint32_t *num, uint32_t *den)
{
	uint64_t a = hz, b = unit_hz, n0 = 0, n1 = 1, d0 = 1, d1 = 0;

	/* Convergents of the continued fraction, the last whose numerator fits. */
	while (b) {
		uint64_t q = a / b, r = a % b, n2, d2;

		if (q > UINT32_MAX)
			break;
		n2 = q * n1 + n0;
		d2 = q * d1 + d0;
		if (n2 > num_max || d2 > num_max)
			break;
		n0 = n1;
		n1 = n2;
		d0 = d1;
		d1 = d2;
		a = b;
		b = r;
	}
	*num = (uint32_t)n1;
	*den = (uint32_t)d1;
}

/*
 * The crystal is the APIC timer's input clock: guests take the one for the other. They multiply its
 * kHz by the numerator in 32 bits, so that stays below 2^32.
 */
static void leaf_15(uint32_t out[4])
{
	const uint32_t num_max = (uint32_t)(UINT32_MAX / (VLAPIC_TIMER_HZ / 1000));

	zero(out);
	cpuid_fraction(plat_tsc_hz(), VLAPIC_TIMER_HZ, num_max, &out[EBX], &out[EAX]);
	out[ECX] = (uint32_t)VLAPIC_TIMER_HZ;
}

static void leaf_16(uint32_t out[4])
{
	uint32_t mhz = (uint32_t)((plat_tsc_hz() + 500000) / 1000000);

	zero(out);
	out[EAX] = out[EBX] = mhz & 0xffff;
	out[ECX] = 100;
}

static void basic_leaf(struct vcpu *v, enum cpuid_vendor vendor, uint32_t leaf, uint32_t subleaf,
                       uint32_t out[4])
{
	plat_cpuid(leaf, subleaf, out);
	switch (leaf) {
	case 0x0: out[EAX] = basic_max(vendor); break;
	case 0x1: leaf_1(v, out); break;
	case 0x2: /* cache descriptors */ break;
	case 0x4: leaf_4(v, out); break;
	case 0x6:
		zero(out);
		out[EAX] = B(2); /* the APIC timer never stops */
		break;
	case 0x7: leaf_7(v, subleaf, out); break;
	case 0xb:
	case 0x1f: leaf_topology(v, subleaf, out); break;
	case 0xd: leaf_d(subleaf, out); break;
	case 0x15:
	case 0x16:
		zero(out);
		if (vendor == CPUID_INTEL && leaf == 0x15)
			leaf_15(out);
		else if (vendor == CPUID_INTEL)
			leaf_16(out);
		break;
	default: /* MWAIT, PMU, RDT, SGX, PT, key locker, AMX and the reserved ones */ zero(out);
	}
}

/* --- extended leaves -------------------------------------------------------------------------- */

static void leaf_80000001(const struct vcpu *v, enum cpuid_vendor vendor, uint32_t out[4])
{
	out[ECX] &= FEAT_81_ECX;
	out[EDX] &= FEAT_81_EDX;
	if (vendor == CPUID_AMD && v->vm->vcpu_count > 1)
		out[ECX] |= FEAT_81_ECX_CMP_LEGACY;
}

static void leaf_80000008(const struct vcpu *v, enum cpuid_vendor vendor, uint32_t out[4])
{
	unsigned count = v->vm->vcpu_count;

	/* LA57 is hidden: 48 linear bits. */
	out[EAX] = cpuid_phys_bits() | 48 << 8;
	out[EBX] &= FEAT_88_EBX;
	out[ECX] = vendor == CPUID_AMD ? (count - 1) | cpuid_id_bits(count) << 12 : 0;
	out[EDX] = 0;
}

static void extended_leaf(struct vcpu *v, enum cpuid_vendor vendor, uint32_t leaf, uint32_t subleaf,
                          uint32_t out[4])
{
	plat_cpuid(leaf, subleaf, out);
	switch (leaf) {
	case 0x80000000: out[EAX] = MIN(host_extended_max(), HIGHEST_EXTENDED); break;
	case 0x80000001: leaf_80000001(v, vendor, out); break;
	case 0x80000002 ... 0x80000006: /* name, caches */
	case 0x80000019:                /* TLB of 1 GiB pages */
	case 0x8000001a: /* performance hints */ break;
	case 0x80000007:
		out[EAX] = out[EBX] = out[ECX] = 0;
		out[EDX] &= FEAT_87_EDX;
		break;
	case 0x80000008: leaf_80000008(v, vendor, out); break;
	case 0x8000001d: cache_sharing(v, out); break;
	case 0x8000001e:
		out[EAX] = v->apic_id;
		out[EBX] = v->apic_id & 0xff; /* core id; one thread */
		out[ECX] = out[EDX] = 0;      /* node 0 of 1 */
		break;
	case 0x80000021:
		out[EAX] &= FEAT_821_EAX;
		out[EBX] = out[ECX] = out[EDX] = 0;
		break;
	default: /* SVM, IBS, LWP, SEV, bandwidth and the reserved ones */ zero(out);
	}
}

/* --- ours ------------------------------------------------------------------------------------- */

static void hypervisor_leaf(uint32_t leaf, uint32_t out[4])
{
	zero(out);
	switch (leaf) {
	case CPUID_KVM_BASE:
		out[EAX] = CPUID_KVM_MAX;
		memcpy(&out[EBX], "KVMKVMKVM\0\0\0", 12);
		break;
	case CPUID_KVM_BASE + 1: out[EAX] = KVM_FEATURES; break;
	case CPUID_KVM_MAX:
		out[EAX] = (uint32_t)(plat_tsc_hz() / 1000);
		out[EBX] = (uint32_t)(VLAPIC_TIMER_HZ / 1000);
		break;
	}
}

void cpuid_emulate(struct vcpu *v, uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
	enum cpuid_vendor vendor = cpuid_vendor();
	uint32_t max = basic_max(vendor);

	if (leaf <= max) {
		basic_leaf(v, vendor, leaf, subleaf, out);
	} else if (leaf >> 8 == CPUID_KVM_BASE >> 8) {
		hypervisor_leaf(leaf, out);
	} else if (leaf >> 8 == QUELL_CPUID >> 8) {
		control_cpuid(v, leaf, out);
	} else if (leaf >= EXTENDED_BASE && leaf <= MIN(host_extended_max(), HIGHEST_EXTENDED)) {
		extended_leaf(v, vendor, leaf, subleaf, out);
	} else if (vendor == CPUID_INTEL) {
		/* Intel answers a leaf beyond the end with the highest basic one. */
		basic_leaf(v, vendor, max, subleaf, out);
	} else {
		zero(out);
	}
	if (hvm->cpuid_fit)
		hvm->cpuid_fit(leaf, out);
}
