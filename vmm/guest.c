#include "vmm/guest.h"

#include "arch/x86/core.h"
#include "virtio/blk.h"
#include "virtio/virtio_pci.h"
#include "vmm/acpi.h"
#include "vmm/console.h"
#include "vmm/fmt.h"
#include "vmm/irq.h"
#include "vmm/linux.h"
#include "vmm/msr.h"
#include "vmm/vcpu.h"

#define DETACH_TIMEOUT_S 10u

static const char *const end_name[] = {
        [VM_ALIVE] = "alive", [VM_POWER_OFF] = "power-off",
        [VM_RESET] = "reset", [VM_TRIPLE_FAULT] = "triple-fault",
        [VM_ERROR] = "error",
};

const char *vm_end_name(enum vm_end end)
{
	return (unsigned)end < ARRAY_LEN(end_name) ? end_name[end] : "?";
}

/* Fills err and returns -EINVAL, so that callers can return it. */
static int fail(struct manifest_error *err, struct manifest_pos pos, const char *fmt, ...)
        PRINTF(3, 4);

static int fail(struct manifest_error *err, struct manifest_pos pos, const char *fmt, ...)
{
	va_list args;

	err->pos = pos;
	va_start(args, fmt);
	fmt_vsnprintf(err->text, sizeof(err->text), fmt, args);
	va_end(args);
	return -EINVAL;
}

/* --- memory -------------------------------------------------------------------------------------- */

/* Backs [gpa, gpa + len) with as few and as well aligned pieces of host memory as there are. */
static int ram_back(struct vm *vm, gpa_t gpa, uint64_t len_bytes)
{
	while (len_bytes) {
		uint64_t align = len_bytes >= GIB && IS_ALIGNED(gpa, GIB) ? GIB : 2 * MIB;
		uint64_t piece = len_bytes, largest;
		void *va;

		if (!core_mem_largest(align, &largest) || largest < piece) {
			align = 2 * MIB;
			if (!core_mem_largest(align, &largest) || largest < align)
				return -ENOMEM;
			piece = MIN(piece, ALIGN_DOWN(largest, align));
		}
		va = plat_mem_alloc(piece, align);
		if (!va)
			return -ENOMEM;
		if (gmem_add(&vm->mem, gpa, piece, plat_hpa(va), va))
			return -ENOMEM;
		if (hvm->map_ram(&vm->hvm, gpa, plat_hpa(va), piece))
			return -ENOMEM;
		gpa += piece;
		len_bytes -= piece;
	}
	return 0;
}

static int memory_create(struct vm *vm, struct manifest_error *err)
{
	const struct manifest_guest *config = vm->config;
	struct linux_memory_region layout[LINUX_MEMORY_REGION_MAX];
	unsigned count = linux_memory_layout(config->memory_bytes, layout);
	uint64_t free_bytes = core_mem_free_bytes();

	if (config->memory_bytes > free_bytes)
		return fail(err, config->memory_pos,
		            "guest \"%s\" wants %llu MiB but this machine has %llu MiB free: give "
		            "it less",
		            vm->name, (unsigned long long)(config->memory_bytes / MIB),
		            (unsigned long long)(free_bytes / MIB));
	for (unsigned i = 0; i < count; i++)
		if (ram_back(vm, layout[i].gpa, layout[i].len_bytes))
			return fail(
			        err, config->memory_pos,
			        "guest \"%s\": no %llu MiB of free memory in large enough pieces: "
			        "give it less",
			        vm->name, (unsigned long long)(config->memory_bytes / MIB));
	if (hvm->map_mmio(&vm->hvm, VPCI_MMIO_BASE_GPA, VPCI_MMIO_LEN))
		return fail(err, config->pos, "guest \"%s\": no memory for nested page tables",
		            vm->name);
	return 0;
}

/* --- vCPUs ---------------------------------------------------------------------------------------- */

static int vcpus_create(struct vm *vm, const uint32_t *cores, struct manifest_error *err)
{
	const struct manifest_guest *config = vm->config;
	int error;

	for (unsigned i = 0; i < config->vcpus; i++) {
		struct vcpu *v = plat_mem_alloc(sizeof(*v), CACHE_LINE_BYTES);

		if (!v)
			return fail(err, config->pos, "guest \"%s\": no memory for vCPU %u",
			            vm->name, i);
		vm->vcpu[i] = v;
		vm->vcpu_count = i + 1;
		v->vm = vm;
		v->index = v->apic_id = i;
		v->core = cores[i];
		v->run_state = i == 0 ? VCPU_RUNNING : VCPU_WAIT_SIPI;
		v->hv.vm = &vm->hvm;
		v->hv.index = i;
		v->hv.irq_offer = -1;
		v->hv.tsc_offset = vm->tsc_offset;
		v->hv.deadline_tsc = UINT64_MAX;
		v->hv.rflags = 2;
		vlapic_init(&v->lapic, v, i, i == 0, vm->tsc_offset);
		msr_init(v);
		error = hvm->vcpu_init(&v->hv);
		if (error == -ENOSPC)
			return fail(err, config->vcpus_pos.line ? config->vcpus_pos : config->pos,
			            "guest \"%s\": the processor has no address-space tag left for "
			            "vCPU %u: give fewer vcpus",
			            vm->name, i);
		if (error)
			return fail(err, config->pos, "guest \"%s\": no memory for vCPU %u",
			            vm->name, i);
	}
	return 0;
}

