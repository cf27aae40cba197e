#include "vmm/emul.h"

#include "vmm/gwalk.h"

#define VECTOR_UD 6
#define VECTOR_GP 13
#define VECTOR_PF 14

#define RFLAGS_AC BIT(18)

#define APIC_BASE_ENABLE BIT(11)
#define APIC_BASE_X2APIC BIT(10)
#define APIC_BASE_ADDR   0x000ffffffffff000ull

/* A guest can make these lines at will; the log is not its own to fill, nor the others' share. */
#define LOG_MAX 16u

static bool log_allowed(struct vm *vm)
{
	return atomic_load_explicit(&vm->emul_logs, memory_order_relaxed) < LOG_MAX &&
	       atomic_fetch_add_explicit(&vm->emul_logs, 1, memory_order_relaxed) < LOG_MAX;
}

/* --- exceptions --------------------------------------------------------------------------- */

static void inject_page_fault(struct vcpu *v, gva_t gva, uint32_t pf_error)
{
	struct hvm_state state;

	hvm->state_get(&v->hv, &state);
	state.cr2 = gva;
	hvm->state_set(&v->hv, &state);
	hvm->inject(&v->hv, VECTOR_PF, pf_error);
}

/* Translates, or injects what the guest has to take. */
static bool translate(struct emul *e, gva_t gva, uint64_t access, gpa_t *gpa)
{
	uint32_t pf_error;
	int err = gwalk_translate(&e->v->vm->mem, &e->state, gva, access, gpa, &pf_error);

	if (likely(!err))
		return true;
	if (err == -EFAULT)
		inject_page_fault(e->v, gva, pf_error);
	else
		hvm->inject(&e->v->hv, VECTOR_GP, 0);
	return false;
}

void emul_refuse(struct emul *e, const char *why)
{
	struct vcpu *v = e->v;
	uint8_t b[INSN_LEN_MAX] = {0};

	gwalk_fetch(&v->vm->mem, &e->state, v->hv.rip, b);
	if (log_allowed(v->vm))
		plat_log("guest %s: vcpu %u: %s at rip 0x%llx (%02x %02x %02x %02x %02x %02x %02x "
		         "%02x), address 0x%llx: #UD",
		         v->vm->name, v->index, why, (unsigned long long)v->hv.rip, b[0], b[1],
		         b[2], b[3], b[4], b[5], b[6], b[7], (unsigned long long)e->fault_gpa);
	hvm->inject(&v->hv, VECTOR_UD, -1);
}

/* --- the instruction ---------------------------------------------------------------------- */

bool emul_begin(struct emul *e, struct vcpu *v, gpa_t fault_gpa)
{
	uint8_t bytes[INSN_LEN_MAX];
	unsigned count;
	gpa_t gpa;
	int err;

	e->v = v;
	e->fault_gpa = fault_gpa;
	hvm->state_get_paging(&v->hv, &e->state);
	e->access = gwalk_access(&e->state) | (v->hv.rflags & RFLAGS_AC ? GWALK_AC : 0);
	count = gwalk_fetch(&v->vm->mem, &e->state, v->hv.rip, bytes);
	err = insn_decode(bytes, count, gwalk_insn_mode(&e->state), &e->insn);
	if (likely(!err))
		return true;
	/* Bytes are missing: the guest's own tables may say why. */
	if (err == -EAGAIN && !translate(e, gwalk_linear(&e->state, HVM_CS, v->hv.rip + count),
	                                 gwalk_access(&e->state) | GWALK_FETCH, &gpa))
		return false;
	emul_refuse(e, err == -EAGAIN ? "code outside memory"
	                              : "an instruction Quell does not carry out");
	return false;
}

/* --- devices ------------------------------------------------------------------------------ */

static uint64_t all_ones(unsigned width_bytes)
{
	return insn_trunc(UINT64_MAX, width_bytes);
}

/* Both APICs have 32-bit registers at multiples of 16 and nothing between them. */
static uint64_t reg32_part(uint32_t reg, unsigned offset)
{
	return (uint64_t)reg >> (8 * (offset & 3));
}

static bool is_lapic(const struct vlapic *apic, gpa_t gpa)
{
	return (gpa & ~(gpa_t)(PAGE_SIZE - 1)) == (apic->base_msr & APIC_BASE_ADDR) &&
	       (apic->base_msr & (APIC_BASE_ENABLE | APIC_BASE_X2APIC)) == APIC_BASE_ENABLE;
}

static uint64_t lapic_read(struct vlapic *apic, uint32_t offset, unsigned width_bytes)
{
	if ((offset & 0xf) >= 4)
		return 0;
	return insn_trunc(reg32_part(vlapic_mmio_read(apic, offset & ~3u), offset), width_bytes);
}

static uint64_t ioapic_read(struct vioapic *apic, uint32_t offset, unsigned width_bytes)
{
	return insn_trunc(reg32_part(vioapic_mmio_read(apic, offset & ~3u), offset), width_bytes);
}

/* Nobody there: all ones, said once in a while, since it may be a guest's or our own mistake. */
static void log_nobody(struct vcpu *v, gpa_t gpa, bool write)
{
	if (log_allowed(v->vm))
		plat_log("guest %s: vcpu %u: %s of 0x%llx, where there is no device (rip 0x%llx)",
		         v->vm->name, v->index, write ? "write" : "read", (unsigned long long)gpa,
		         (unsigned long long)v->hv.rip);
}

