#include "arch/x86/vmx/controls.h"
#include "arch/platform.h"
#include "arch/x86/vmx/cr.h"
#include "vmm/fmt.h"

#define BASIC_SIZE(basic) ((uint32_t)((basic) >> 32) & 0x1fff)
#define BASIC_32BIT       BIT(48)
#define BASIC_STRING_INFO BIT(54)
#define BASIC_TRUE        BIT(55)

#define EPT_CAP_WALK4       BIT(6)
#define EPT_CAP_WB          BIT(14)
#define EPT_CAP_2M          BIT(16)
#define EPT_CAP_1G          BIT(17)
#define EPT_CAP_INVEPT      BIT(20)
#define EPT_CAP_AD          BIT(21)
#define EPT_CAP_EPT_SINGLE  BIT(25)
#define EPT_CAP_EPT_ALL     BIT(26)
#define EPT_CAP_INVVPID     BIT(32)
#define EPT_CAP_VPID_SINGLE BIT(41)
#define EPT_CAP_VPID_ALL    BIT(42)

#define EPTP_WB    6ull
#define EPTP_WALK4 (3ull << 3)
#define EPTP_AD    BIT(6)

static const char *const word_name[VMX_WORD_COUNT] = {
        [VMX_PIN] = "pin-based", [VMX_PROC] = "processor-based", [VMX_PROC2] = "secondary",
        [VMX_EXIT] = "VM-exit",  [VMX_ENTRY] = "VM-entry",
};

/* Mandatory where disable is NULL; else optional, and a feature when all its rows are there. */
struct control {
	enum vmx_word word;
	uint32_t bits;
	const char *name; /* the SDM's */
	const char *disable;
	uint32_t feature;
};

static const struct control table[] = {
        {VMX_PIN, PIN_EXT_INTR, "external-interrupt exiting", NULL, 0},
        {VMX_PIN, PIN_NMI, "NMI exiting", NULL, 0},
        {VMX_PIN, PIN_VIRTUAL_NMI, "virtual NMIs", NULL, 0},
        {VMX_PROC, PROC_NMI_WINDOW, "NMI-window exiting", NULL, 0},
        {VMX_PROC, PROC_INTR_WINDOW, "interrupt-window exiting", NULL, 0},
        {VMX_PROC, PROC_TSC_OFFSET, "use TSC offsetting", NULL, 0},
        {VMX_PROC, PROC_HLT, "HLT exiting", NULL, 0},
        {VMX_PROC, PROC_CR8_LOAD, "CR8-load exiting", NULL, 0},
        {VMX_PROC, PROC_CR8_STORE, "CR8-store exiting", NULL, 0},
        {VMX_PROC, PROC_MSR_BITMAPS, "use MSR bitmaps", NULL, 0},
        {VMX_PROC, PROC_SECONDARY, "activate secondary controls", NULL, 0},
        {VMX_PROC2, PROC2_EPT, "enable EPT", NULL, 0},
        {VMX_PROC2, PROC2_UNRESTRICTED, "unrestricted guest", NULL, 0},
        {VMX_EXIT, EXIT_SAVE_DEBUG, "save debug controls", NULL, 0},
        {VMX_EXIT, EXIT_HOST_64, "host address-space size", NULL, 0},
        {VMX_EXIT, EXIT_SAVE_EFER, "save IA32_EFER", NULL, 0},
        {VMX_EXIT, EXIT_LOAD_EFER, "load IA32_EFER", NULL, 0},
        {VMX_ENTRY, ENTRY_LOAD_DEBUG, "load debug controls", NULL, 0},
        {VMX_ENTRY, ENTRY_IA32E, "IA-32e mode guest", NULL, 0},
        {VMX_ENTRY, ENTRY_LOAD_EFER, "load IA32_EFER", NULL, 0},

        {VMX_PIN, PIN_PREEMPT_TIMER, "preemption timer", "preemption-timer", VMX_F_PREEMPT_TIMER},
        {VMX_PROC, PROC_IO, "unconditional I/O exiting", "io-exiting", VMX_F_IO_UNCOND},
        {VMX_PROC, PROC_MWAIT, "MWAIT exiting", "mwait-exit", VMX_F_MWAIT},
        {VMX_PROC, PROC_MONITOR, "MONITOR exiting", "monitor-exit", VMX_F_MONITOR},
        {VMX_PROC, PROC_RDPMC, "RDPMC exiting", "rdpmc-exit", VMX_F_RDPMC},
        {VMX_PROC, PROC_TPR_SHADOW, "use TPR shadow", "virtual-interrupts", VMX_F_VIRT_INTR},
        {VMX_PROC2, PROC2_VIRT_INTR, "virtual-interrupt delivery", "virtual-interrupts",
         VMX_F_VIRT_INTR},
        {VMX_PROC2, PROC2_VPID, "enable VPID", "vpid", VMX_F_VPID},
        {VMX_PROC2, PROC2_RDTSCP, "enable RDTSCP", "rdtscp", VMX_F_RDTSCP},
        {VMX_PROC2, PROC2_INVPCID, "enable INVPCID", "invpcid", VMX_F_INVPCID},
        {VMX_PROC2, PROC2_XSAVES, "enable XSAVES/XRSTORS", "xsaves", VMX_F_XSAVES},
        {VMX_PROC2, PROC2_WBINVD, "WBINVD exiting", "wbinvd-exit", VMX_F_WBINVD},
        {VMX_EXIT, EXIT_SAVE_PAT, "save IA32_PAT", "pat", VMX_F_PAT},
        {VMX_EXIT, EXIT_LOAD_PAT, "load IA32_PAT", "pat", VMX_F_PAT},
        {VMX_ENTRY, ENTRY_LOAD_PAT, "load IA32_PAT", "pat", VMX_F_PAT},
};

