#include "vmm/gwalk.h"

#include "arch/platform.h"

#define CR0_PE BIT(0)
#define CR0_WP BIT(16)
#define CR0_PG BIT(31)

#define CR4_PSE  BIT(4)
#define CR4_PAE  BIT(5)
#define CR4_LA57 BIT(12)
#define CR4_SMEP BIT(20)
#define CR4_SMAP BIT(21)

#define EFER_LMA BIT(10)
#define EFER_NXE BIT(11)

#define SEG_LONG      BIT(13)
#define SEG_BIG       BIT(14)
#define SEG_DPL(attr) (((attr) >> 5) & 3)

#define PTE_P  BIT(0)
#define PTE_W  BIT(1)
#define PTE_U  BIT(2)
#define PTE_PS BIT(7)
#define PTE_NX BIT(63)

#define PTE_ADDR 0x000ffffffffff000ull

#define PF_P     BIT(0)
#define PF_RSVD  BIT(3)
#define PF_FETCH BIT(4)

/* The shape of the tables in one paging mode. */
struct shape {
	unsigned levels, index_bits, entry_bytes;
	unsigned big_levels; /* levels up to which an entry may be a big page */
	gpa_t root_gpa;
	bool pae_root; /* the root's entries have no rights */
};

static bool is_long(const struct hvm_state *state)
{
	return state->efer & EFER_LMA;
}

static struct shape shape_of(const struct hvm_state *state)
{
	if (is_long(state)) {
		unsigned levels = state->cr4 & CR4_LA57 ? 5 : 4;

		return (struct shape){levels, 9, 8, 3, state->cr3 & PTE_ADDR, false};
	}
	if (state->cr4 & CR4_PAE)
		return (struct shape){3, 9, 8, 2, state->cr3 & 0xffffffe0, true};
	return (struct shape){2,    10, 4, state->cr4 & CR4_PSE ? 2 : 1, state->cr3 & 0xfffff000,
	                      false};
}

/* Address of a page that an entry at that level maps. */
static gpa_t leaf_gpa(const struct shape *shape, uint64_t entry, unsigned shift, gva_t gva)
{
	gpa_t base;

	if (shape->entry_bytes == 4) {
		base = entry & 0xfffff000;
		/* PSE-36: a 4 MiB page's bits 39:32 stand in bits 20:13 (SDM 3A table 4-4). */
		if (shift > PAGE_SHIFT)
			base = (entry & 0xffc00000) | (entry & 0x1fe000) << 19;
	} else {
		base = entry & PTE_ADDR;
	}
	return ALIGN_DOWN(base, BIT(shift)) | (gva & (BIT(shift) - 1));
}

/* SDM 3A 4.6.1: does the page's combined entry allow the access? */
static bool allowed(const struct hvm_state *state, uint64_t rights, uint64_t access)
{
	bool user_page = rights & PTE_U;

	if ((access & GWALK_FETCH) && (rights & PTE_NX))
		return false;
	if (access & GWALK_USER)
		return user_page && (!(access & GWALK_WRITE) || (rights & PTE_W));
	if ((access & GWALK_WRITE) && !(rights & PTE_W) && (state->cr0 & CR0_WP))
		return false;
	if (!user_page)
		return true;
	if (access & GWALK_FETCH)
		return !(state->cr4 & CR4_SMEP);
	return !(state->cr4 & CR4_SMAP) || (access & GWALK_AC);
}

static int page_fault(const struct hvm_state *state, uint64_t access, uint32_t cause,
                      uint32_t *pf_error)
{
	bool has_nx = (state->efer & EFER_NXE) && (state->cr4 & CR4_PAE);

	*pf_error = (uint32_t)(access & (GWALK_WRITE | GWALK_USER)) | cause;
	if ((access & GWALK_FETCH) && (has_nx || (state->cr4 & CR4_SMEP)))
		*pf_error |= PF_FETCH;
	return -EFAULT;
}

