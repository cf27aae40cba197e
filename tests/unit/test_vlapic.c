#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"
#include "vmm/scale.h"

#define APIC (&fx_vcpu[0].lapic)

enum {
	ID = 0x20,
	VERSION = 0x30,
	TPR = 0x80,
	PPR = 0xa0,
	EOI = 0xb0,
	LDR = 0xd0,
	DFR = 0xe0,
	SVR = 0xf0,
	ISR = 0x100,
	TMR = 0x180,
	IRR = 0x200,
	ESR = 0x280,
	ICR = 0x300,
	ICR_HIGH = 0x310,
	LVT_TIMER = 0x320,
	LVT_LINT0 = 0x350,
	LVT_ERROR = 0x370,
	TMICT = 0x380,
	TMCCT = 0x390,
	TDCR = 0x3e0,
};

static uint32_t rd(uint32_t offset)
{
	return vlapic_mmio_read(APIC, offset);
}

static void wr(uint32_t offset, uint32_t value)
{
	vlapic_mmio_write(APIC, offset, value);
}

static bool vec_in(uint32_t base, unsigned vector)
{
	return rd(base + vector / 32 * 0x10) >> (vector & 31) & 1;
}

static void post(unsigned vector)
{
	uint64_t posted[4] = {0};

	posted[vector >> 6] = 1ull << (vector & 63);
	vlapic_merge(APIC, posted);
}

/* --- state ------------------------------------------------------------------------------------ */

static void reset_values(void)
{
	fx_init(2);
	CHECK_EQ(rd(ID), 0);
	CHECK_EQ(rd(VERSION), 0x50014);
	CHECK_EQ(rd(SVR), 0xff);
	CHECK_EQ(rd(DFR), 0xffffffff);
	CHECK_EQ(rd(LDR), 0);
	for (uint32_t lvt = LVT_TIMER; lvt <= LVT_ERROR; lvt += 0x10)
		CHECK_EQ(rd(lvt), 0x10000);
	CHECK_EQ(rd(TMICT), 0);
	CHECK_EQ(vlapic_mmio_read(&fx_vcpu[1].lapic, ID), 1u << 24);
	CHECK_EQ(APIC->base_msr, 0xfee00900);
	CHECK_EQ(fx_vcpu[1].lapic.base_msr, 0xfee00800);
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX);
	CHECK_EQ(vlapic_pending(APIC), -1);
}

static void init_reset_keeps_mode(void)
{
	uint64_t value;

	fx_init(2);
	fx_x2apic(1);
	vlapic_msr_write(&fx_vcpu[1].lapic, 0x808, 0x40);
	vlapic_pv_eoi_write(&fx_vcpu[1].lapic, 0x1000 | 1);
	vlapic_init_reset(&fx_vcpu[1].lapic);
	CHECK_EQ(fx_vcpu[1].lapic.base_msr, 0xfee00c00);
	CHECK_EQ(vlapic_msr_read(&fx_vcpu[1].lapic, 0x802, &value), 0);
	CHECK_EQ(value, 1);
	CHECK_EQ(vlapic_msr_read(&fx_vcpu[1].lapic, 0x80f, &value), 0);
	CHECK_EQ(value, 0xff);
	CHECK_EQ(vlapic_msr_read(&fx_vcpu[1].lapic, 0x808, &value), 0);
	CHECK_EQ(value, 0);
	CHECK(!fx_vcpu[1].lapic.pv_eoi_word);
	CHECK(!vlapic_is_listening(&fx_vcpu[1].lapic));
	CHECK(vlapic_is_enabled(&fx_vcpu[1].lapic));
}