/* Bits that may be forced on: reserved ones of the default1 class (SDM 3D A.2), and CR3 exiting,
 * which we can handle. */
static const uint32_t tolerated[VMX_WORD_COUNT] = {
        [VMX_PIN] = 0x16,
        [VMX_PROC] = 0x0401e172,
        [VMX_EXIT] = 0x36dff,
        [VMX_ENTRY] = 0x11ff,
};

/* Controls turned on for a while at run time; in the words they start off. */
static const uint32_t dynamic[VMX_WORD_COUNT] = {
        [VMX_PIN] = PIN_PREEMPT_TIMER,
        [VMX_PROC] = PROC_INTR_WINDOW | PROC_NMI_WINDOW,
        [VMX_ENTRY] = ENTRY_IA32E,
};

static bool disabled(const char *word, const char *const *disable, unsigned disable_count)
{
	for (unsigned i = 0; i < disable_count; i++)
		if (disable[i] && strcmp(disable[i], word) == 0)
			return true;
	return false;
}

static uint32_t must_of(const uint64_t *word, enum vmx_word w)
{
	return (uint32_t)word[w];
}

static uint32_t may_of(const uint64_t *word, enum vmx_word w)
{
	return (uint32_t)(word[w] >> 32);
}

void vmx_caps_read(struct vmx_caps *caps, bool (*rdmsr)(uint32_t index, uint64_t *value))
{
	static const uint32_t plain[] = {
	        [VMX_PIN] = MSR_VMX_PINBASED,     [VMX_PROC] = MSR_VMX_PROCBASED,
	        [VMX_PROC2] = MSR_VMX_PROCBASED2, [VMX_EXIT] = MSR_VMX_EXIT,
	        [VMX_ENTRY] = MSR_VMX_ENTRY,
	};
	static const uint32_t exact[] = {
	        [VMX_PIN] = MSR_VMX_TRUE_PIN,
	        [VMX_PROC] = MSR_VMX_TRUE_PROC,
	        [VMX_EXIT] = MSR_VMX_TRUE_EXIT,
	        [VMX_ENTRY] = MSR_VMX_TRUE_ENTRY,
	};

	memset(caps, 0, sizeof(*caps));
	caps->has_feature_control = rdmsr(MSR_FEATURE_CONTROL, &caps->feature_control);
	rdmsr(MSR_VMX_BASIC, &caps->basic);
	rdmsr(MSR_VMX_MISC, &caps->misc);
	rdmsr(MSR_VMX_CR0_FIXED0, &caps->cr0_fixed0);
	rdmsr(MSR_VMX_CR0_FIXED1, &caps->cr0_fixed1);
	rdmsr(MSR_VMX_CR4_FIXED0, &caps->cr4_fixed0);
	rdmsr(MSR_VMX_CR4_FIXED1, &caps->cr4_fixed1);
	for (unsigned w = 0; w < VMX_WORD_COUNT; w++) {
		if (w == VMX_PROC2 && !(may_of(caps->word, VMX_PROC) & PROC_SECONDARY))
			continue;
		rdmsr(plain[w], &caps->word[w]);
		if (w != VMX_PROC2 && (caps->basic & BASIC_TRUE))
			rdmsr(exact[w], &caps->true_word[w]);
	}
	if (may_of(caps->word, VMX_PROC2) & (PROC2_EPT | PROC2_VPID))
		rdmsr(MSR_VMX_EPT_VPID, &caps->ept_vpid);
}

