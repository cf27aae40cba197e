/*
 * vm_fixture.h: a guest with memory, vCPUs and devices but no processor, for tests of what the
 * vCPUs' exits call. Each test file includes it once.
 */
#ifndef QUELL_TESTS_UNIT_VM_FIXTURE_H
#define QUELL_TESTS_UNIT_VM_FIXTURE_H

#include "arch/x86/hvm.h"
#include "tests/fake/platform.h"
#include "vmm/vm.h"

#define FX_RAM_BYTES (1024 * 1024)

static struct vm fx_vm;
static struct vcpu fx_vcpu[VM_VCPU_MAX];
static struct manifest_guest fx_config;
static struct hvm_state fx_state; /* what the fake back end holds; one for all vCPUs */
static uint64_t fx_live_msr;      /* the only MSR a guarded access finds: TSC_AUX */
static unsigned fx_live_accesses;
static uint8_t *fx_ram;
static uint64_t fx_seed, fx_xcr0 = 7;

static void fx_state_get(struct hvm_vcpu *vcpu, struct hvm_state *state)
{
	(void)vcpu;
	*state = fx_state;
}

static void fx_state_set(struct hvm_vcpu *vcpu, const struct hvm_state *state)
{
	(void)vcpu;
	fx_state = *state;
}

static const struct hvm_ops fx_ops = {
        .name = "fake",
        .state_get = fx_state_get,
        .state_set = fx_state_set,
        .state_get_paging = fx_state_get,
};

const struct hvm_ops *hvm = &fx_ops;

uint64_t hvm_xgetbv(void)
{
	return fx_xcr0;
}

bool hvm_rdmsr_safe(uint32_t index, uint64_t *value)
{
	fx_live_accesses++;
	*value = fx_live_msr;
	return index == 0xc0000103;
}

bool hvm_wrmsr_safe(uint32_t index, uint64_t value)
{
	fx_live_accesses++;
	fx_live_msr = value;
	return index == 0xc0000103;
}

/* The same sequence in every run (xorshift). */
static inline uint64_t fx_random(void)
{
	fx_seed ^= fx_seed << 13;
	fx_seed ^= fx_seed >> 7;
	fx_seed ^= fx_seed << 17;
	return fx_seed;
}

/* vCPU n on core n + 1; the caller is core 0. APICs as after power-on, time 1 s. */
static inline void fx_init(unsigned vcpus)
{
	fake_reset();
	fake_tsc = 1000000000;
	fx_seed = 0x9e3779b97f4a7c15ull;
	fx_live_accesses = 0;
	memset(&fx_vm, 0, sizeof(fx_vm));
	memset(fx_vcpu, 0, sizeof(fx_vcpu));
	memset(&fx_config, 0, sizeof(fx_config));
	memset(&fx_state, 0, sizeof(fx_state));
	fx_ram = plat_mem_alloc(FX_RAM_BYTES, PAGE_SIZE);
	gmem_add(&fx_vm.mem, 0, FX_RAM_BYTES, plat_hpa(fx_ram), fx_ram);
	fx_vm.name = "fx";
	fx_vm.config = &fx_config;
	fx_vm.vcpu_count = vcpus;
	vioapic_init(&fx_vm.ioapic, &fx_vm);
	vuart_init(&fx_vm.uart, &fx_vm);
	for (unsigned i = 0; i < vcpus; i++) {
		struct vcpu *v = &fx_vcpu[i];

		fx_vm.vcpu[i] = v;
		v->vm = &fx_vm;
		v->index = v->apic_id = i;
		v->core = i + 1;
		vlapic_init(&v->lapic, v, i, i == 0, 0);
	}
}

/* Enables a local APIC by software, as every guest does first. */
static inline void fx_listen(unsigned vcpu)
{
	vlapic_mmio_write(&fx_vcpu[vcpu].lapic, 0xf0, 0x1ff);
}

/* xAPIC to x2APIC mode. */
static inline void fx_x2apic(unsigned vcpu)
{
	struct vlapic *apic = &fx_vcpu[vcpu].lapic;

	vlapic_msr_write(apic, 0x1b, apic->base_msr | BIT(10));
	vlapic_msr_write(apic, 0x80f, 0x1ff);
}

static inline bool fx_posted(unsigned vcpu, uint8_t vector)
{
	return atomic_load(&fx_vcpu[vcpu].posted[vector >> 6]) >> (vector & 63) & 1;
}

/* What the run loop does before it enters: words to IRR. */
static inline void fx_collect(unsigned vcpu)
{
	struct vcpu *v = &fx_vcpu[vcpu];
	uint64_t posted[4];

	atomic_store(&v->posted_any, 0);
	for (unsigned i = 0; i < 4; i++)
		posted[i] = atomic_exchange(&v->posted[i], 0);
	vlapic_merge(&v->lapic, posted);
}

#endif
