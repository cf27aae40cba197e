#include "vmm/msr.h"

#include "vmm/cpuid.h"
#include "vmm/vm.h"

/* What a table entry means. Ranges of 0x800 and what has logic of its own are further below. */
enum msr_kind {
	MSR_CONST,  /* reads value; any write is dropped */
	MSR_FIXED,  /* reads value; only that value may be written */
	MSR_RDONLY, /* reads value; a write is #GP */
	MSR_WRONLY, /* a write is dropped; a read is #GP */
};

#define ON_INTEL B_(CPUID_INTEL)
#define ON_AMD   B_(CPUID_AMD)
#define ON_ALL   (ON_INTEL | ON_AMD | B_(CPUID_OTHER))
#define B_(n)    (1u << (n))

struct msr_entry {
	uint32_t first, last;
	uint8_t vendors, kind;
	uint64_t value;
};

#define MTRR_CAP (MSR_MTRR_VAR_COUNT | BIT(8) /* fixed ranges */ | BIT(10) /* write-combining */)

/*
 * Registers that operating systems touch on their way up and that here always say the same. LS_CFG
 * and its like are not among them: a guest that finds them believes its mitigations took hold.
 */
static const struct msr_entry entries[] = {
        {0x17, 0x17, ON_INTEL, MSR_RDONLY, 0},                /* PLATFORM_ID */
        {0x2a, 0x2a, ON_INTEL, MSR_CONST, 0},                 /* EBL_CR_POWERON */
        {0x34, 0x34, ON_INTEL, MSR_RDONLY, 0},                /* SMI_COUNT */
        {0x3a, 0x3a, ON_INTEL, MSR_RDONLY, 1},                /* FEATURE_CONTROL: locked, no VMX */
        {0x79, 0x79, ON_INTEL, MSR_WRONLY, 0},                /* BIOS_UPDT_TRIG */
        {0x8b, 0x8b, ON_INTEL, MSR_CONST, 0x100000000},       /* BIOS_SIGN_ID */
        {0x8b, 0x8b, ON_AMD, MSR_CONST, 0x01000065},          /* PATCH_LEVEL */
        {0xc1, 0xc2, ON_INTEL, MSR_CONST, 0},                 /* PERFCTR0, 1: CPUID shows no PMU */
        {0xfe, 0xfe, ON_ALL, MSR_RDONLY, MTRR_CAP},           /* MTRRCAP */
        {0x140, 0x140, ON_INTEL, MSR_FIXED, 0},               /* MISC_FEATURES_ENABLES */
        {0x179, 0x179, ON_ALL, MSR_RDONLY, 0},                /* MCG_CAP: no banks, no MCG_CTL */
        {0x186, 0x187, ON_INTEL, MSR_CONST, 0},               /* EVNTSEL0, 1 */
        {0x198, 0x198, ON_INTEL, MSR_RDONLY, 0},              /* PERF_STATUS */
        {0x199, 0x199, ON_INTEL, MSR_CONST, 0},               /* PERF_CTL */
        {0x1db, 0x1de, ON_ALL, MSR_CONST, 0},                 /* last branch and exception */
        {0xc0010000, 0xc0010007, ON_AMD, MSR_CONST, 0},       /* K7 performance counters */
        {0xc0010010, 0xc0010010, ON_AMD, MSR_CONST, 0},       /* SYSCFG */
        {0xc0010015, 0xc0010015, ON_AMD, MSR_CONST, BIT(24)}, /* HWCR: TSC counts at P0 */
        {0xc001001a, 0xc001001a, ON_AMD, MSR_CONST, 0},       /* TOP_MEM */
        {0xc001001d, 0xc001001d, ON_AMD, MSR_CONST, 0},       /* TOP_MEM2 */
        {0xc001001f, 0xc001001f, ON_AMD, MSR_CONST, 0},       /* NB_CFG */
        {0xc0010055, 0xc0010055, ON_AMD, MSR_CONST, 0},       /* INT_PENDING */
        {0xc0010058, 0xc0010058, ON_AMD, MSR_CONST, 0},       /* MMIO_CONF_BASE: none */
        {0xc0010140, 0xc0010141, ON_AMD, MSR_CONST, 0},       /* OSVW: no workarounds listed */
        {0xc0010200, 0xc001020b, ON_AMD, MSR_CONST, 0},       /* core performance counters */
        {0xc0011022, 0xc0011022, ON_AMD, MSR_CONST, 0},       /* DC_CFG */
        {0xc0011029, 0xc0011029, ON_AMD, MSR_CONST, BIT(1)},  /* DE_CFG: LFENCE serialises */
        {0xc001102a, 0xc001102a, ON_AMD, MSR_CONST, 0},       /* BU_CFG2 */
};