/* --- kernel ---------------------------------------------------------------------------------------- */

static int kernel_load(struct vm *vm, source_file_fn file, struct manifest_error *err)
{
	const struct manifest_guest *config = vm->config;
	struct linux_image image = {.cmdline = config->cmdline};
	char why[LINUX_ERR_MAX];

	if (!file(config->kernel, &image.kernel_hpa, &image.kernel_len_bytes))
		return fail(err, config->kernel_pos, "kernel \"%s\" was not loaded",
		            config->kernel);
	if (config->initrd[0] && !file(config->initrd, &image.initrd_hpa, &image.initrd_len_bytes))
		return fail(err, config->initrd_pos, "initrd \"%s\" was not loaded",
		            config->initrd);
	if (acpi_build(&vm->mem, vm->vcpu_count, &image.rsdp_gpa))
		return fail(err, config->pos,
		            "guest \"%s\": its memory has no room for ACPI tables", vm->name);
	if (linux_load(&image, &vm->mem, &vm->entry, why, sizeof(why)))
		return fail(err, config->kernel_pos, "guest \"%s\": %s", vm->name, why);
	return 0;
}

/* --- disks ------------------------------------------------------------------------------------------ */

static uint64_t poll_ns_of(const struct manifest_disk *config)
{
	switch (config->poll) {
	case MANIFEST_POLL_AUTO: return IOQ_POLL_AUTO;
	case MANIFEST_POLL_ALWAYS: return IOQ_POLL_ALWAYS;
	case MANIFEST_POLL_NS: break;
	}
	return config->poll_ns;
}

static int disk_create(struct vm *vm, unsigned index, source_file_fn file, struct ioloop *loop,
                       struct manifest_error *err)
{
	const struct manifest_disk *config = &vm->config->disk[index];
	struct bio_extent extent;
	int error;
	char why[MANIFEST_ERR_MAX], serial[21];
	struct vblk *blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);

	if (!blk)
		return fail(err, config->pos, "guest \"%s\": no memory for disk %u", vm->name,
		            index);
	if (source_open(config->source, file, !config->readonly, &extent, why, sizeof(why)))
		return fail(err, config->source_pos, "guest \"%s\": %s", vm->name, why);
	fmt_snprintf(serial, sizeof(serial), "quell-%u-%u", vm->index, index);
	error = vblk_create(blk, config, extent, &vm->mem, serial);
	if (error == -EINVAL)
		return fail(
		        err, config->source_pos,
		        "guest \"%s\": %s is empty or no whole number of its drive's blocks of %u "
		        "bytes: choose another source",
		        vm->name, config->source, extent.dev->block_bytes);
	if (error || virtio_pci_blk_add(vm, blk))
		return fail(err, config->pos, "guest \"%s\": no memory for disk %u", vm->name,
		            index);
	if (ioloop_dev_add(loop, extent.dev))
		return fail(err, config->source_pos,
		            "more than %u block devices in use: take fewer", IOLOOP_DEV_MAX);
	for (unsigned i = 0; i < blk->queue_count; i++) {
		struct ioq *q = &blk->queue[i].ioq;

		q->dev = extent.dev;
		q->poll_ns = poll_ns_of(config);
		if (ioloop_queue_add(loop, q))
			return fail(err, config->pos, "more than %u queues: lower num_queues",
			            IOLOOP_QUEUE_MAX);
	}
	plat_log("guest %s: disk %u is %s: sectors %llu to %llu of %s%s", vm->name, index,
	         config->source, (unsigned long long)extent.first_sector,
	         (unsigned long long)(extent.first_sector + extent.sector_count - 1),
	         extent.dev->name, config->readonly ? ", read-only" : "");
	return 0;
}

/* --- creation and end -------------------------------------------------------------------------------- */

struct vm *guest_create(const struct manifest_guest *config, unsigned index, const uint32_t *cores,
                        source_file_fn file, uint64_t wall_unix_ns, struct ioloop *loop,
                        struct manifest_error *err)
{
	static uint32_t next_tag = 1;
	struct vm *vm = plat_mem_alloc(sizeof(*vm), CACHE_LINE_BYTES);

