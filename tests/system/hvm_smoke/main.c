/*
 * The smoke test of a back end: boots like the hypervisor, but instead of guests from the manifest
 * runs small programs on one vCPU and looks at each exit. Same image for SVM and VMX. The manifest
 * gives it the [host] disable words and nothing else.
 */
#include "arch/x86/core.h"
#include "tests/system/hvm_smoke/smoke.h"
#include "vmm/main.h"
#include "vmm/manifest.h"

extern const uint8_t guest_handlers[], guest_handlers_end[];

struct smoke smoke;

static void gdt_write(void)
{
	static const uint64_t gdt[] = {0, 0x00af9b000000ffffull, 0x00cf93000000ffffull};

	memcpy(smoke.ram + SMOKE_GDT, gdt, sizeof(gdt));
}

void smoke_gate(unsigned vector, enum smoke_handler handler)
{
	uint64_t *gate = (uint64_t *)(void *)(smoke.ram + SMOKE_IDT) + 2 * vector;

	gate[0] = (SMOKE_HANDLERS + 64u * handler) | 8ull << 16 | 0x8eull << 40;
	gate[1] = 0;
}

static void idt_write(void)
{
	static const uint8_t with_error[] = {8, 10, 11, 12, 13, 17};

	for (unsigned v = 0; v < 256; v++)
		smoke_gate(v, H_COUNT);
	for (unsigned i = 0; i < sizeof(with_error); i++)
		smoke_gate(with_error[i], H_ERROR);
	smoke_gate(14, H_PF);
	smoke_gate(2, H_NMI);
}

/* 1 GiB identity, in 2 MiB pages; kick page and hole included. */
static void tables_write(void)
{
	uint64_t *table = (uint64_t *)(void *)(smoke.ram + SMOKE_PML4);

	table[0] = (SMOKE_PML4 + 0x1000) | 7;
	table[512] = (SMOKE_PML4 + 0x2000) | 7;
	for (uint64_t i = 0; i < 512; i++)
		table[1024 + i] = i * 2 * MIB | 0xe7;
}

static void seg(struct hvm_state *s, unsigned i, uint16_t sel, uint32_t attr, uint32_t limit)
{
	s->seg[i] = (struct hvm_seg){.sel = sel, .attr = attr, .limit = limit};
}

static void state_real(struct hvm_state *s)
{
	for (unsigned i = HVM_ES; i <= HVM_GS; i++)
		seg(s, i, 0, i == HVM_CS ? 0x9b : 0x93, 0xffff);
	seg(s, HVM_LDTR, 0, 0x82, 0xffff);
	seg(s, HVM_TR, 0, 0x8b, 0xffff);
	s->cr0 = 0x10;
	s->idtr_limit = 0x3ff;
}

static void state_long(struct hvm_state *s)
{
	for (unsigned i = HVM_ES; i <= HVM_GS; i++)
		seg(s, i, i == HVM_CS ? 8 : 16, i == HVM_CS ? 0xa09b : 0xc093, 0xffffffff);
	seg(s, HVM_LDTR, 0, HVM_SEG_UNUSABLE, 0);
	seg(s, HVM_TR, 0, 0x8b, 0x67);
	s->cr0 = BIT(31) | BIT(16) | BIT(5) | BIT(4) | BIT(0);
	s->cr3 = SMOKE_PML4;
	s->cr4 = BIT(5);
	s->efer = BIT(10) | BIT(8);
	s->gdtr_base = SMOKE_GDT;
	s->gdtr_limit = 23;
	s->idtr_base = SMOKE_IDT;
	s->idtr_limit = 0xfff;
}

void smoke_load(const uint8_t *code, const uint8_t *code_end, bool long_mode)
{
	struct hvm_state state = {.pat = 0x0007040600070406ull, .dr6 = 0xffff0ff0, .dr7 = 0x400};

	memset(smoke.ram, 0, 0x10000);
	memcpy(smoke.ram + SMOKE_CODE, code, (size_t)(code_end - code));
	memcpy(smoke.ram + SMOKE_HANDLERS, guest_handlers,
	       (size_t)(guest_handlers_end - guest_handlers));
	if (long_mode) {
		gdt_write();
		idt_write();
		tables_write();
		state_long(&state);
	} else {
		state_real(&state);
	}
	memset(smoke.vcpu.gpr, 0, sizeof(smoke.vcpu.gpr));
	smoke.vcpu.gpr[HVM_RSP] = SMOKE_STACK;
	smoke.vcpu.rip = SMOKE_CODE;
	smoke.vcpu.rflags = 2;
	smoke.vcpu.irq_offer = -1;
	smoke.ops->state_set(&smoke.vcpu, &state);
	smoke.taken = 0;
	smoke.hung = false;
}