static int refuse(char *why, size_t why_len, const char *what, const char *where)
{
	fmt_snprintf(why, why_len,
	             "VMX: '%s' (%s) is missing: Quell needs it; use a processor of 2010 or "
	             "later, or have the hypervisor below offer it",
	             what, where);
	return -ENODEV;
}

/* The size, address-width and EPT facts that are no control bits. */
static int choose_basics(struct vmx_controls *out, const struct vmx_caps *caps, char *why,
                         size_t why_len)
{
	if (caps->basic == 0 || BASIC_SIZE(caps->basic) > PAGE_SIZE)
		return refuse(why, why_len, "a VMCS of at most 4096 bytes", "IA32_VMX_BASIC 44:32");
	if (caps->basic & BASIC_32BIT)
		return refuse(why, why_len, "64-bit VMCS addresses", "IA32_VMX_BASIC 48");
	out->revision = (uint32_t)caps->basic & 0x7fffffff;
	out->timer_shift = (uint32_t)caps->misc & 31;
	if (caps->basic & BASIC_STRING_INFO)
		out->features |= VMX_F_STRING_INFO;
	return 0;
}

static int choose_ept(struct vmx_controls *out, const struct vmx_caps *caps, char *why,
                      size_t why_len)
{
	uint64_t cap = caps->ept_vpid;

	if (!(cap & EPT_CAP_WALK4))
		return refuse(why, why_len, "EPT page-walk length 4", "IA32_VMX_EPT_VPID_CAP 6");
	if (!(cap & EPT_CAP_WB))
		return refuse(why, why_len, "EPT write-back", "IA32_VMX_EPT_VPID_CAP 14");
	if (!(cap & EPT_CAP_INVEPT) || !(cap & (EPT_CAP_EPT_SINGLE | EPT_CAP_EPT_ALL)))
		return refuse(why, why_len, "INVEPT", "IA32_VMX_EPT_VPID_CAP 20, 25, 26");
	out->eptp_flags = EPTP_WB | EPTP_WALK4;
	return 0;
}

