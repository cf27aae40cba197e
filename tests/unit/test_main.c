/*
 * The whole hypervisor in one process: quell_main with a manifest, a kernel and a back end whose
 * guests are scripts. Cores take turns: what core_start was given runs when another core waits.
 * Each run is a process of its own, for main.c's state begins once.
 */
#include "tests/unit/test.h"

#include "arch/x86/core.h"
#include "arch/x86/hvm.h"
#include "tests/fake/bzimage.h"
#include "tests/fake/platform.h"
#include "vmm/main.h"
#include "vmm/platform_ports.h"
#include "vmm/vcpu.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CORES     4u
#define STEPS     32u
#define WAITS_MAX 10000u

/* --- the machine ---------------------------------------------------------------------------------
 */

static struct {
	unsigned cores;
	uint64_t free_bytes, largest_bytes;
	bool no_backend, no_mwait, no_console_irq;
	unsigned dead_core; /* does not start; 0: all do */
	int vm_init, map_ram, map_mmio, vcpu_init, core_enable, vcpu_bind;
	unsigned bind_fails_at; /* vCPU index, with vcpu_bind */
} machine;

static struct start {
	unsigned core;
	void (*entry)(void *arg);
	void *arg;
} starts[CORES];
static unsigned start_count, start_next, waits;

static jmp_buf powered_off;
static bool ended_well;

static struct boot_info info;
static uint8_t kernel[BZIMAGE_LEN];
static const char *const initrd = "an initrd";

unsigned core_count(void)
{
	return machine.cores;
}

uint64_t core_mem_free_bytes(void)
{
	return machine.free_bytes;
}

bool core_mem_largest(uint64_t align_bytes, uint64_t *len_bytes)
{
	*len_bytes = machine.largest_bytes;
	return machine.largest_bytes >= align_bytes;
}

int core_start(unsigned core, void (*entry)(void *arg), void *arg)
{
	if (core == machine.dead_core)
		return -EIO;
	starts[start_count++] = (struct start){core, entry, arg};
	return 0;
}

int core_idle_set(unsigned core, enum core_idle idle)
{
	(void)core;
	return idle == CORE_IDLE_MWAIT && machine.no_mwait ? -EOPNOTSUPP : 0;
}

const char *core_idle_name(unsigned core)
{
	(void)core;
	return "turns";
}

int core_console_irq_enable(unsigned core)
{
	(void)core;
	return machine.no_console_irq ? -ENODEV : 0;
}

void core_irq_disable(void)
{
}

void core_irq_enable(void)
{
}

void core_power_off(bool ok)
{
	ended_well = ok;
	longjmp(powered_off, 1);
}

/* Another core's turn; without one, time goes by. */
static void turn(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)wake;
	if (waits++ > WAITS_MAX) {
		puts("  nobody ends this run");
		exit(1);
	}
	if (start_next < start_count) {
		struct start *s = &starts[start_next++];
		unsigned before = fake_core;

		fake_core = s->core;
		s->entry(s->arg);
		fake_core = before;
	} else if (deadline_tsc != UINT64_MAX && deadline_tsc > fake_tsc) {
		fake_tsc = deadline_tsc;
	} else {
		fake_tsc += 1000000;
	}
}

/* --- the back end ---------------------------------------------------------------------------------
 */

struct step {
	enum hvm_exit_reason reason;
	void (*fill)(struct hvm_vcpu *hv);
};

static const struct step *script[2]; /* of each guest's vCPU 0; past the end it spins */
static unsigned at[2], injected[2], dumps, enabled, bound;
static struct hvm_state states[2];

static unsigned guest_of(const struct hvm_vcpu *hv)
{
	return CONTAINER_OF(hv, struct vcpu, hv)->vm->index;
}

static void be_run(struct hvm_vcpu *hv)
{
	unsigned g = guest_of(hv);

	hv->skipped = false;
	fake_tsc += 1000;
	memset(&hv->exit, 0, sizeof(hv->exit));
	hv->exit.insn_len = 2;
	hv->exit.reason = HVM_EXIT_INTR;
	if (hv->index || !script[g] || (!script[g][at[g]].reason && !script[g][at[g]].fill)) {
		if (waits++ > WAITS_MAX) {
			puts("  a guest runs for ever");
			exit(1);
		}
		return;
	}
	hv->exit.reason = script[g][at[g]].reason;
	if (script[g][at[g]].fill)
		script[g][at[g]].fill(hv);
	at[g]++;
}

static int be_vm_init(struct hvm_vm *vm)
{
	(void)vm;
	return machine.vm_init;
}