enum {
	MSR_TSC = 0x10,
	MSR_KVM_WALL_OLD = 0x11,
	MSR_KVM_TIME_OLD = 0x12,
	MSR_APIC_BASE = 0x1b,
	MSR_PLATFORM_INFO = 0xce,
	MSR_SYSENTER_CS = 0x174,
	MSR_SYSENTER_ESP = 0x175,
	MSR_SYSENTER_EIP = 0x176,
	MSR_MCG_STATUS = 0x17a,
	MSR_MISC_ENABLE = 0x1a0,
	MSR_DEBUGCTL = 0x1d9,
	MSR_MTRR_VAR = 0x200,
	MSR_MTRR_VAR_LAST = MSR_MTRR_VAR + 2 * MSR_MTRR_VAR_COUNT - 1,
	MSR_MTRR_64K = 0x250,
	MSR_MTRR_16K = 0x258,
	MSR_MTRR_4K = 0x268,
	MSR_PAT = 0x277,
	MSR_MTRR_DEF_TYPE = 0x2ff,
	MSR_TSC_DEADLINE = 0x6e0,
	MSR_X2APIC = 0x800,
	MSR_X2APIC_LAST = 0x8ff,
	MSR_KVM_WALL = 0x4b564d00,
	MSR_KVM_TIME = 0x4b564d01,
	MSR_KVM_PV_EOI = 0x4b564d04,
};

/* Not in the enumeration: their values do not fit an int. */
#define MSR_EFER    0xc0000080u
#define MSR_FS_BASE 0xc0000100u
#define MSR_GS_BASE 0xc0000101u
#define MSR_TSC_AUX 0xc0000103u

#define UNKNOWN_LOG_MAX 8u

/* Fast strings; no branch trace store, no precise event sampling. Others may be set and cleared. */
#define MISC_ENABLE_RESET    (BIT(0) | BIT(11) | BIT(12))
#define MISC_ENABLE_READONLY (BIT(7) | BIT(11) | BIT(12) | BIT(18))
#define MISC_ENABLE_WRITABLE (BIT(0) | BIT(3) | BIT(16) | BIT(22) | BIT(23) | BIT(34) | BIT(38))

#define DEBUGCTL_IGNORED (BIT(0) | BIT(1)) /* LBR, BTF */

#define DEF_TYPE_WRITE_BACK 6ull
#define DEF_TYPE_FIXED      BIT(10)
#define DEF_TYPE_ENABLE     BIT(11)

#define EFER_SCE BIT(0)
#define EFER_LME BIT(8)
#define EFER_LMA BIT(10)
#define EFER_NX  BIT(11)
#define CR0_PG   BIT(31)

void msr_init(struct vcpu *v)
{
	struct msr_state *m = &v->msr;

	memset(m, 0, sizeof(*m));
	v->kvmclock_msr = 0;
	m->misc_enable = MISC_ENABLE_RESET;
	m->mtrr_def_type = DEF_TYPE_WRITE_BACK | DEF_TYPE_FIXED | DEF_TYPE_ENABLE;
	for (unsigned i = 0; i < MSR_MTRR_FIXED_COUNT; i++)
		m->mtrr_fixed[i] = 0x0606060606060606ull;
}