/* SDM 3A figure 10-27: every pair of states. */
static void base_transitions(void)
{
	static const uint64_t mode[4] = {0, 0x800, 0xc00, 0x400};
	static const bool legal[3][4] = {
	        {true, true, false, false},
	        {true, true, true, false},
	        {true, false, true, false},
	};

	for (unsigned from = 0; from < 3; from++)
		for (unsigned to = 0; to < 4; to++) {
			int err;

			fx_init(1);
			if (from == 0)
				vlapic_msr_write(APIC, 0x1b, 0xfee00000);
			if (from == 2)
				vlapic_msr_write(APIC, 0x1b, 0xfee00c00);
			CHECK_EQ(APIC->base_msr & 0xc00, mode[from]);
			err = vlapic_msr_write(APIC, 0x1b, 0xfee00000 | mode[to]);
			CHECK_EQ(err, legal[from][to] ? 0 : -EINVAL);
			CHECK_EQ(APIC->base_msr & 0xc00, legal[from][to] ? mode[to] : mode[from]);
			CHECK(APIC->base_msr & 0x100);
		}
	fx_init(2);
	CHECK_EQ(vlapic_msr_write(APIC, 0x1b, 0xfee00801), -EINVAL);
	CHECK_EQ(vlapic_msr_write(APIC, 0x1b, 0xfee00a00), -EINVAL);
	CHECK_EQ(vlapic_msr_write(APIC, 0x1b, 0xfed00800), -EINVAL);
	CHECK_EQ(vlapic_msr_write(APIC, 0x1b, 0x80000000fee00800), -EINVAL);
	/* BSP is not for the taking. */
	CHECK_EQ(vlapic_msr_write(&fx_vcpu[1].lapic, 0x1b, 0xfee00900), 0);
	CHECK_EQ(fx_vcpu[1].lapic.base_msr, 0xfee00800);
}

static void off_and_on_again(void)
{
	fx_init(1);
	fx_listen(0);
	wr(TPR, 0x20);
	post(0x41);
	vlapic_msr_write(APIC, 0x1b, 0xfee00100);
	CHECK_EQ(rd(TPR), 0xffffffff);
	CHECK_EQ(vlapic_pending(APIC), -1);
	CHECK(!vlapic_matches(APIC, 0, false));
	CHECK(!vlapic_matches(APIC, UINT32_MAX, false));
	vlapic_msr_write(APIC, 0x1b, 0xfee00900);
	CHECK_EQ(rd(TPR), 0);
	CHECK_EQ(rd(SVR), 0xff);
	CHECK(!vec_in(IRR, 0x41));
}

static void x2apic_registers(void)
{
	static const struct {
		uint32_t index;
		bool readable;
		int64_t write_ok, write_bad; /* -1: none */
	} regs[] = {
	        {0x802, true, -1, 0},
	        {0x803, true, -1, 0},
	        {0x808, true, 0xff, 0x100},
	        {0x809, false, -1, 0},
	        {0x80a, true, -1, 0},
	        {0x80b, false, 0, 1},
	        {0x80c, false, -1, 0},
	        {0x80d, true, -1, 0},
	        {0x80e, false, -1, 0},
	        {0x80f, true, 0x1ff, 0x10000},
	        {0x810, true, -1, 0},
	        {0x817, true, -1, 0},
	        {0x818, true, -1, 0},
	        {0x820, true, -1, 0},
	        {0x827, true, -1, 0},
	        {0x828, true, 0, 1},
	        {0x829, false, -1, 0},
	        {0x82f, false, -1, 0},
	        {0x830, true, 0xff00000000040, 0x100040},
	        {0x831, false, -1, 0},
	        {0x832, true, 0x700ff, 0x80000},
	        {0x833, true, 0x107ff, 0x20000},
	        {0x834, true, 0x10400, 0x800},
	        {0x835, true, 0x1a7ff, 0x800},
	        {0x836, true, 0x1f7ff, 0x20000},
	        {0x837, true, 0x100ff, 0x100},
	        {0x838, true, 0xffffffff, 0x100000000},
	        {0x839, true, -1, 0},
	        {0x83a, false, -1, 0},
	        {0x83e, true, 0xb, 4},
	        {0x83f, false, 0x40, 0x100},
	        {0x840, false, -1, 0},
	        {0x8ff, false, -1, 0},
	};
	uint64_t value;

	fx_init(3);
	/* Only in x2APIC mode. */
	CHECK_EQ(vlapic_msr_read(APIC, 0x802, &value), -EINVAL);
	CHECK_EQ(vlapic_msr_write(APIC, 0x808, 0), -EINVAL);
	fx_x2apic(0);
	for (size_t i = 0; i < ARRAY_LEN(regs); i++) {
		value = 0x5555;
		CHECK_EQ(vlapic_msr_read(APIC, regs[i].index, &value),
		         regs[i].readable ? 0 : -EINVAL);
		if (!regs[i].readable)
			CHECK_EQ(value, 0x5555);
		if (regs[i].write_ok >= 0)
			CHECK_EQ(vlapic_msr_write(APIC, regs[i].index, (uint64_t)regs[i].write_ok),
			         0);
		CHECK_EQ(vlapic_msr_write(APIC, regs[i].index, (uint64_t)regs[i].write_bad),
		         -EINVAL);
		/* 63:32 are reserved but in ICR. */
		if (regs[i].index != 0x830)
			CHECK_EQ(vlapic_msr_write(APIC, regs[i].index, BIT(32)), -EINVAL);
	}
	CHECK_EQ(rd(ID), 0xffffffff);
	fx_vcpu[2].lapic.id = 0x25;
	fx_x2apic(2);
	CHECK_EQ(vlapic_msr_read(&fx_vcpu[2].lapic, 0x80d, &value), 0);
	CHECK_EQ(value, 0x20020);
}