static int be_map_ram(struct hvm_vm *vm, gpa_t gpa, hpa_t hpa, uint64_t len_bytes)
{
	(void)vm;
	(void)gpa;
	(void)hpa;
	(void)len_bytes;
	return machine.map_ram;
}

static int be_map_mmio(struct hvm_vm *vm, gpa_t gpa, uint64_t len_bytes)
{
	(void)vm;
	(void)gpa;
	(void)len_bytes;
	return machine.map_mmio;
}

static int be_vcpu_init(struct hvm_vcpu *hv)
{
	(void)hv;
	return machine.vcpu_init;
}

static int be_core_enable(void)
{
	enabled++;
	return machine.core_enable;
}

static void be_core_disable(void)
{
	enabled--;
}

static int be_vcpu_bind(struct hvm_vcpu *hv)
{
	if (machine.vcpu_bind && hv->index == machine.bind_fails_at)
		return machine.vcpu_bind;
	bound++;
	return 0;
}

static void be_vcpu_unbind(struct hvm_vcpu *hv)
{
	(void)hv;
	bound--;
}

static void be_state_get(struct hvm_vcpu *hv, struct hvm_state *state)
{
	*state = states[guest_of(hv)];
}

static void be_state_set(struct hvm_vcpu *hv, const struct hvm_state *state)
{
	if (hv->index == 0)
		states[guest_of(hv)] = *state;
}

static void be_inject(struct hvm_vcpu *hv, uint8_t vector, int64_t error_code)
{
	(void)error_code;
	injected[guest_of(hv)] |= 1u << vector;
}

static void be_events_reset(struct hvm_vcpu *hv)
{
	(void)hv;
}

static void be_dump(struct hvm_vcpu *hv)
{
	(void)hv;
	dumps++;
}

static const struct hvm_ops backend = {
        .name = "script",
        .exit_name = {[HVM_EXIT_TRIPLE_FAULT] = "SHUTDOWN",
                      [HVM_EXIT_CPUID] = "CPUID",
                      [HVM_EXIT_PIO] = "IOIO",
                      [HVM_EXIT_RDMSR] = "MSR"},
        .core_enable = be_core_enable,
        .core_disable = be_core_disable,
        .vm_init = be_vm_init,
        .map_ram = be_map_ram,
        .map_mmio = be_map_mmio,
        .vcpu_init = be_vcpu_init,
        .vcpu_bind = be_vcpu_bind,
        .vcpu_unbind = be_vcpu_unbind,
        .run = be_run,
        .state_get = be_state_get,
        .state_set = be_state_set,
        .state_get_paging = be_state_get,
        .inject = be_inject,
        .events_reset = be_events_reset,
        .dump = be_dump,
};

const struct hvm_ops *hvm_choose(const char *const *disable, unsigned disable_count, char *why,
                                 size_t why_len)
{
	(void)disable;
	(void)disable_count;
	if (!machine.no_backend)
		return &backend;
	snprintf(why, why_len, "no virtualization here");
	return NULL;
}

bool hvm_rdmsr_safe(uint32_t index, uint64_t *value)
{
	(void)index;
	(void)value;
	return false;
}

bool hvm_wrmsr_safe(uint32_t index, uint64_t value)
{
	(void)index;
	(void)value;
	return false;
}

bool hvm_xsetbv_safe(uint32_t index, uint64_t value)
{
	(void)value;
	return index == 0;
}

uint64_t hvm_xgetbv(void)
{
	return 7;
}

/* --- what guests do -------------------------------------------------------------------------------
 */

static void out_byte(struct hvm_vcpu *hv, uint16_t port, uint8_t value)
{
	hv->exit.u.pio.port = port;
	hv->exit.u.pio.width_bytes = 1;
	hv->gpr[HVM_RAX] = value;
}

static void power_off(struct hvm_vcpu *hv)
{
	out_byte(hv, PORTS_SLEEP_CONTROL, BIT(5) | PORTS_SLEEP_TYPE_OFF << 2);
}

static void reset(struct hvm_vcpu *hv)
{
	out_byte(hv, PORTS_RESET, PORTS_RESET_VALUE);
}

static void letter(struct hvm_vcpu *hv)
{
	out_byte(hv, 0x3f8, 'Q');
}

static void in_byte(struct hvm_vcpu *hv)
{
	hv->exit.u.pio.port = 0x61;
	hv->exit.u.pio.width_bytes = 1;
	hv->exit.u.pio.in = true;
}

static void leaf_0(struct hvm_vcpu *hv)
{
	hv->gpr[HVM_RAX] = hv->gpr[HVM_RCX] = 0;
}