/* --- memory types (SDM 3A 11.11): kept, without effect: nested paging makes RAM write-back ---- */

static bool type_is_valid(uint64_t type, bool pat)
{
	return type == 0 || type == 1 || type == 4 || type == 5 || type == 6 || (pat && type == 7);
}

static bool types_are_valid(uint64_t eight, bool pat)
{
	for (unsigned i = 0; i < 64; i += 8)
		if (!type_is_valid(eight >> i & 0xff, pat))
			return false;
	return true;
}

static uint64_t *mtrr_find(struct msr_state *m, uint32_t index)
{
	if (index >= MSR_MTRR_VAR && index <= MSR_MTRR_VAR_LAST)
		return &m->mtrr_var[index - MSR_MTRR_VAR];
	if (index == MSR_MTRR_64K)
		return &m->mtrr_fixed[0];
	if (index == MSR_MTRR_16K || index == MSR_MTRR_16K + 1)
		return &m->mtrr_fixed[1 + index - MSR_MTRR_16K];
	if (index >= MSR_MTRR_4K && index < MSR_MTRR_4K + 8)
		return &m->mtrr_fixed[3 + index - MSR_MTRR_4K];
	return index == MSR_MTRR_DEF_TYPE ? &m->mtrr_def_type : NULL;
}

static bool mtrr_value_is_valid(uint32_t index, uint64_t value)
{
	uint64_t address_bits = BIT(cpuid_phys_bits()) - PAGE_SIZE;

	if (index == MSR_MTRR_DEF_TYPE)
		return !(value & ~(0xffull | DEF_TYPE_FIXED | DEF_TYPE_ENABLE)) &&
		       type_is_valid(value & 0xff, false);
	if (index > MSR_MTRR_VAR_LAST)
		return types_are_valid(value, false);
	if (index & 1) /* mask and valid bit */
		return !(value & ~(address_bits | BIT(11)));
	return !(value & ~(address_bits | 0xff)) && type_is_valid(value & 0xff, false);
}

/* --- registers in the control block ----------------------------------------------------------- */

static uint64_t *state_field(struct hvm_state *state, uint32_t index)
{
	switch (index) {
	case MSR_EFER: return &state->efer;
	case MSR_PAT: return &state->pat;
	case MSR_SYSENTER_CS: return &state->sysenter_cs;
	case MSR_SYSENTER_ESP: return &state->sysenter_esp;
	case MSR_SYSENTER_EIP: return &state->sysenter_eip;
	case MSR_FS_BASE: return &state->seg[HVM_FS].base;
	case MSR_GS_BASE: return &state->seg[HVM_GS].base;
	default: return NULL;
	}
}

static bool is_canonical(uint64_t address)
{
	uint64_t top = address >> 47;

	return top == 0 || top == 0x1ffff;
}

/* Reserved bits are #GP; LMA is the processor's own (SDM 3A 2.2.1, APM 2 3.1.7). */
static int efer_check(const struct hvm_state *state, uint64_t *value)
{
	uint64_t lma = state->efer & EFER_LMA, changed = state->efer ^ *value;
	uint64_t allowed = EFER_SCE | EFER_LME | EFER_LMA;
	uint32_t out[4];

	plat_cpuid(0x80000001, 0, out);
	if (out[3] & BIT(20))
		allowed |= EFER_NX;
	if (*value & ~allowed)
		return -EINVAL;
	if ((changed & EFER_LME) && (state->cr0 & CR0_PG))
		return -EINVAL;
	*value = (*value & ~EFER_LMA) | lma;
	return 0;
}

static int state_write(struct vcpu *v, uint32_t index, uint64_t value)
{
	struct hvm_state state;
	int err = 0;

	hvm->state_get(&v->hv, &state);
	if (index == MSR_EFER)
		err = efer_check(&state, &value);
	else if (index == MSR_PAT)
		err = types_are_valid(value, true) ? 0 : -EINVAL;
	else if (index == MSR_SYSENTER_CS)
		value &= 0xffffffff;
	else
		err = is_canonical(value) ? 0 : -EINVAL;
	if (err)
		return err;
	*state_field(&state, index) = value;
	hvm->state_set(&v->hv, &state);
	return 0;
}

