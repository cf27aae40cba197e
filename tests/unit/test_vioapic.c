#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"

#define IO (&fx_vm.ioapic)

#define MASKED     0x10000u
#define LEVEL      0x8000u
#define REMOTE_IRR 0x4000u

static uint32_t rd(uint32_t reg)
{
	vioapic_mmio_write(IO, 0, reg);
	return vioapic_mmio_read(IO, 0x10);
}

static void wr(uint32_t reg, uint32_t value)
{
	vioapic_mmio_write(IO, 0, reg);
	vioapic_mmio_write(IO, 0x10, value);
}

static void rte(unsigned pin, uint32_t low)
{
	wr(0x10 + 2 * pin, low);
}

/* Was vector sent since the last question? */
static bool sent(uint8_t vector)
{
	bool was = fx_posted(0, vector);

	for (unsigned w = 0; w < 4; w++)
		atomic_store(&fx_vcpu[0].posted[w], 0);
	atomic_store(&fx_vcpu[0].posted_any, 0);
	return was;
}

static void setup(void)
{
	fx_init(2);
	fx_listen(0);
	fx_listen(1);
}

static void registers(void)
{
	setup();
	CHECK_EQ(rd(1), 0x00170020);
	CHECK_EQ(rd(0), 0);
	wr(0, 0xffffffff);
	CHECK_EQ(rd(0), 0x0f000000);
	CHECK_EQ(vioapic_mmio_read(IO, 0), 0);
	for (unsigned pin = 0; pin < 24; pin++) {
		CHECK_EQ(rd(0x10 + 2 * pin), MASKED);
		wr(0x11 + 2 * pin, 0xffffffff);
		CHECK_EQ(rd(0x11 + 2 * pin), 0xff000000);
	}
	rte(0, 0xffffffff);
	CHECK_EQ(rd(0x10), 0x1afff);
	rte(0, MASKED);
	/* Registers that are not there. */
	CHECK_EQ(rd(0x40), 0xffffffff);
	CHECK_EQ(rd(0xff), 0xffffffff);
	CHECK_EQ(rd(3), 0xffffffff);
	wr(0x40, 0);
	wr(0xff, 0);
	wr(5, 0);
	vioapic_mmio_write(IO, 0, 0xffffff10);
	CHECK_EQ(vioapic_mmio_read(IO, 0), 0x10);
	CHECK_EQ(vioapic_mmio_read(IO, 0x20), 0);
	vioapic_pin_set(IO, 24, true);
	vioapic_pin_set(IO, UINT32_MAX, true);
}

static void edge(void)
{
	setup();
	rte(4, 0x34);
	vioapic_pin_set(IO, 4, true);
	CHECK(sent(0x34));
	vioapic_pin_set(IO, 4, true);
	CHECK(!sent(0x34)); /* no rise */
	vioapic_pin_set(IO, 4, false);
	CHECK(!sent(0x34));
	vioapic_pin_set(IO, 4, true);
	CHECK(sent(0x34));
	CHECK(!vioapic_wants_eoi(IO, 0x34));
	/* An edge while masked is over. */
	vioapic_pin_set(IO, 4, false);
	rte(4, MASKED | 0x34);
	vioapic_pin_set(IO, 4, true);
	rte(4, 0x34);
	CHECK(!sent(0x34));
	/* To the other processor. */
	wr(0x11 + 8, 1u << 24);
	vioapic_pin_set(IO, 4, false);
	vioapic_pin_set(IO, 4, true);
	CHECK(!sent(0x34));
	CHECK(fx_posted(1, 0x34));
	/* NMI mode. */
	rte(4, 0x434);
	vioapic_pin_set(IO, 4, false);
	vioapic_pin_set(IO, 4, true);
	CHECK_EQ(atomic_load(&fx_vcpu[1].events), VCPU_EVENT_NMI);
}

static void level_in_service(void)
{
	setup();
	rte(9, LEVEL | 0x59);
	CHECK(vioapic_wants_eoi(IO, 0x59));
	vioapic_pin_set(IO, 9, true);
	CHECK(sent(0x59));
	CHECK_EQ(rd(0x22), LEVEL | REMOTE_IRR | 0x59);
	vioapic_pin_set(IO, 9, true);
	vioapic_pin_set(IO, 9, false);
	vioapic_pin_set(IO, 9, true);
	CHECK(!sent(0x59)); /* in service */
	vioapic_eoi(IO, 0x58);
	CHECK_EQ(rd(0x22) & REMOTE_IRR, REMOTE_IRR);
	vioapic_eoi(IO, 0x59);
	CHECK(sent(0x59)); /* still high */
	vioapic_pin_set(IO, 9, false);
	vioapic_eoi(IO, 0x59);
	CHECK(!sent(0x59));
	CHECK_EQ(rd(0x22), LEVEL | 0x59);
	/* The EOI register does the same. */
	vioapic_pin_set(IO, 9, true);
	CHECK(sent(0x59));
	vioapic_mmio_write(IO, 0x40, 0x59);
	CHECK(sent(0x59));
	/* The guest cannot write remote IRR, either way. */
	rte(9, LEVEL | 0x59);
	CHECK_EQ(rd(0x22) & REMOTE_IRR, REMOTE_IRR);
}