/* One naturally aligned access. */
static uint64_t device_read(struct vcpu *v, gpa_t gpa, unsigned width_bytes)
{
	struct vm *vm = v->vm;
	uint64_t value = all_ones(width_bytes), offset;
	struct vpci_dev *dev;
	unsigned bar;

	if (is_lapic(&v->lapic, gpa))
		return lapic_read(&v->lapic, gpa & (PAGE_SIZE - 1), width_bytes);
	spin_lock(&vm->device_lock);
	if ((gpa & ~(gpa_t)(PAGE_SIZE - 1)) == VIOAPIC_BASE_GPA) {
		value = ioapic_read(&vm->ioapic, gpa & (PAGE_SIZE - 1), width_bytes);
	} else {
		dev = vpci_find(&vm->pci, gpa, &bar, &offset);
		if (dev && dev->ops && dev->ops->bar_read)
			value = dev->ops->bar_read(dev, bar, offset, width_bytes);
		else
			log_nobody(v, gpa, false);
	}
	spin_unlock(&vm->device_lock);
	return insn_trunc(value, width_bytes);
}

static void device_write(struct vcpu *v, gpa_t gpa, unsigned width_bytes, uint64_t value)
{
	struct vm *vm = v->vm;
	uint32_t in_page = gpa & (PAGE_SIZE - 1);
	struct vpci_dev *dev;
	uint64_t offset;
	unsigned bar;

	if (is_lapic(&v->lapic, gpa)) {
		/* Narrower ones than a register are undefined (SDM 3A 10.4.1): they vanish. */
		if (width_bytes >= 4 && (in_page & 0xf) == 0)
			vlapic_mmio_write(&v->lapic, in_page, (uint32_t)value);
		return;
	}
	spin_lock(&vm->device_lock);
	if ((gpa & ~(gpa_t)(PAGE_SIZE - 1)) == VIOAPIC_BASE_GPA) {
		vioapic_mmio_write(&vm->ioapic, in_page, (uint32_t)value);
	} else {
		dev = vpci_find(&vm->pci, gpa, &bar, &offset);
		if (dev && dev->ops && dev->ops->bar_write)
			dev->ops->bar_write(dev, bar, offset, width_bytes, value);
		else
			log_nobody(v, gpa, true);
	}
	spin_unlock(&vm->device_lock);
}

/* The widest aligned access that starts at gpa and stays within len_bytes. */
static unsigned aligned_width(gpa_t gpa, unsigned len_bytes)
{
	unsigned width_bytes = 8;

	while (width_bytes > len_bytes || !IS_ALIGNED(gpa, width_bytes))
		width_bytes /= 2;
	return width_bytes;
}

/* --- linear memory ------------------------------------------------------------------------ */

/* At most len_bytes inside one page: RAM or devices. */
static void physical_access(struct vcpu *v, gpa_t gpa, uint8_t *bytes, unsigned len_bytes,
                            bool write)
{
	void *va;

	while (len_bytes) {
		unsigned part = (unsigned)gmem_find(&v->vm->mem, gpa, len_bytes, &va, NULL);
		uint64_t value = 0;

		if (part) {
			memcpy(write ? va : bytes, write ? bytes : va, part);
		} else {
			part = aligned_width(gpa, len_bytes);
			if (write) {
				memcpy(&value, bytes, part);
				device_write(v, gpa, part, value);
			} else {
				value = device_read(v, gpa, part);
				memcpy(bytes, &value, part);
			}
		}
		gpa += part;
		bytes += part;
		len_bytes -= part;
	}
}

/* Where an access of len_bytes goes: one piece, or two if it crosses a page. */
struct pieces {
	gpa_t gpa[2];
	unsigned len_bytes[2];
};

static bool pieces_find(struct emul *e, unsigned seg, uint64_t offset, unsigned len_bytes,
                        bool write, struct pieces *out)
{
	gva_t gva = gwalk_linear(&e->state, seg, offset);
	unsigned room = PAGE_SIZE - (unsigned)(gva % PAGE_SIZE);
	uint64_t access = e->access | (write ? GWALK_WRITE : GWALK_READ);

	out->len_bytes[0] = MIN(len_bytes, room);
	out->len_bytes[1] = len_bytes - out->len_bytes[0];
	/* The processor translated this one just now. */
	if (e->fault_gpa != EMUL_NO_GPA && !out->len_bytes[1] &&
	    gva % PAGE_SIZE == e->fault_gpa % PAGE_SIZE) {
		out->gpa[0] = e->fault_gpa;
		return true;
	}
	if (!translate(e, gva, access, &out->gpa[0]))
		return false;
	return !out->len_bytes[1] ||
	       translate(e, gwalk_linear(&e->state, seg, offset + room), access, &out->gpa[1]);
}

static bool emul_access(struct emul *e, unsigned seg, uint64_t offset, unsigned width_bytes,
                        uint64_t *value, bool write)
{
	uint8_t *bytes = (uint8_t *)value;
	struct pieces pieces;

	if (!pieces_find(e, seg, offset, width_bytes, write, &pieces))
		return false;
	physical_access(e->v, pieces.gpa[0], bytes, pieces.len_bytes[0], write);
	if (pieces.len_bytes[1])
		physical_access(e->v, pieces.gpa[1], bytes + pieces.len_bytes[0],
		                pieces.len_bytes[1], write);
	return true;
}

bool emul_read(struct emul *e, unsigned seg, uint64_t offset, unsigned width_bytes, uint64_t *value)
{
	*value = 0;
	return emul_access(e, seg, offset, width_bytes, value, false);
}

bool emul_write(struct emul *e, unsigned seg, uint64_t offset, unsigned width_bytes, uint64_t value)
{
	return emul_access(e, seg, offset, width_bytes, &value, true);
}

bool emul_write_check(struct emul *e, unsigned seg, uint64_t offset, unsigned width_bytes)
{
	struct pieces pieces;

	return pieces_find(e, seg, offset, width_bytes, true, &pieces);
}