/* Features reported by IA32_VMX_EPT_VPID_CAP and IA32_VMX_BASIC instead of a control word. */
static void choose_others(struct vmx_controls *out, const struct vmx_caps *caps,
                          const char *const *disable, unsigned count)
{
	uint64_t cap = caps->ept_vpid;

	if ((cap & EPT_CAP_1G) && !disabled("ept-1g", disable, count))
		out->features |= VMX_F_EPT_1G;
	if ((cap & EPT_CAP_2M) && !disabled("ept-2m", disable, count))
		out->features |= VMX_F_EPT_2M;
	if ((cap & EPT_CAP_AD) && !disabled("ept-ad", disable, count)) {
		out->features |= VMX_F_EPT_AD;
		out->eptp_flags |= EPTP_AD;
	}
	if (!disabled("mmio-misconfig", disable, count))
		out->features |= VMX_F_MMIO_MISCONF;
	if (disabled("string-info", disable, count))
		out->features &= ~(uint32_t)VMX_F_STRING_INFO;

	if ((cap & EPT_CAP_EPT_SINGLE) &&
	    (!disabled("invept-types", disable, count) || !(cap & EPT_CAP_EPT_ALL)))
		out->features |= VMX_F_INVEPT_SINGLE;

	/* Without a way to flush by VPID there is no VPID: entries and exits then flush. */
	if (!(cap & EPT_CAP_INVVPID) || !(cap & (EPT_CAP_VPID_SINGLE | EPT_CAP_VPID_ALL))) {
		out->features &= ~(uint32_t)VMX_F_VPID;
		out->word[VMX_PROC2] &= ~(uint32_t)PROC2_VPID;
	} else if ((cap & EPT_CAP_VPID_SINGLE) &&
	           (!disabled("invvpid-types", disable, count) || !(cap & EPT_CAP_VPID_ALL))) {
		out->features |= VMX_F_INVVPID_SINGLE;
	}
}

static void choose_cr(struct vmx_controls *out, const struct vmx_caps *caps)
{
	/* Unrestricted guests may clear PE and PG; SDM 3C 27.3.1.1. CD and NW are never checked. */
	out->cr0_must = caps->cr0_fixed0 & ~(CR0_PE | CR0_PG);
	out->cr0_may = caps->cr0_fixed1;
	out->cr4_must = caps->cr4_fixed0;
	out->cr4_may = caps->cr4_fixed1;
	out->cr4_guest = CR4_GUEST & caps->cr4_fixed1;
}

static bool row_has(const struct control *row, const uint64_t *allowed)
{
	return (may_of(allowed, row->word) & row->bits) == row->bits;
}

/* Takes every row of a feature, or none. */
static void choose_optional(struct vmx_controls *out, const uint64_t *allowed,
                            const char *const *disable, unsigned count)
{
	for (unsigned i = 0; i < ARRAY_LEN(table); i++)
		if (table[i].disable)
			out->features |= table[i].feature;
	for (unsigned i = 0; i < ARRAY_LEN(table); i++)
		if (table[i].disable &&
		    (!row_has(&table[i], allowed) || disabled(table[i].disable, disable, count)))
			out->features &= ~table[i].feature;
	for (unsigned i = 0; i < ARRAY_LEN(table); i++)
		if (table[i].disable && (out->features & table[i].feature))
			out->word[table[i].word] |= table[i].bits & ~dynamic[table[i].word];
}