static void level_masked_while_pending(void)
{
	setup();
	rte(9, LEVEL | MASKED | 0x59);
	CHECK(!vioapic_wants_eoi(IO, 0x59));
	vioapic_pin_set(IO, 9, true);
	CHECK(!sent(0x59));
	rte(9, LEVEL | 0x59);
	CHECK(sent(0x59));
	/* Masked in service: its EOI still counts, and unmasking brings it back. */
	rte(9, LEVEL | MASKED | 0x59);
	CHECK(vioapic_wants_eoi(IO, 0x59));
	vioapic_eoi(IO, 0x59);
	CHECK(!sent(0x59));
	CHECK(!vioapic_wants_eoi(IO, 0x59));
	rte(9, LEVEL | 0x59);
	CHECK(sent(0x59));
	/* Over before it was unmasked. */
	rte(9, LEVEL | MASKED | 0x59);
	vioapic_eoi(IO, 0x59);
	vioapic_pin_set(IO, 9, false);
	rte(9, LEVEL | 0x59);
	CHECK(!sent(0x59));
	/* Edge and back, as Linux ends service without an EOI register. */
	vioapic_pin_set(IO, 9, true);
	CHECK(sent(0x59));
	rte(9, MASKED | 0x59);
	rte(9, LEVEL | 0x59);
	CHECK(sent(0x59));
}

static void nobody_listens(void)
{
	setup();
	wr(0x11 + 18, 7u << 24);
	rte(9, LEVEL | 0x59);
	vioapic_pin_set(IO, 9, true);
	CHECK_EQ(rd(0x22) & REMOTE_IRR, 0); /* not in service: it is not lost */
	wr(0x11 + 18, 0);
	CHECK(sent(0x59));
}

/* --- random, against a naive model ------------------------------------------------------------ */

static struct {
	uint32_t low;
	bool high, irr;
} model[24];

static bool expected[256];

static void model_level(unsigned pin)
{
	if ((model[pin].low & LEVEL) && !(model[pin].low & MASKED) && model[pin].high &&
	    !model[pin].irr) {
		model[pin].irr = true;
		expected[model[pin].low & 0xff] = true;
	}
}

static void random_operations(void)
{
	setup();
	for (unsigned i = 0; i < 24; i++) {
		model[i].low = MASKED;
		model[i].high = model[i].irr = false;
	}
	for (unsigned step = 0; step < 20000 && !test_case_failed; step++) {
		unsigned pin = (unsigned)(fx_random() % 24);
		uint32_t value = (uint32_t)(0x20 + fx_random() % 12);
		bool high = fx_random() & 1;

		memset(expected, 0, sizeof(expected));
		switch (fx_random() % 3) {
		case 0:
			value |= (fx_random() & 1 ? LEVEL : 0) | (fx_random() & 1 ? MASKED : 0);
			rte(pin, value);
			model[pin].low = value;
			if (!(value & LEVEL))
				model[pin].irr = false;
			model_level(pin);
			break;
		case 1:
			vioapic_pin_set(IO, pin, high);
			if (high && !model[pin].high && !(model[pin].low & (LEVEL | MASKED)))
				expected[model[pin].low & 0xff] = true;
			model[pin].high = high;
			model_level(pin);
			break;
		case 2:
			vioapic_eoi(IO, (uint8_t)value);
			for (unsigned i = 0; i < 24; i++)
				if (model[i].irr && (model[i].low & 0xff) == value) {
					model[i].irr = false;
					model_level(i);
				}
			break;
		}
		for (unsigned v = 0; v < 256; v++) {
			bool wants = false;

			for (unsigned i = 0; i < 24; i++)
				wants |= (model[i].low & LEVEL) && (model[i].low & 0xff) == v &&
				         (!(model[i].low & MASKED) || model[i].irr);
			CHECK_EQ(fx_posted(0, (uint8_t)v), expected[v]);
			CHECK_EQ(vioapic_wants_eoi(IO, (uint8_t)v), wants);
		}
		for (unsigned i = 0; i < 24; i++)
			CHECK_EQ(rd(0x10 + 2 * i), model[i].low | (model[i].irr ? REMOTE_IRR : 0));
		sent(0);
	}
}

TESTS(T(registers), T(edge), T(level_in_service), T(level_masked_while_pending), T(nobody_listens),
      T(random_operations))