static void msr_tsc(struct hvm_vcpu *hv)
{
	hv->exit.u.msr.index = 0x10;
}

static void msr_unknown(struct hvm_vcpu *hv)
{
	hv->exit.u.msr.index = 0x12345;
}

/* IA32_APIC_BASE, as it is: enabled, boot processor. */
static void msr_apic_base(struct hvm_vcpu *hv)
{
	hv->exit.u.msr.index = 0x1b;
	hv->gpr[HVM_RAX] = 0xfee00900;
	hv->gpr[HVM_RDX] = 0;
}

static void cr8_write_2(struct hvm_vcpu *hv)
{
	hv->exit.u.cr8.gpr = HVM_RBX;
	hv->exit.u.cr8.write = true;
	hv->gpr[HVM_RBX] = 2;
}

static void cr8_write_16(struct hvm_vcpu *hv)
{
	cr8_write_2(hv);
	hv->gpr[HVM_RBX] = 16;
}

static void cr8_read(struct hvm_vcpu *hv)
{
	hv->exit.u.cr8.gpr = HVM_RSI;
}

static void xcr0_x87(struct hvm_vcpu *hv)
{
	hv->gpr[HVM_RCX] = hv->gpr[HVM_RDX] = 0;
	hv->gpr[HVM_RAX] = 1;
}

static void xcr1(struct hvm_vcpu *hv)
{
	xcr0_x87(hv);
	hv->gpr[HVM_RCX] = 1;
}

/* mov [rax], ecx where nothing is: it vanishes. */
static void store_nowhere(struct hvm_vcpu *hv)
{
	static const uint8_t store[] = {0x89, 0x08};

	hv->exit.insn_len = 0;
	hv->exit.insn_bytes = store;
	hv->exit.insn_bytes_count = sizeof(store);
	hv->gpr[HVM_RAX] = 0xd0000000;
	hv->exit.u.mem.gpa = 0xd0000000;
	hv->exit.u.mem.write = true;
}

/* One tick of its timer wakes it. */
static void timer_due(struct hvm_vcpu *hv)
{
	struct vcpu *v = CONTAINER_OF(hv, struct vcpu, hv);

	vlapic_mmio_write(&v->lapic, 0xf0, 0x1ff);
	vlapic_mmio_write(&v->lapic, 0x320, 0x40);
	vlapic_mmio_write(&v->lapic, 0x380, 1000);
	hv->rflags |= HVM_RFLAGS_IF;
}

static void took_interrupt(struct hvm_vcpu *hv)
{
	CHECK_EQ(hv->irq_offer, 0x40);
	hv->irq_taken = true;
}

static const struct step all_exits[] = {
        {HVM_EXIT_CPUID, leaf_0},      {HVM_EXIT_RDMSR, msr_tsc},
        {HVM_EXIT_RDMSR, msr_unknown}, {HVM_EXIT_WRMSR, msr_apic_base},
        {HVM_EXIT_WRMSR, msr_unknown}, {HVM_EXIT_PIO, in_byte},
        {HVM_EXIT_PIO, letter},        {HVM_EXIT_PAUSE, NULL},
        {HVM_EXIT_WBINVD, NULL},       {HVM_EXIT_UD, NULL},
        {HVM_EXIT_CR8, cr8_write_2},   {HVM_EXIT_CR8, cr8_read},
        {HVM_EXIT_CR8, cr8_write_16},  {HVM_EXIT_XSETBV, xcr0_x87},
        {HVM_EXIT_XSETBV, xcr1},       {HVM_EXIT_HYPERCALL, NULL},
        {HVM_EXIT_MEM, store_nowhere}, {HVM_EXIT_KICK, store_nowhere},
        {HVM_EXIT_HLT, timer_due},     {HVM_EXIT_INTR, took_interrupt},
        {HVM_EXIT_PIO, power_off},     {0, NULL},
};
static const struct step off[] = {{HVM_EXIT_PIO, power_off}, {0, NULL}};
static const struct step resets[] = {{HVM_EXIT_PIO, reset}, {0, NULL}};
static const struct step faults[] = {{HVM_EXIT_TRIPLE_FAULT, NULL}, {0, NULL}};
static const struct step bad[] = {{HVM_EXIT_BAD_STATE, NULL}, {0, NULL}};

/* --- runs -----------------------------------------------------------------------------------------
 */

#define GUEST(name) "[[guest]]\nname = \"" name "\"\nkernel = \"vmlinuz\"\nmemory = \"64M\"\n"
#define DISK        "[[guest.disk]]\nsource = \"null:1M\"\n"