/* --- priorities against a naive model --------------------------------------------------------- */

static struct {
	bool irr[256], isr[256], tmr[256];
	uint8_t tpr;
} model;

static int model_highest(const bool *set)
{
	for (int i = 255; i >= 0; i--)
		if (set[i])
			return i;
	return -1;
}

static uint8_t model_ppr(void)
{
	int isr = model_highest(model.isr);

	if (isr < 0 || (model.tpr >> 4) >= (isr >> 4))
		return model.tpr;
	return (uint8_t)(isr & 0xf0);
}

static void model_compare(void)
{
	int irr = model_highest(model.irr);

	for (unsigned i = 0; i < 256; i++) {
		CHECK_EQ(vec_in(IRR, i), model.irr[i]);
		CHECK_EQ(vec_in(ISR, i), model.isr[i]);
		CHECK_EQ(vec_in(TMR, i), model.tmr[i]);
	}
	CHECK_EQ(rd(PPR), model_ppr());
	CHECK_EQ(vlapic_pending(APIC), irr >= 0 && irr >> 4 > model_ppr() >> 4 ? irr : -1);
}

static void priorities_random(void)
{
	fx_init(1);
	fx_listen(0);
	memset(&model, 0, sizeof(model));
	/* Vectors 0x60 to 0x6f are a level pin's. */
	for (unsigned i = 0; i < 16; i++) {
		vioapic_mmio_write(&fx_vm.ioapic, 0, 0x10 + 2 * i);
		vioapic_mmio_write(&fx_vm.ioapic, 0x10, 0x8000 | (0x60 + i));
	}
	for (unsigned step = 0; step < 4000 && !test_case_failed; step++) {
		unsigned vector = (unsigned)(fx_random() % 240 + 16);
		int got;

		switch (fx_random() % 7) {
		case 0:
		case 1:
			post(vector);
			model.irr[vector] = true;
			model.tmr[vector] = vector >> 4 == 6;
			break;
		case 2:
			wr(ICR, 0x40000 | vector);
			model.irr[vector] = true;
			model.tmr[vector] = false;
			break;
		case 3:
			got = vlapic_pending(APIC);
			if (got >= 0) {
				vlapic_accept(APIC, (uint8_t)got);
				model.irr[got] = false;
				model.isr[got] = true;
			}
			break;
		case 4:
			wr(EOI, 0);
			got = model_highest(model.isr);
			if (got >= 0)
				model.isr[got] = false;
			break;
		case 5:
			model.tpr = (uint8_t)(fx_random() & (fx_random() & 1 ? 0xff : 0x3f));
			wr(TPR, model.tpr);
			CHECK_EQ(vlapic_cr8_read(APIC), model.tpr >> 4);
			break;
		case 6:
			model.tpr = (uint8_t)(fx_random() % 4 << 4);
			vlapic_cr8_write(APIC, model.tpr >> 4);
			CHECK_EQ(rd(TPR), model.tpr);
			break;
		}
		model_compare();
	}
}

static void disabled_by_software_drops(void)
{
	fx_init(1);
	post(0x50);
	CHECK(!vec_in(IRR, 0x50));
	wr(ICR, 0x40050);
	CHECK(!vec_in(IRR, 0x50));
	fx_listen(0);
	post(0x50);
	wr(LVT_TIMER, 0x31);
	CHECK_EQ(rd(LVT_TIMER), 0x31);
	wr(SVR, 0xff);
	/* Held, not lost; LVTs masked and stay so. */
	CHECK(vec_in(IRR, 0x50));
	CHECK_EQ(vlapic_pending(APIC), 0x50);
	CHECK_EQ(rd(LVT_TIMER), 0x10031);
	wr(LVT_TIMER, 0x31);
	CHECK_EQ(rd(LVT_TIMER), 0x10031);
}

