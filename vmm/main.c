#include "vmm/main.h"

#include "arch/x86/core.h"
#include "drivers/nvme/nvme.h"
#include "drivers/source.h"
#include "vmm/console.h"
#include "vmm/fmt.h"
#include "vmm/guest.h"
#include "vmm/ioloop.h"
#include "vmm/report.h"

#define MANIFEST_NAME "quell.toml"

const struct hvm_ops *hvm;

static const struct boot_info *boot;
static struct manifest manifest;
static struct manifest_error error;
static struct ioloop loop;
static struct vm *vms[MANIFEST_GUEST_MAX];
static unsigned vm_count;
static atomic_uint cores_busy; /* cores that run vCPUs and have not finished */
static atomic_uint io_core_done;
static atomic_uint main_wake;

/* --- the manifest against the machine ----------------------------------------------------------- */

static NORETURN void refuse(void)
{
	if (error.pos.line)
		plat_log(MANIFEST_NAME ":%u:%u: %s", error.pos.line, error.pos.col, error.text);
	else
		plat_log("%s", error.text);
	nvme_shutdown_all();
	core_power_off(false);
}

static NORETURN void refuse_at(struct manifest_pos pos, const char *fmt, ...) PRINTF(2, 3);

static NORETURN void refuse_at(struct manifest_pos pos, const char *fmt, ...)
{
	va_list args;

	error.pos = pos;
	va_start(args, fmt);
	fmt_vsnprintf(error.text, sizeof(error.text), fmt, args);
	va_end(args);
	refuse();
}

static bool file_find(const char *name, hpa_t *base_hpa, uint64_t *len_bytes)
{
	for (uint32_t i = 0; i < boot->file_count; i++) {
		if (strcmp(boot->files[i].name, name))
			continue;
		*base_hpa = boot->files[i].base_hpa;
		*len_bytes = boot->files[i].len_bytes;
		return true;
	}
	return false;
}

static void cores_check(void)
{
	unsigned count = core_count();

	if (count < 2)
		refuse_at(manifest.io_core_pos, "this machine has one processor: Quell needs one "
		                                "for I/O and one for a guest");
	if (manifest.io_core >= count)
		refuse_at(manifest.io_core_pos,
		          "io_core = %u, but this machine has cores 0 to %u: choose one of them",
		          manifest.io_core, count - 1);
}

/* Which cores each guest's vCPUs run on: as the manifest says, else the next free ones. */
static void cores_assign(uint32_t cores[MANIFEST_GUEST_MAX][MANIFEST_CPU_MAX])
{
	bool taken[BOOT_CPU_MAX] = {false};
	unsigned count = core_count(), next = 0;

	taken[manifest.io_core] = true;
	for (unsigned g = 0; g < manifest.guest_count; g++) {
		const struct manifest_guest *guest = &manifest.guest[g];

		for (unsigned i = 0; i < guest->cpu_count; i++) {
			if (guest->cpus[i] >= count)
				refuse_at(guest->cpus_pos,
				          "guest \"%s\": cpus names core %u, but this machine has "
				          "cores 0 "
				          "to %u: choose among them",
				          guest->name, guest->cpus[i], count - 1);
			cores[g][i] = guest->cpus[i];
			taken[guest->cpus[i]] = true;
		}
	}
	for (unsigned g = 0; g < manifest.guest_count; g++) {
		const struct manifest_guest *guest = &manifest.guest[g];

		for (unsigned i = guest->cpu_count; i < guest->vcpus; i++) {
			while (next < count && taken[next])
				next++;
			if (next == count)
				refuse_at(guest->vcpus_pos.line ? guest->vcpus_pos : guest->pos,
				          "guest \"%s\": no core is left for vCPU %u: this machine "
				          "has %u, "
				          "one of them for I/O; give fewer vcpus",
				          guest->name, i, count);
			cores[g][i] = next;
			taken[next++] = true;
		}
	}
}

/* --- start ---------------------------------------------------------------------------------------- */

static void backend_choose(void)
{
	const char *disable[MANIFEST_DISABLE_MAX];

	for (uint32_t i = 0; i < manifest.disable_count; i++)
		disable[i] = manifest.disable[i];
	hvm = hvm_choose(disable, manifest.disable_count, error.text, sizeof(error.text));
	if (!hvm)
		refuse();
}

/* Seconds at the boot's wall-clock reading, moved to now. */
static uint64_t wall_now_ns(void)
{
	uint64_t hz = plat_tsc_hz(), since = plat_tsc() - boot->wall_tsc;

	if (!boot->wall_unix_s)
		return 0;
	return boot->wall_unix_s * 1000000000u + since / hz * 1000000000u +
	       since % hz * 1000u / (hz / 1000000u);
}

/*
 * About what a VM exit costs a guest, the caches and TLB entries that it loses included: on a
 * processor, under a hypervisor that itself uses one, and under QEMU's emulator, where each exit
 * empties the emulated TLB.
 */
static uint64_t exit_cost_ns(void)
{
	const char *accelerator = report_accelerator();

	if (!strcmp(accelerator, "tcg"))
		return 200000;
	return strcmp(accelerator, "none") ? 20000 : 2000;
}