static void file_add(const char *name, const void *bytes, size_t len)
{
	struct boot_file *file = &info.files[info.file_count++];

	snprintf(file->name, sizeof(file->name), "%s", name);
	file->base_hpa = (uintptr_t)bytes;
	file->len_bytes = len;
}

/* The child goes on; the parent takes its verdict and returns false. */
static bool begin(void)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child) {
		CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		return false;
	}
	test_case_failed = 0;
	fake_reset();
	fake_tsc = 1000000000;
	fake_wait = turn;
	machine.cores = CORES;
	machine.free_bytes = machine.largest_bytes = 1 * GIB;
	bzimage_make(kernel);
	return true;
}

static void run(const char *manifest)
{
	memset(&info, 0, sizeof(info));
	info.cpu_count = machine.cores;
	info.wall_unix_s = 1800000000;
	file_add("quell.toml", manifest, strlen(manifest));
	file_add("vmlinuz", kernel, sizeof(kernel));
	file_add("initrd.img", initrd, strlen(initrd));
	if (!setjmp(powered_off))
		quell_main(&info);
}

static NORETURN void end(void)
{
	CHECK_EQ(enabled, 0);
	CHECK_EQ(bound, 0);
	if (test_case_failed)
		puts(fake_log);
	exit(test_case_failed);
}

static void expect(const char *text)
{
	if (strstr(fake_log, text))
		return;
	printf("  not in the log: %s\n", text);
	test_case_failed = 1;
}

static void each_exit_is_served(void)
{
	if (!begin())
		return;
	script[0] = all_exits;
	run(GUEST("a") "initrd = \"initrd.img\"\n" DISK);
	CHECK(ended_well);
	expect("guest a: ended: power-off");
	expect("nested page tables, 1 vCPU on core 1");
	CHECK_EQ(injected[0], 1u << 13 | 1u << 6); /* #GP and #UD, nothing else */
	CHECK(at[0] == ARRAY_LEN(all_exits) - 1);
	CHECK(strstr(fake_console, "Q"));
	end();
}

static void guests_end_as_they_please(void)
{
	if (!begin())
		return;
	script[0] = resets;
	script[1] = off;
	run(GUEST("a") DISK GUEST("b") DISK);
	CHECK(ended_well);
	expect("guest a: ended: reset");
	expect("guest b: ended: power-off");
	end();
}

/* A failed run, for scripts' sake; the other guest does not notice. */
static void crash_is_the_guests_own(const struct step *how, const char *text)
{
	if (!begin())
		return;
	script[0] = how;
	script[1] = all_exits;
	run(GUEST("a") DISK GUEST("b") DISK);
	CHECK(!ended_well);
	expect(text);
	expect("guest b: ended: power-off");
	CHECK_EQ(dumps, 1);
	end();
}

static void triple_fault(void)
{
	crash_is_the_guests_own(faults, "guest a: ended: triple-fault");
}

static void bad_state(void)
{
	crash_is_the_guests_own(bad, "guest a: ended: error");
}

/* Siblings wait for a start-up IPI that never comes, and end with the first. */
static void two_vcpus(void)
{
	if (!begin())
		return;
	script[0] = off;
	run(GUEST("a") "vcpus = 2\n" DISK);
	CHECK(ended_well);
	expect("2 vCPUs on core 1 and on");
	end();
}

static void boot_core_runs_a_vcpu(void)
{
	if (!begin())
		return;
	script[0] = off; /* no halt: the I/O core's turn would not end before the guest's */
	machine.no_console_irq = true;
	run("[host]\nio_core = 1\n" GUEST("a") "cpus = [0]\n" DISK);
	CHECK(ended_well);
	expect("guest a: ended: power-off");
	end();
}

static void core_refuses(void)
{
	if (!begin())
		return;
	script[0] = off;
	machine.core_enable = -EIO;
	run(GUEST("a") DISK);
	CHECK(!ended_well);
	expect("guest a: ended: error");
	enabled = 0; /* who was refused has nothing to disable */
	end();
}

static void vcpu_does_not_bind(void)
{
	if (!begin())
		return;
	script[0] = off;
	machine.vcpu_bind = -EIO;
	machine.bind_fails_at = 1;
	run(GUEST("a") "vcpus = 2\n" DISK);
	CHECK(!ended_well);
	expect("guest a: ended: error");
	end();
}

static void memory_in_pieces(void)
{
	if (!begin())
		return;
	script[0] = off;
	machine.largest_bytes = 40 * MIB;
	run(GUEST("a") DISK);
	CHECK(ended_well);
	expect("64 MiB in 2 pieces");
	end();
}