static void errors(void)
{
	fx_init(1);
	fx_listen(0);
	wr(LVT_ERROR, 0xfe);
	wr(ICR, 0x4000f);
	CHECK_EQ(rd(ESR), 0);
	CHECK(vec_in(IRR, 0xfe));
	wr(ESR, 0);
	CHECK_EQ(rd(ESR), 0x20);
	wr(ESR, 0);
	CHECK_EQ(rd(ESR), 0);
	CHECK_EQ(rd(0x40), 0);
	wr(ESR, 0);
	CHECK_EQ(rd(ESR), 0x80);
	wr(0x3f0, 0x44);
	wr(ESR, 0);
	CHECK_EQ(rd(ESR), 0x80);
	wr(LVT_ERROR, 0x5); /* an illegal vector of its own must not recurse */
	wr(0x40, 0);
	wr(ESR, 0);
	CHECK_EQ(rd(ESR), 0xc0);
	/* Read-only registers are no error. */
	wr(VERSION, 1);
	wr(PPR, 1);
	wr(ESR, 0);
	CHECK_EQ(rd(ESR), 0);
	/* Odd offsets neither. */
	CHECK_EQ(rd(TPR + 4), 0);
	wr(TPR + 4, 0x30);
	CHECK_EQ(rd(TPR), 0);
}

/* --- ICR -------------------------------------------------------------------------------------- */

static unsigned posted_mask(uint8_t vector)
{
	unsigned mask = 0;

	for (unsigned i = 0; i < fx_vm.vcpu_count; i++) {
		if (fx_posted(i, vector))
			mask |= 1u << i;
		for (unsigned w = 0; w < 4; w++)
			atomic_store(&fx_vcpu[i].posted[w], 0);
		atomic_store(&fx_vcpu[i].posted_any, 0);
	}
	return mask;
}

static unsigned events_of(unsigned vcpu)
{
	return atomic_exchange(&fx_vcpu[vcpu].events, 0);
}

static void icr_shorthands_and_modes(void)
{
	fx_init(4);
	for (unsigned i = 0; i < 4; i++)
		fx_listen(i);
	wr(ICR_HIGH, 2u << 24);
	CHECK_EQ(rd(ICR_HIGH), 2u << 24);
	wr(ICR, 0x4041);
	CHECK_EQ(posted_mask(0x41), 4);
	CHECK_EQ(rd(ICR), 0x4041);
	wr(ICR, 0x80041);
	CHECK_EQ(posted_mask(0x41), 0xf);
	wr(ICR, 0xc0041);
	CHECK_EQ(posted_mask(0x41), 0xe);
	wr(ICR, 0x40041);
	CHECK_EQ(posted_mask(0x41), 0);
	CHECK(vec_in(IRR, 0x41));
	wr(ICR_HIGH, 0xffu << 24);
	wr(ICR, 0x41);
	CHECK_EQ(posted_mask(0x41), 0xf);
	wr(ICR_HIGH, 9u << 24);
	wr(ICR, 0x41);
	CHECK_EQ(posted_mask(0x41), 0);
	/* NMI, INIT, SIPI. */
	wr(ICR_HIGH, 1u << 24);
	wr(ICR, 0x400);
	CHECK_EQ(events_of(1), VCPU_EVENT_NMI);
	wr(ICR, 0xc500);
	CHECK_EQ(events_of(1), VCPU_EVENT_INIT);
	wr(ICR, 0x8500); /* de-assert */
	CHECK_EQ(events_of(1), 0);
	wr(ICR, 0x69a);
	CHECK_EQ(events_of(1), VCPU_EVENT_SIPI | 0x9a00);
	wr(ICR, 0xc4500);
	CHECK_EQ(events_of(0), 0);
	for (unsigned i = 1; i < 4; i++)
		CHECK_EQ(events_of(i), VCPU_EVENT_INIT);
	/* Lowest priority picks one. */
	wr(ICR_HIGH, 0xffu << 24);
	wr(ICR, 0x142);
	CHECK_EQ(posted_mask(0x42), 4);
	/* SMI, reserved, ExtINT: nowhere. */
	wr(ICR, 0x241);
	wr(ICR, 0x341);
	wr(ICR, 0x741);
	CHECK_EQ(posted_mask(0x41), 0);
	for (unsigned i = 0; i < 4; i++)
		CHECK_EQ(events_of(i), 0);
}

