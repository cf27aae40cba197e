/* Which back end this machine has. */
#include "arch/x86/hvm.h"
#include "arch/platform.h"
#include "arch/x86/cpu.h"
#include "vmm/fmt.h"

/* Weak: an image without one of the back ends still links, and refuses its machines. */
extern const struct hvm_ops hvm_svm __attribute__((weak));
extern const struct hvm_ops hvm_vmx __attribute__((weak));

static bool has_vmx(void)
{
	return cpu_id(1, 0).ecx & BIT(5);
}

static bool has_svm(void)
{
	return cpu_id(0x80000000, 0).eax >= 0x8000000a && (cpu_id(0x80000001, 0).ecx & BIT(2));
}

const struct hvm_ops *hvm_choose(const char *const *disable, unsigned disable_count, char *why,
                                 size_t why_len)
{
	const struct hvm_ops *ops = NULL;

	if (has_svm())
		ops = &hvm_svm;
	else if (has_vmx())
		ops = &hvm_vmx;
	else
		fmt_snprintf(
		        why, why_len,
		        "this processor offers neither VMX nor SVM: enable virtualization in the "
		        "firmware setup, or run under QEMU with -cpu EPYC,+svm,+npt");
	if (!has_svm() && !has_vmx())
		return NULL;
	if (!ops) {
		fmt_snprintf(why, why_len, "this image was built without the back end for %s",
		             has_svm() ? "SVM" : "VMX");
		return NULL;
	}
	return ops->probe(disable, disable_count, why, why_len) ? NULL : ops;
}

uint64_t hvm_xgetbv(void)
{
	uint32_t low, high;

	/* CR4.OSXSAVE is on wherever the processor has it; without it there is but x87. */
	if (!(cpu_id(1, 0).ecx & BIT(27)))
		return 1;
	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (uint64_t)high << 32 | low;
}