int gwalk_translate(const struct gmem *mem, const struct hvm_state *state, gva_t gva,
                    uint64_t access, gpa_t *gpa, uint32_t *pf_error)
{
	struct shape shape;
	uint64_t rights = PTE_W | PTE_U;
	gpa_t table_gpa;

	if (!is_long(state))
		gva = (uint32_t)gva;
	if (!(state->cr0 & CR0_PG)) {
		*gpa = gva;
		return 0;
	}
	shape = shape_of(state);
	if (is_long(state)) {
		unsigned unused = 64 - (PAGE_SHIFT + shape.levels * shape.index_bits);

		if ((gva_t)((int64_t)(gva << unused) >> unused) != gva)
			return -ERANGE;
	}
	table_gpa = shape.root_gpa;
	for (unsigned level = shape.levels;; level--) {
		unsigned shift = PAGE_SHIFT + (level - 1) * shape.index_bits;
		uint64_t index = (gva >> shift) & (BIT(shape.index_bits) - 1);
		uint64_t entry = 0;
		bool big;

		/* An empty bus reads as all ones: address bits no processor has. */
		if (gmem_read(mem, table_gpa + index * shape.entry_bytes, &entry,
		              shape.entry_bytes))
			return page_fault(state, access, PF_P | PF_RSVD, pf_error);
		big = level > 1 && (entry & PTE_PS);
		if (!(entry & PTE_P))
			return page_fault(state, access, 0, pf_error);
		if ((entry & PTE_NX) && !(state->efer & EFER_NXE))
			return page_fault(state, access, PF_P | PF_RSVD, pf_error);
		if (big && level > shape.big_levels) {
			if (shape.entry_bytes == 8)
				return page_fault(state, access, PF_P | PF_RSVD, pf_error);
			big = false; /* without CR4.PSE the bit is ignored */
		}
		if (!(shape.pae_root && level == shape.levels))
			rights = (rights & entry & (PTE_W | PTE_U)) | ((rights | entry) & PTE_NX);
		if (level > 1 && !big) {
			table_gpa = entry & (shape.entry_bytes == 8 ? PTE_ADDR : 0xfffff000);
			continue;
		}
		if (!allowed(state, rights, access))
			return page_fault(state, access, PF_P, pf_error);
		*gpa = leaf_gpa(&shape, entry, shift, gva);
		return 0;
	}
}

enum insn_mode gwalk_insn_mode(const struct hvm_state *state)
{
	uint32_t attr = state->seg[HVM_CS].attr;

	if (is_long(state) && (attr & SEG_LONG))
		return INSN_MODE_64;
	return attr & SEG_BIG ? INSN_MODE_32 : INSN_MODE_16;
}

gva_t gwalk_linear(const struct hvm_state *state, unsigned seg, uint64_t offset)
{
	if (gwalk_insn_mode(state) != INSN_MODE_64)
		return (uint32_t)(state->seg[seg].base + offset);
	return seg == HVM_FS || seg == HVM_GS ? state->seg[seg].base + offset : offset;
}

uint64_t gwalk_access(const struct hvm_state *state)
{
	return (state->cr0 & CR0_PE) && SEG_DPL(state->seg[HVM_SS].attr) == 3 ? GWALK_USER : 0;
}

unsigned gwalk_fetch(const struct gmem *mem, const struct hvm_state *state, uint64_t rip,
                     uint8_t *bytes)
{
	uint64_t access = gwalk_access(state) | GWALK_FETCH;
	unsigned count = 0;

	while (count < INSN_LEN_MAX) {
		gva_t gva = gwalk_linear(state, HVM_CS, rip + count);
		unsigned part = MIN(INSN_LEN_MAX - count, PAGE_SIZE - (unsigned)(gva % PAGE_SIZE));
		uint32_t pf_error;
		gpa_t gpa;

		if (gwalk_translate(mem, state, gva, access, &gpa, &pf_error))
			break;
		/* Code may end where memory ends. */
		part = (unsigned)gmem_find(mem, gpa, part, NULL, NULL);
		if (!part || gmem_read(mem, gpa, bytes + count, part))
			break;
		count += part;
	}
	return count;
}