static void icr_x2apic(void)
{
	uint64_t value;

	fx_init(4);
	for (unsigned i = 0; i < 4; i++)
		fx_x2apic(i);
	CHECK_EQ(vlapic_msr_write(APIC, 0x830, 3ull << 32 | 0x41), 0);
	CHECK_EQ(posted_mask(0x41), 8);
	CHECK_EQ(vlapic_msr_write(APIC, 0x830, 0xffffffffull << 32 | 0x41), 0);
	CHECK_EQ(posted_mask(0x41), 0xf);
	/* 255 is a processor that is not there, not all of them. */
	CHECK_EQ(vlapic_msr_write(APIC, 0x830, 0xffull << 32 | 0x41), 0);
	CHECK_EQ(posted_mask(0x41), 0);
	CHECK_EQ(vlapic_msr_write(APIC, 0x830, 5ull << 32 | 0x841), 0);
	CHECK_EQ(posted_mask(0x41), 5);
	CHECK_EQ(vlapic_msr_write(APIC, 0x830, 0x10005ull << 32 | 0x841), 0);
	CHECK_EQ(posted_mask(0x41), 0);
	CHECK_EQ(vlapic_msr_read(APIC, 0x830, &value), 0);
	CHECK_EQ(value, 0x10005ull << 32 | 0x841);
	CHECK_EQ(vlapic_msr_write(APIC, 0x83f, 0x51), 0);
	CHECK_EQ(vlapic_msr_read(APIC, 0x822, &value), 0);
	CHECK_EQ(value, 1u << 0x11);
	CHECK_EQ(vlapic_msr_write(APIC, 0x83f, 0xf), 0);
	CHECK_EQ(vlapic_msr_write(APIC, 0x828, 0), 0);
	CHECK_EQ(vlapic_msr_read(APIC, 0x828, &value), 0);
	CHECK_EQ(value, 0x20);
}

/* Every destination against the SDM's words, in all modes. */
static void logical_destinations(void)
{
	fx_init(4);
	for (unsigned i = 0; i < 4; i++)
		vlapic_mmio_write(&fx_vcpu[i].lapic, LDR, 1u << (24 + i));
	for (uint32_t dest = 0; dest < 256; dest++)
		for (unsigned i = 0; i < 4; i++)
			CHECK_EQ(vlapic_matches(&fx_vcpu[i].lapic, dest, true), dest >> i & 1);
	for (unsigned i = 0; i < 4; i++) {
		vlapic_mmio_write(&fx_vcpu[i].lapic, DFR, 0x0fffffff);
		vlapic_mmio_write(&fx_vcpu[i].lapic, LDR, (i / 2) << 28 | 1u << (24 + i % 2));
	}
	CHECK_EQ(vlapic_mmio_read(&fx_vcpu[3].lapic, LDR), 0x12000000);
	for (uint32_t dest = 0; dest < 256; dest++)
		for (unsigned i = 0; i < 4; i++)
			CHECK_EQ(vlapic_matches(&fx_vcpu[i].lapic, dest, true),
			         dest == 0xff || (dest >> 4 == i / 2 && (dest >> i % 2 & 1)));
	for (unsigned i = 0; i < 4; i++)
		fx_x2apic(i);
	for (uint32_t dest = 0; dest < 0x20000; dest += 7)
		for (unsigned i = 0; i < 4; i++)
			CHECK_EQ(vlapic_matches(&fx_vcpu[i].lapic, dest, true),
			         dest < 0x10000 && (dest >> i & 1));
	for (uint32_t dest = 0; dest < 0x400; dest++)
		CHECK_EQ(vlapic_matches(APIC, dest, false), dest == 0 || dest == 0xff);
}

/* --- timer ------------------------------------------------------------------------------------ */

static void timer_oneshot(void)
{
	fx_init(1);
	fx_listen(0);
	wr(TDCR, 0xb); /* divide by 1: 1 ns, here 1 cycle */
	wr(LVT_TIMER, 0x40);
	wr(TMICT, 5000);
	CHECK_EQ(vlapic_deadline(APIC), fake_tsc + 5000);
	CHECK_EQ(rd(TMCCT), 5000);
	fake_tsc += 4999;
	CHECK_EQ(rd(TMCCT), 1);
	vlapic_timer_run(APIC, fake_tsc);
	CHECK(!vec_in(IRR, 0x40));
	fake_tsc += 1;
	vlapic_timer_run(APIC, fake_tsc);
	CHECK(vec_in(IRR, 0x40));
	CHECK_EQ(rd(TMCCT), 0);
	CHECK_EQ(rd(TMICT), 5000);
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX);
	/* Each divisor. */
	for (unsigned v = 0; v < 8; v++) {
		static const unsigned divisor[8] = {2, 4, 8, 16, 32, 64, 128, 1};

		wr(TDCR, (v & 4) << 1 | (v & 3));
		wr(TMICT, 1000);
		CHECK_EQ(vlapic_deadline(APIC), fake_tsc + 1000 * divisor[v]);
		fake_tsc += 500 * divisor[v];
		CHECK_EQ(rd(TMCCT), 500);
	}
	wr(TMICT, 0);
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX);
	/* The longest there is. */
	wr(TDCR, 0xa);
	wr(TMICT, 0xffffffff);
	CHECK_EQ(vlapic_deadline(APIC), fake_tsc + (0xffffffffull << 7));
	CHECK_EQ(rd(TMCCT), 0xffffffff);
}