static bool is_state(uint32_t index)
{
	struct hvm_state unused;

	return state_field(&unused, index);
}

/* --- TSC_AUX: live in the processor, the guest's own; RDTSCP reads it without an exit --------- */

static bool tsc_aux_exists(void)
{
	uint32_t out[4];

	plat_cpuid(0x80000001, 0, out);
	return out[3] & BIT(27);
}

/* --- unknown ones ----------------------------------------------------------------------------- */

static int unknown(struct vcpu *v, const char *what, uint32_t index)
{
	bool ignore = v->vm->config->unknown_msr == MANIFEST_MSR_IGNORE;
	unsigned before = atomic_fetch_add_explicit(&v->vm->unknown_msrs, 1, memory_order_relaxed);

	if (before < UNKNOWN_LOG_MAX)
		plat_log("guest %s: vcpu %u: unknown MSR 0x%x %s: %s%s", v->vm->name, v->index,
		         index, what, ignore ? "ignored" : "#GP",
		         before == UNKNOWN_LOG_MAX - 1 ? " (no more of these)" : "");
	return ignore ? 0 : -EINVAL;
}

static const struct msr_entry *entry_find(uint32_t index)
{
	unsigned vendor = B_(cpuid_vendor());

	for (unsigned i = 0; i < ARRAY_LEN(entries); i++)
		if (index >= entries[i].first && index <= entries[i].last &&
		    (entries[i].vendors & vendor))
			return &entries[i];
	return NULL;
}

static uint64_t platform_info(void)
{
	/* Ratio to a bus of 100 MHz, non-turbo and lowest. */
	uint64_t ratio = (plat_tsc_hz() + 50000000) / 100000000 & 0xff;

	return ratio << 8 | ratio << 40;
}

/* Those that depend on nothing but their number. */
static int entry_read(struct vcpu *v, uint32_t index, uint64_t *value)
{
	const struct msr_entry *entry = entry_find(index);

	if (entry && entry->kind == MSR_WRONLY)
		return -EINVAL;
	*value = entry ? entry->value : 0;
	return entry ? 0 : unknown(v, "read", index);
}

static int entry_write(struct vcpu *v, uint32_t index, uint64_t value)
{
	const struct msr_entry *entry = entry_find(index);

	if (!entry)
		return unknown(v, "write", index);
	if (entry->kind == MSR_RDONLY || (entry->kind == MSR_FIXED && value != entry->value))
		return -EINVAL;
	return 0;
}

/* --- read ------------------------------------------------------------------------------------- */

static int state_read(struct vcpu *v, uint32_t index, uint64_t *value)
{
	struct hvm_state state;

	hvm->state_get(&v->hv, &state);
	*value = *state_field(&state, index);
	return 0;
}

static int other_read(struct vcpu *v, uint32_t index, uint64_t *value)
{
	bool intel = cpuid_vendor() == CPUID_INTEL;
	const uint64_t *mtrr = mtrr_find(&v->msr, index);

	if (mtrr) {
		*value = *mtrr;
		return 0;
	}
	if (is_state(index))
		return state_read(v, index, value);
	if (index == MSR_TSC_AUX && tsc_aux_exists())
		return hvm_rdmsr_safe(MSR_TSC_AUX, value) ? 0 : -EINVAL;
	if (index == MSR_MISC_ENABLE && intel) {
		*value = v->msr.misc_enable;
		return 0;
	}
	if (index == MSR_PLATFORM_INFO && intel) {
		*value = platform_info();
		return 0;
	}
	return entry_read(v, index, value);
}