enum hvm_exit_reason smoke_go(void)
{
	uint64_t limit_tsc = plat_tsc() + 2 * plat_tsc_hz();

	for (;;) {
		smoke.vcpu.deadline_tsc = limit_tsc;
		smoke.ops->run(&smoke.vcpu);
		if (smoke.vcpu.irq_taken) {
			smoke.vcpu.irq_taken = false;
			smoke.vcpu.irq_offer = -1;
			smoke.taken++;
		}
		switch (smoke.vcpu.exit.reason) {
		case HVM_EXIT_IRQ_WINDOW: smoke.windows++; break;
		case HVM_EXIT_NONE:
		case HVM_EXIT_INTR:
		case HVM_EXIT_TIMER:
		case HVM_EXIT_NMI:
		case HVM_EXIT_CR: break;
		default: return smoke.vcpu.exit.reason;
		}
		if (plat_tsc() >= limit_tsc) {
			smoke.hung = true;
			plat_log("  hung at rip 0x%llx", (unsigned long long)smoke.vcpu.rip);
			return HVM_EXIT_NONE;
		}
	}
}

bool smoke_step(unsigned len_bytes)
{
	uint8_t said = smoke.vcpu.exit.insn_len;

	hvm_skip(&smoke.vcpu, len_bytes);
	return said == 0 || said == len_bytes;
}

static bool failed(const char *what, int err)
{
	plat_log("smoke: %s: error %d", what, err);
	return false;
}

bool smoke_setup(const char *const *disable, unsigned disable_count)
{
	char why[128] = "";
	int err;

	smoke.ops = hvm_choose(disable, disable_count, why, sizeof(why));
	if (!smoke.ops) {
		plat_log("smoke: refused: %s", why);
		return false;
	}
	err = smoke.ops->core_enable();
	if (err)
		return failed("core_enable", err);
	smoke.vm.tag = 1;
	smoke.ram = plat_mem_alloc(SMOKE_RAM_LEN, SMOKE_RAM_LEN);
	err = smoke.ram ? smoke.ops->vm_init(&smoke.vm) : -ENOMEM;
	if (err)
		return failed("vm_init", err);
	err = smoke.ops->map_ram(&smoke.vm, 0, plat_hpa(smoke.ram), SMOKE_RAM_LEN);
	if (!err)
		err = smoke.ops->map_mmio(&smoke.vm, SMOKE_KICK, PAGE_SIZE);
	if (err)
		return failed("map", err);
	smoke.vcpu.vm = &smoke.vm;
	smoke.vcpu.tsc_offset = 1ull << 50;
	smoke.vcpu.irq_offer = -1;
	err = smoke.ops->vcpu_init(&smoke.vcpu);
	if (!err)
		err = smoke.ops->vcpu_bind(&smoke.vcpu);
	return err ? failed("vcpu", err) : true;
}

void quell_main(const struct boot_info *info)
{
	static struct manifest manifest;
	static struct manifest_error error;
	const char *disable[MANIFEST_DISABLE_MAX];
	bool ok = true;

	if (manifest_parse((const char *)(uintptr_t)info->files[0].base_hpa,
	                   info->files[0].len_bytes, &manifest, &error))
		manifest.disable_count = 0;
	for (unsigned i = 0; i < manifest.disable_count; i++)
		disable[i] = manifest.disable[i];

	if (!smoke_setup(disable, manifest.disable_count))
		core_power_off(false);
	for (unsigned i = 0; i < smoke_case_count; i++) {
		bool passed = smoke_cases[i].run() && !smoke.hung;

		plat_log("smoke: %s %s", smoke_cases[i].name, passed ? "ok" : "FAIL");
		if (!passed)
			smoke.ops->dump(&smoke.vcpu);
		ok = ok && passed;
	}
	plat_log("smoke: %u interrupt windows", smoke.windows);
	plat_log("smoke: %s", ok ? "all ok" : "FAILED");
	core_power_off(ok);
}