static void timer_masked_and_unmasked(void)
{
	fx_init(1);
	fx_listen(0);
	wr(TDCR, 0xb);
	wr(LVT_TIMER, 0x10040);
	wr(TMICT, 1000);
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX);
	fake_tsc += 2000;
	/* It expired masked: unmasking does not bring it back. */
	wr(LVT_TIMER, 0x40);
	vlapic_timer_run(APIC, fake_tsc);
	CHECK(!vec_in(IRR, 0x40));
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX);
	/* Unmasked in time, it fires. */
	wr(LVT_TIMER, 0x10040);
	wr(TMICT, 1000);
	fake_tsc += 500;
	wr(LVT_TIMER, 0x40);
	CHECK_EQ(vlapic_deadline(APIC), fake_tsc + 500);
	fake_tsc += 500;
	vlapic_timer_run(APIC, fake_tsc);
	CHECK(vec_in(IRR, 0x40));
}

static void timer_illegal_vector(void)
{
	fx_init(1);
	fx_listen(0);
	wr(TDCR, 0xb);
	wr(LVT_TIMER, 0x4);
	wr(TMICT, 10);
	fake_tsc += 10;
	vlapic_timer_run(APIC, fake_tsc);
	CHECK_EQ(rd(IRR), 0);
	wr(ESR, 0);
	CHECK_EQ(rd(ESR), 0x40);
}

/* A million periods at a rate that divides badly: the last one is where exact arithmetic puts it.
 */
static void timer_periodic_does_not_drift(void)
{
	const uint64_t hz = 2399999987, ticks = 1000003, periods = 1000000;
	uint64_t start, expired = 0, ideal;

	fx_init(1);
	fx_listen(0);
	APIC->ns_to_tsc = scale_ratio(hz, VLAPIC_TIMER_HZ);
	APIC->tsc_to_ns = scale_ratio(VLAPIC_TIMER_HZ, hz);
	wr(TDCR, 0xb);
	wr(LVT_TIMER, 0x20040);
	start = fake_tsc;
	wr(TMICT, (uint32_t)ticks);
	for (uint64_t i = 0; i < periods; i++) {
		/* Served late by up to half a period. */
		fake_tsc = vlapic_deadline(APIC) + fx_random() % (hz / 3000);
		vlapic_timer_run(APIC, fake_tsc);
		expired += vlapic_pending(APIC) == 0x40;
		vlapic_accept(APIC, 0x40);
		wr(EOI, 0);
	}
	CHECK_EQ(expired, periods);
	ideal = start + (uint64_t)((unsigned __int128)(periods + 1) * ticks * hz / VLAPIC_TIMER_HZ);
	CHECK(vlapic_deadline(APIC) + 2 >= ideal && vlapic_deadline(APIC) <= ideal + 2);
}

static void timer_periodic_catches_up(void)
{
	uint64_t start;

	fx_init(1);
	fx_listen(0);
	wr(TDCR, 0xb);
	wr(LVT_TIMER, 0x20040);
	start = fake_tsc;
	wr(TMICT, 400000);
	fake_tsc += 400000 * 1000 + 5;
	vlapic_timer_run(APIC, fake_tsc);
	CHECK_EQ(vlapic_pending(APIC), 0x40);
	CHECK_EQ(vlapic_deadline(APIC), start + 400000 * 1001);
	CHECK_EQ(rd(TMCCT), 399995);
	/* Exactly on the edge. */
	fake_tsc = start + 400000 * 1003;
	vlapic_timer_run(APIC, fake_tsc);
	CHECK_EQ(vlapic_deadline(APIC), start + 400000 * 1004);
	/* A guest cannot drown its core. */
	wr(TMICT, 1);
	for (unsigned i = 0, fired = 0; i < 100; i++) {
		fake_tsc += VLAPIC_PERIOD_MIN_NS / 10;
		wr(EOI, 0);
		vlapic_timer_run(APIC, fake_tsc);
		if (vlapic_pending(APIC) == 0x40) {
			vlapic_accept(APIC, 0x40);
			fired++;
		}
		if (i == 99)
			CHECK(fired >= 10 && fired <= 12);
	}
	/* To one-shot in mid-count: once more, then silence. */
	wr(TMICT, 400000);
	wr(LVT_TIMER, 0x40);
	fake_tsc += 400000;
	vlapic_timer_run(APIC, fake_tsc);
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX);
}