int vmx_controls_choose(struct vmx_controls *out, const struct vmx_caps *caps,
                        const char *const *disable, unsigned count, char *why, size_t why_len)
{
	uint64_t allowed[VMX_WORD_COUNT];
	bool exact = (caps->basic & BASIC_TRUE) && !disabled("true-controls", disable, count);
	int err;

	memset(out, 0, sizeof(*out));
	err = choose_basics(out, caps, why, why_len);
	if (err)
		return err;
	for (unsigned w = 0; w < VMX_WORD_COUNT; w++)
		allowed[w] = exact && w != VMX_PROC2 ? caps->true_word[w] : caps->word[w];

	for (unsigned i = 0; i < ARRAY_LEN(table); i++) {
		const struct control *row = &table[i];

		if (row->disable)
			continue;
		if (!row_has(row, allowed))
			return refuse(why, why_len, row->name, word_name[row->word]);
		out->word[row->word] |= row->bits & ~dynamic[row->word];
	}
	err = choose_ept(out, caps, why, why_len);
	if (err)
		return err;
	choose_optional(out, allowed, disable, count);
	if (!(out->features & VMX_F_IO_UNCOND)) {
		if (!(may_of(allowed, VMX_PROC) & PROC_IO_BITMAPS))
			return refuse(why, why_len, "I/O exiting or I/O bitmaps",
			              word_name[VMX_PROC]);
		out->word[VMX_PROC] |= PROC_IO_BITMAPS;
	}

	for (unsigned w = 0; w < VMX_WORD_COUNT; w++) {
		uint32_t forced = must_of(allowed, w) & ~out->word[w];

		if (forced & ~tolerated[w]) {
			fmt_snprintf(why, why_len,
			             "VMX: %s control bits 0x%x cannot be turned off here, and "
			             "Quell cannot run with them: update the hypervisor below",
			             word_name[w], forced & ~tolerated[w]);
			return -ENODEV;
		}
		out->word[w] |= forced;
	}
	if (!(out->word[VMX_PROC] & (PROC_CR3_LOAD | PROC_CR3_STORE)))
		out->features |= VMX_F_CR3_FREE;
	choose_others(out, caps, disable, count);
	choose_cr(out, caps);
	return vmx_controls_check(out, caps, why, why_len);
}

int vmx_controls_check(const struct vmx_controls *controls, const struct vmx_caps *caps, char *why,
                       size_t why_len)
{
	for (unsigned w = 0; w < VMX_WORD_COUNT; w++) {
		bool exact = (caps->basic & BASIC_TRUE) && w != VMX_PROC2;
		const uint64_t *allowed = exact ? caps->true_word : caps->word;
		uint32_t word = controls->word[w];

		if ((word & must_of(allowed, w)) == must_of(allowed, w) &&
		    !(word & ~may_of(allowed, w)))
			continue;
		fmt_snprintf(why, why_len, "VMX: %s controls 0x%x outside must 0x%x, may 0x%x",
		             word_name[w], word, must_of(allowed, w), may_of(allowed, w));
		return -EINVAL;
	}
	if (controls->revision != ((uint32_t)caps->basic & 0x7fffffff)) {
		fmt_snprintf(why, why_len, "VMX: VMCS revision 0x%x, boot core has 0x%x",
		             (uint32_t)caps->basic & 0x7fffffff, controls->revision);
		return -EINVAL;
	}
	return 0;
}

int vmx_feature_control(const struct vmx_caps *caps, uint64_t *write, char *why, size_t why_len)
{
	uint64_t value = caps->feature_control;

	*write = 0;
	/* Some emulators have VMX without this register; then VMXON alone decides. */
	if (!caps->has_feature_control || (value & (VMX_FEATURE_LOCK | VMX_FEATURE_VMXON)) ==
	                                          (VMX_FEATURE_LOCK | VMX_FEATURE_VMXON))
		return 0;
	if (value & VMX_FEATURE_LOCK) {
		fmt_snprintf(why, why_len,
		             "VMX: locked off (IA32_FEATURE_CONTROL = 0x%llx): enable VMX "
		             "(virtualization) in the firmware setup",
		             (unsigned long long)value);
		return -ENODEV;
	}
	*write = value | VMX_FEATURE_LOCK | VMX_FEATURE_VMXON;
	return 0;
}

uint32_t vmx_timer_ticks(uint64_t now_tsc, uint64_t deadline_tsc, unsigned shift)
{
	uint64_t partial = deadline_tsc & (BIT(shift) - 1);
	uint64_t target = (deadline_tsc >> shift) + (partial != 0);
	uint64_t now = now_tsc >> shift;

	if (target <= now)
		return 0;
	return target - now > UINT32_MAX ? UINT32_MAX : (uint32_t)(target - now);
}