/* --- what cannot be -------------------------------------------------------------------------------
 */

static void one_core(void)
{
	machine.cores = 1;
}

static void no_backend(void)
{
	machine.no_backend = true;
}

static void little_memory(void)
{
	machine.free_bytes = 16 * MIB;
}

static void small_pieces(void)
{
	machine.largest_bytes = 1 * MIB;
}

static void no_nested(void)
{
	machine.vm_init = -ENOMEM;
}

static void no_nested_ram(void)
{
	machine.map_ram = -ENOMEM;
}

static void no_nested_mmio(void)
{
	machine.map_mmio = -ENOMEM;
}

static void no_tag(void)
{
	machine.vcpu_init = -ENOSPC;
}

static void no_vcpu(void)
{
	machine.vcpu_init = -ENOMEM;
}

static void no_mwait(void)
{
	machine.no_mwait = true;
}

static void io_core_dead(void)
{
	machine.dead_core = 2;
}

static void guest_core_dead(void)
{
	machine.dead_core = 3;
}

static void kernel_is_text(void)
{
	memset(kernel, 'x', sizeof(kernel));
}

static const struct {
	void (*machine)(void);
	const char *manifest, *text;
} refusals[] = {
        {NULL, "nonsense", "quell.toml:1:"},
        {NULL, "", "no guest: add a [[guest]]"},
        {one_core, GUEST("a") DISK, "this machine has one processor"},
        {NULL, "[host]\nio_core = 9\n" GUEST("a") DISK, "quell.toml:2:11: io_core = 9, but"},
        {NULL, GUEST("a") "cpus = [7]\n" DISK, "cpus names core 7, but"},
        {NULL, GUEST("a") "vcpus = 4\n" DISK, "no core is left for vCPU 3"},
        {NULL, GUEST("a") "vcpus = 3\n" DISK GUEST("b") DISK, "guest \"b\": no core is left"},
        {no_backend, GUEST("a") DISK, "no virtualization here"},
        {little_memory, GUEST("a") DISK, "wants 64 MiB but this machine has 16 MiB free"},
        {small_pieces, GUEST("a") DISK, "no 64 MiB of free memory in large enough pieces"},
        {no_nested, GUEST("a") DISK, "no memory for nested page tables"},
        {no_nested_ram, GUEST("a") DISK, "no 64 MiB of free memory"},
        {no_nested_mmio, GUEST("a") DISK, "no memory for nested page tables"},
        {no_tag, GUEST("a") DISK, "no address-space tag left for vCPU 0"},
        {no_tag, GUEST("a") "vcpus = 2\n" DISK, "quell.toml:5:9: guest \"a\": the processor has"},
        {no_vcpu, GUEST("a") DISK, "no memory for vCPU 0"},
        {kernel_is_text, GUEST("a") DISK, "a Linux bzImage (vmlinuz) is needed"},
        {NULL, "[[guest]]\nname = \"a\"\nkernel = \"other\"\nmemory = \"64M\"\n" DISK,
         "kernel \"other\" was not loaded"},
        {NULL, GUEST("a") "initrd = \"other\"\n" DISK, "initrd \"other\" was not loaded"},
        {NULL, GUEST("a") "[[guest.disk]]\nsource = \"nvme0n1\"\n", "guest \"a\": no disk"},
        {NULL, GUEST("a") "[[guest.disk]]\nsource = \"ram:initrd.img\"\n",
         "the file is smaller than one sector"},
        {no_mwait, "[host]\nidle = \"mwait\"\n" GUEST("a") DISK, "no MONITOR and MWAIT"},
        {io_core_dead, "[host]\nio_core = 2\n" GUEST("a") "cpus = [0]\n" DISK,
         "core 2 did not start"},
        {guest_core_dead, GUEST("a") "cpus = [3]\n" DISK, "core 3 did not start"},
};

static void refuses_what_cannot_be(void)
{
	for (unsigned i = 0; i < ARRAY_LEN(refusals); i++) {
		if (!begin())
			continue;
		if (refusals[i].machine)
			refusals[i].machine();
		run(refusals[i].manifest);
		CHECK(!ended_well);
		expect(refusals[i].text);
		CHECK(!at[0]);
		end();
	}
}

TESTS(T(each_exit_is_served), T(guests_end_as_they_please), T(triple_fault), T(bad_state),
      T(two_vcpus), T(boot_core_runs_a_vcpu), T(core_refuses), T(vcpu_does_not_bind),
      T(memory_in_pieces), T(refuses_what_cannot_be))