static void timer_divide_in_mid_count(void)
{
	fx_init(1);
	fx_listen(0);
	wr(TDCR, 0xb);
	wr(LVT_TIMER, 0x40);
	wr(TMICT, 1000);
	fake_tsc += 400;
	wr(TDCR, 0x0);
	CHECK_EQ(rd(TDCR), 0);
	CHECK_EQ(rd(TMCCT), 600);
	CHECK_EQ(vlapic_deadline(APIC), fake_tsc + 1200);
}

static void timer_tsc_deadline(void)
{
	uint64_t value;

	fx_init(1);
	fx_listen(0);
	APIC->tsc_offset = -1000000000ull; /* the guest began just now */
	/* Not in this mode: ignored. */
	CHECK_EQ(vlapic_msr_write(APIC, 0x6e0, 500), 0);
	CHECK_EQ(vlapic_msr_read(APIC, 0x6e0, &value), 0);
	CHECK_EQ(value, 0);
	wr(LVT_TIMER, 0x40040);
	vlapic_msr_write(APIC, 0x6e0, 500);
	CHECK_EQ(vlapic_deadline(APIC), 1000000500);
	vlapic_msr_read(APIC, 0x6e0, &value);
	CHECK_EQ(value, 500);
	CHECK_EQ(rd(TMCCT), 0);
	wr(TMICT, 7); /* ignored in this mode */
	CHECK_EQ(rd(TMICT), 0);
	CHECK_EQ(vlapic_deadline(APIC), 1000000500);
	fake_tsc += 500;
	vlapic_timer_run(APIC, fake_tsc);
	CHECK_EQ(vlapic_pending(APIC), 0x40);
	vlapic_msr_read(APIC, 0x6e0, &value);
	CHECK_EQ(value, 0);
	vlapic_accept(APIC, 0x40);
	wr(EOI, 0);
	/* Past and present: at once, without another call. */
	vlapic_msr_write(APIC, 0x6e0, 500);
	CHECK_EQ(vlapic_pending(APIC), 0x40);
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX);
	/* 0 disarms, as does leaving the mode. */
	vlapic_msr_write(APIC, 0x6e0, 10000);
	vlapic_msr_write(APIC, 0x6e0, 0);
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX);
	vlapic_msr_write(APIC, 0x6e0, 10000);
	wr(LVT_TIMER, 0x40);
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX);
	/* A deadline beyond all time is not "none", and does not wrap round to now. */
	wr(LVT_TIMER, 0x40040);
	vlapic_accept(APIC, 0x40);
	wr(EOI, 0);
	vlapic_msr_write(APIC, 0x6e0, UINT64_MAX);
	CHECK_EQ(vlapic_deadline(APIC), UINT64_MAX - 1);
	CHECK_EQ(vlapic_pending(APIC), -1);
	/* Masked past deadline: gone. */
	wr(LVT_TIMER, 0x50040);
	vlapic_msr_write(APIC, 0x6e0, 1);
	wr(LVT_TIMER, 0x40040);
	CHECK_EQ(vlapic_pending(APIC), -1);
}

/* --- PV EOI ----------------------------------------------------------------------------------- */

#define WORD (*(uint32_t *)(void *)(fx_ram + 0x2000))

static void pv_eoi_setup(void)
{
	fx_init(1);
	fx_listen(0);
	CHECK_EQ(vlapic_pv_eoi_write(APIC, 0x2001), 0);
}