static void guests_create(void)
{
	static uint32_t cores[MANIFEST_GUEST_MAX][MANIFEST_CPU_MAX];

	cores_assign(cores);
	ioloop_init(&loop, manifest.io_core);
	ioloop_costs_set(&loop, exit_cost_ns(), manifest.poll_weight);
	for (unsigned g = 0; g < manifest.guest_count; g++) {
		vms[g] = guest_create(&manifest.guest[g], g, cores[g], file_find, wall_now_ns(),
		                      &loop, &error);
		if (!vms[g])
			refuse();
		vm_count = g + 1;
	}
}

static void finished(void)
{
	if (atomic_fetch_sub(&cores_busy, 1) != 1)
		return;
	ioloop_stop(&loop);
	atomic_store(&main_wake, 1);
	plat_wake(boot->boot_cpu);
}

static void vcpu_core_main(void *arg)
{
	guest_vcpu_main(arg);
	finished();
}

static bool console_interrupts;

/* Input that a guest had no room for must not wait for the next key. */
static void console_housekeep(void)
{
	console_input_poll();
	loop.housekeep_timed = !console_interrupts || console_input_waits();
}

static void io_core_prepare(void)
{
	static const enum core_idle idle[] = {
	        [MANIFEST_IDLE_AUTO] = CORE_IDLE_AUTO,
	        [MANIFEST_IDLE_MWAIT] = CORE_IDLE_MWAIT,
	        [MANIFEST_IDLE_HLT] = CORE_IDLE_HLT,
	        [MANIFEST_IDLE_POLL] = CORE_IDLE_POLL,
	};

	if (core_idle_set(manifest.io_core, idle[manifest.idle]))
		refuse_at(manifest.idle_pos,
		          "idle = \"mwait\", but this processor has no MONITOR and "
		          "MWAIT: use \"auto\" or \"hlt\"");
	loop.housekeep = console_housekeep;
	console_interrupts = core_console_irq_enable(manifest.io_core) == 0;
	loop.housekeep_timed = !console_interrupts;
	plat_log("I/O core %u waits by %s", manifest.io_core, core_idle_name(manifest.io_core));
}

static void io_core_main(void *arg)
{
	ioloop_run(arg);
	atomic_store(&io_core_done, 1);
	atomic_store(&main_wake, 1);
	plat_wake(boot->boot_cpu);
}

/* Starts every other core; returns the vCPU that the boot core itself runs, or NULL. */
static struct vcpu *cores_start(void)
{
	struct vcpu *own = NULL;

	for (unsigned g = 0; g < vm_count; g++)
		atomic_fetch_add(&cores_busy, vms[g]->vcpu_count);
	if (manifest.io_core != boot->boot_cpu && core_start(manifest.io_core, io_core_main, &loop))
		refuse_at(manifest.io_core_pos, "core %u did not start: choose another io_core",
		          manifest.io_core);
	for (unsigned g = 0; g < vm_count; g++) {
		struct vm *vm = vms[g];

		/* The boot vCPU last, so that its siblings wait for it and not the other way round. */
		for (unsigned i = vm->vcpu_count; i-- > 0;) {
			struct vcpu *v = vm->vcpu[i];

			if (v->core == boot->boot_cpu)
				own = v;
			else if (core_start(v->core, vcpu_core_main, v))
				refuse_at(vm->config->cpus_pos,
				          "core %u did not start: guest \"%s\" "
				          "needs another",
				          v->core, vm->name);
		}
	}
	return own;
}

static void run(void)
{
	struct vcpu *own;

	io_core_prepare();
	own = cores_start();
	if (manifest.io_core == boot->boot_cpu)
		io_core_main(&loop);
	else if (own)
		vcpu_core_main(own);
	/* Its counters are the report's, and it may still drain what a guest left in flight. */
	while (atomic_load(&cores_busy) || !atomic_load(&io_core_done)) {
		plat_wait(&main_wake, UINT64_MAX);
		atomic_store(&main_wake, 0);
	}
}

/* A guest that crashed is a failed run, for scripts' sake. */
static bool all_well(void)
{
	for (unsigned g = 0; g < vm_count; g++)
		if (atomic_load(&vms[g]->end) != VM_POWER_OFF &&
		    atomic_load(&vms[g]->end) != VM_RESET)
			return false;
	return true;
}

void quell_main(const struct boot_info *info)
{
	uint64_t start_tsc = plat_tsc();
	struct report report;

	boot = info;
	if (!info->file_count || manifest_parse((const char *)(uintptr_t)info->files[0].base_hpa,
	                                        info->files[0].len_bytes, &manifest, &error))
		refuse();
	cores_check();
	backend_choose();
	plat_log("%s on %s (%s), %u cores, %llu MiB free, TSC %llu kHz", hvm->name,
	         report_machine(), report_accelerator(), core_count(),
	         (unsigned long long)(core_mem_free_bytes() / MIB),
	         (unsigned long long)(plat_tsc_hz() / 1000));
	nvme_probe_all();
	nvme_irq_route(manifest.io_core);
	guests_create();
	run();
	report = (struct report){vms, vm_count, &loop, plat_tsc() - start_tsc};
	report_print(&report);
	nvme_shutdown_all();
	core_power_off(all_well());
}