int msr_read(struct vcpu *v, uint32_t index, uint64_t *value)
{
	uint64_t read = 0;
	int err = 0;

	switch (index) {
	case MSR_APIC_BASE:
	case MSR_TSC_DEADLINE:
	case MSR_X2APIC ... MSR_X2APIC_LAST: err = vlapic_msr_read(&v->lapic, index, &read); break;
	case MSR_TSC: read = plat_tsc() + v->hv.tsc_offset; break;
	case MSR_KVM_WALL:
	case MSR_KVM_WALL_OLD: read = v->msr.wall_clock; break;
	case MSR_KVM_TIME:
	case MSR_KVM_TIME_OLD: read = v->kvmclock_msr; break;
	case MSR_KVM_PV_EOI: read = v->lapic.pv_eoi_msr; break;
	case MSR_MCG_STATUS: read = v->msr.mcg_status; break;
	case MSR_DEBUGCTL: break;
	default: err = other_read(v, index, &read);
	}
	if (err == 0)
		*value = read;
	return err;
}

/* --- write ------------------------------------------------------------------------------------ */

static int kvm_write(struct vcpu *v, uint32_t index, uint64_t value)
{
	uint64_t *kept;
	int err;

	switch (index) {
	case MSR_KVM_WALL:
	case MSR_KVM_WALL_OLD:
		err = pvclock_wall_clock_set(&v->vm->clock, &v->vm->mem, value);
		kept = &v->msr.wall_clock;
		break;
	case MSR_KVM_TIME:
	case MSR_KVM_TIME_OLD:
		err = pvclock_system_time_set(&v->vm->clock, &v->vm->mem, value);
		kept = &v->kvmclock_msr;
		break;
	default: err = vlapic_pv_eoi_write(&v->lapic, value); kept = &v->lapic.pv_eoi_msr;
	}
	if (err)
		return -EINVAL;
	*kept = value;
	return 0;
}

static int misc_enable_write(struct vcpu *v, uint64_t value)
{
	if (value & ~(MISC_ENABLE_READONLY | MISC_ENABLE_WRITABLE))
		return -EINVAL;
	value &= MISC_ENABLE_WRITABLE;
	v->msr.misc_enable = value | (MISC_ENABLE_RESET & MISC_ENABLE_READONLY);
	return 0;
}

static int other_write(struct vcpu *v, uint32_t index, uint64_t value)
{
	bool intel = cpuid_vendor() == CPUID_INTEL;
	uint64_t *mtrr = mtrr_find(&v->msr, index);

	if (mtrr) {
		if (!mtrr_value_is_valid(index, value))
			return -EINVAL;
		*mtrr = value;
		return 0;
	}
	if (is_state(index))
		return state_write(v, index, value);
	if (index == MSR_TSC_AUX && tsc_aux_exists())
		return !(value >> 32) && hvm_wrmsr_safe(MSR_TSC_AUX, value) ? 0 : -EINVAL;
	if (index == MSR_MISC_ENABLE && intel)
		return misc_enable_write(v, value);
	if (index == MSR_PLATFORM_INFO && intel)
		return -EINVAL;
	return entry_write(v, index, value);
}

int msr_write(struct vcpu *v, uint32_t index, uint64_t value)
{
	switch (index) {
	case MSR_APIC_BASE:
	case MSR_TSC_DEADLINE:
	case MSR_X2APIC ... MSR_X2APIC_LAST: return vlapic_msr_write(&v->lapic, index, value);
	case MSR_TSC:
		/* Dropped: the guest's counters agree with each other and with its clock page,
		 * and moving one could only break that. TSC_ADJUST is hidden. */
		return 0;
	case MSR_KVM_WALL:
	case MSR_KVM_WALL_OLD:
	case MSR_KVM_TIME:
	case MSR_KVM_TIME_OLD:
	case MSR_KVM_PV_EOI: return kvm_write(v, index, value);
	case MSR_MCG_STATUS:
		if (value & ~7ull)
			return -EINVAL;
		v->msr.mcg_status = value;
		return 0;
	case MSR_DEBUGCTL: return value & ~DEBUGCTL_IGNORED ? -EINVAL : 0;
	default: return other_write(v, index, value);
	}
}