static void pv_eoi_skips(void)
{
	pv_eoi_setup();
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 0); /* nothing in service */
	/* Predicted: the one vector on offer. */
	WORD = 0x100;
	post(0x41);
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 0x101);
	vlapic_accept(APIC, 0x41);
	WORD &= ~1u; /* the guest's EOI */
	vlapic_pv_eoi_sync_exit(APIC);
	CHECK(!vec_in(ISR, 0x41));
	CHECK_EQ(WORD, 0x100);
	/* In service and not yet ended. */
	post(0x41);
	vlapic_accept(APIC, 0x41);
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 0x101);
	vlapic_pv_eoi_sync_exit(APIC);
	CHECK_EQ(WORD, 0x100);
	CHECK(vec_in(ISR, 0x41));
	/* A second exit does nothing. */
	vlapic_pv_eoi_sync_exit(APIC);
	CHECK(vec_in(ISR, 0x41));
	/* The guest may always write EOI instead. */
	vlapic_pv_eoi_sync_entry(APIC);
	vlapic_pv_eoi_sync_exit(APIC);
	wr(EOI, 0);
	CHECK(!vec_in(ISR, 0x41));
	CHECK_EQ(WORD, 0x100);
}

static void pv_eoi_refuses(void)
{
	pv_eoi_setup();
	post(0x41);
	vlapic_accept(APIC, 0x41);
	/* Another waits for the EOI. */
	post(0x31);
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 0);
	vlapic_accept(APIC, 0x31);
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 0); /* two in service */
	wr(EOI, 0);
	wr(EOI, 0);
	/* The same vector once more. */
	post(0x41);
	vlapic_accept(APIC, 0x41);
	post(0x41);
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 0);
	vlapic_accept(APIC, 0x41);
	wr(EOI, 0);
	/* Level. */
	vioapic_mmio_write(&fx_vm.ioapic, 0, 0x14);
	vioapic_mmio_write(&fx_vm.ioapic, 0x10, 0x8041);
	post(0x41);
	vlapic_accept(APIC, 0x41);
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 0);
	wr(EOI, 0);
	/* Made level after the vector came. */
	pv_eoi_setup();
	post(0x41);
	vlapic_accept(APIC, 0x41);
	vioapic_mmio_write(&fx_vm.ioapic, 0, 0x14);
	vioapic_mmio_write(&fx_vm.ioapic, 0x10, 0x8041);
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 0);
	/* Not taken after all, and the guest cleared the flag for no reason: no harm. */
	pv_eoi_setup();
	post(0x41);
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 1);
	WORD = 0;
	vlapic_pv_eoi_sync_exit(APIC);
	CHECK(vec_in(IRR, 0x41));
	/* Off again. */
	CHECK_EQ(vlapic_pv_eoi_write(APIC, 0), 0);
	vlapic_pv_eoi_sync_entry(APIC);
	CHECK_EQ(WORD, 0);
	CHECK_EQ(vlapic_pv_eoi_write(APIC, 0x2003), -EINVAL);
	CHECK_EQ(vlapic_pv_eoi_write(APIC, FX_RAM_BYTES | 1), -EINVAL);
	CHECK_EQ(vlapic_pv_eoi_write(APIC, (FX_RAM_BYTES - 4) | 1), 0);
}

/* --- EOI to the I/O APIC ---------------------------------------------------------------------- */

static void level_eoi_is_broadcast(void)
{
	fx_init(1);
	fx_listen(0);
	vioapic_mmio_write(&fx_vm.ioapic, 0, 0x14);
	vioapic_mmio_write(&fx_vm.ioapic, 0x10, 0x8041);
	vioapic_pin_set(&fx_vm.ioapic, 2, true);
	CHECK(fx_posted(0, 0x41));
	fx_collect(0);
	CHECK(vec_in(TMR, 0x41));
	vlapic_accept(APIC, 0x41);
	CHECK(!fx_posted(0, 0x41));
	wr(EOI, 0);
	CHECK(fx_posted(0, 0x41)); /* still high: again */
	CHECK_EQ(atomic_load(&fx_vm.device_lock.held), 0);
	fx_collect(0);
	vlapic_accept(APIC, 0x41);
	vioapic_pin_set(&fx_vm.ioapic, 2, false);
	wr(EOI, 0);
	CHECK(!fx_posted(0, 0x41));
}

TESTS(T(reset_values), T(init_reset_keeps_mode), T(base_transitions), T(off_and_on_again),
      T(x2apic_registers), T(priorities_random), T(disabled_by_software_drops), T(errors),
      T(icr_shorthands_and_modes), T(icr_x2apic), T(logical_destinations), T(timer_oneshot),
      T(timer_masked_and_unmasked), T(timer_illegal_vector), T(timer_periodic_does_not_drift),
      T(timer_periodic_catches_up), T(timer_divide_in_mid_count), T(timer_tsc_deadline),
      T(pv_eoi_skips), T(pv_eoi_refuses), T(level_eoi_is_broadcast))