	if (!vm) {
		fail(err, config->pos, "guest \"%s\": no memory", config->name);
		return NULL;
	}
	vm->name = config->name;
	vm->index = index;
	vm->config = config;
	vm->tsc_offset = -plat_tsc();
	/* Address-space tags: not zero, one for each vCPU; processors have as few as 16. */
	vm->hvm.tag = next_tag;
	next_tag += config->vcpus;
	if (hvm->vm_init(&vm->hvm)) {
		fail(err, config->pos, "guest \"%s\": no memory for nested page tables", vm->name);
		return NULL;
	}
	if (memory_create(vm, err))
		return NULL;
	pvclock_init(&vm->clock, plat_tsc_hz(), wall_unix_ns);
	vioapic_init(&vm->ioapic, vm);
	vuart_init(&vm->uart, vm);
	vpci_init(&vm->pci);
	if (vcpus_create(vm, cores, err) || kernel_load(vm, file, err))
		return NULL;
	for (unsigned i = 0; i < config->disk_count; i++)
		if (disk_create(vm, i, file, loop, err))
			return NULL;
	if (phases_create(vm, loop)) {
		fail(err, config->pos, "guest \"%s\": no memory for its accounting", vm->name);
		return NULL;
	}
	atomic_store(&vm->vcpus_running, vm->vcpu_count);
	if (config->serial)
		console_guest_add(vm);
	plat_log(
	        "guest %s: %llu MiB in %u piece%s, %llu nested page tables, %u vCPU%s on core %u%s",
	        vm->name, (unsigned long long)(config->memory_bytes / MIB), vm->mem.count,
	        vm->mem.count > 1 ? "s" : "", (unsigned long long)vm->hvm.nested_pages,
	        vm->vcpu_count, vm->vcpu_count > 1 ? "s" : "", cores[0],
	        vm->vcpu_count > 1 ? " and on" : "");
	return vm;
}

void vm_end(struct vm *vm, enum vm_end reason)
{
	unsigned alive = VM_ALIVE;

	if (!atomic_compare_exchange_strong(&vm->end, &alive, reason))
		return;
	for (unsigned i = 0; i < vm->vcpu_count; i++)
		irq_event(vm->vcpu[i], VCPU_EVENT_STOP);
}

/* The guest has stopped: its queues leave the I/O core, so that nothing more reaches its memory. */
static void disks_detach(struct vm *vm)
{
	uint64_t deadline_tsc = plat_tsc() + plat_tsc_hz() * DETACH_TIMEOUT_S;

	for (unsigned d = 0; d < vm->disk_count; d++)
		for (unsigned i = 0; i < vm->disk[d]->queue_count; i++)
			ioloop_detach(&vm->disk[d]->queue[i].ioq);
	for (unsigned d = 0; d < vm->disk_count; d++)
		for (unsigned i = 0; i < vm->disk[d]->queue_count; i++)
			while (ioq_is_attached(&vm->disk[d]->queue[i].ioq)) {
				if (plat_tsc() > deadline_tsc) {
					plat_log("guest %s: disk %u still has requests in flight "
					         "after "
					         "%u s",
					         vm->name, d, DETACH_TIMEOUT_S);
					return;
				}
				plat_relax();
			}
}

static void vcpu_start(struct vcpu *v)
{
	struct hvm_state state;

	if (v->index == 0) {
		memcpy(v->hv.gpr, v->vm->entry.gpr, sizeof(v->hv.gpr));
		v->hv.rip = v->vm->entry.rip;
		v->hv.rflags = v->vm->entry.rflags;
		hvm->state_set(&v->hv, &v->vm->entry.state);
	} else {
		vcpu_state_init(&state);
		hvm->state_set(&v->hv, &state);
	}
	vcpu_run(v);
}

void guest_vcpu_main(void *arg)
{
	struct vcpu *v = arg;
	struct vm *vm = v->vm;

	core_irq_disable();
	if (hvm->core_enable()) {
		vm_end(vm, VM_ERROR);
	} else {
		if (hvm->vcpu_bind(&v->hv)) {
			vm_end(vm, VM_ERROR);
		} else {
			vcpu_start(v);
			hvm->vcpu_unbind(&v->hv);
		}
		hvm->core_disable();
	}
	core_irq_enable();
	if (atomic_fetch_sub(&vm->vcpus_running, 1) == 1) {
		console_flush(vm);
		plat_log("guest %s: ended: %s", vm->name,
		         vm_end_name((enum vm_end)atomic_load(&vm->end)));
		disks_detach(vm);
	}
}
