#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"
#include "vmm/irq.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

static void post_wakes_by_mode(void)
{
	fx_init(2);
	irq_post(&fx_vcpu[1], 0x41);
	CHECK(fx_posted(1, 0x41));
	CHECK_EQ(atomic_load(&fx_vcpu[1].posted_any), 1);
	CHECK_EQ(fake_wakes[2], 0); /* in the hypervisor: it will look */
	CHECK_EQ(atomic_load(&fx_vcpu[1].wake), 0);
	fx_collect(1);
	atomic_store(&fx_vcpu[1].mode, VCPU_GUEST);
	irq_post(&fx_vcpu[1], 0x42);
	CHECK_EQ(fake_wakes[2], 1);
	CHECK_EQ(atomic_load(&fx_vcpu[1].wake), 1);
	/* One IPI is enough until the vCPU has looked. */
	irq_post(&fx_vcpu[1], 0x42);
	irq_post(&fx_vcpu[1], 0x43);
	CHECK_EQ(fake_wakes[2], 1);
	CHECK(fx_posted(1, 0x43));
	fx_collect(1);
	atomic_store(&fx_vcpu[1].mode, VCPU_SLEEPING);
	irq_post(&fx_vcpu[1], 0xff);
	CHECK_EQ(fake_wakes[2], 2);
	/* From its own core: no IPI to ourselves. */
	fx_collect(1);
	fake_core = 2;
	irq_post(&fx_vcpu[1], 0x41);
	CHECK_EQ(fake_wakes[2], 2);
	/* Vectors of exceptions are nobody's. */
	fx_collect(1);
	for (unsigned vector = 0; vector < 16; vector++)
		irq_post(&fx_vcpu[1], (uint8_t)vector);
	CHECK_EQ(atomic_load(&fx_vcpu[1].posted_any), 0);
	CHECK_EQ(atomic_load(&fx_vcpu[1].posted[0]), 0);
}

static void events(void)
{
	atomic_uint *events_word = &fx_vcpu[1].events;

	fx_init(2);
	atomic_store(&fx_vcpu[1].mode, VCPU_SLEEPING);
	irq_event(&fx_vcpu[1], VCPU_EVENT_NMI);
	CHECK_EQ(fake_wakes[2], 1);
	irq_event(&fx_vcpu[1], VCPU_EVENT_INIT);
	irq_event(&fx_vcpu[1], VCPU_EVENT_SIPI | 0x9900);
	/* The NMI was the old processor's. */
	CHECK_EQ(atomic_load(events_word), VCPU_EVENT_INIT | VCPU_EVENT_SIPI | 0x9900);
	/* The usual second SIPI, and one with another vector: the first counts. */
	irq_event(&fx_vcpu[1], VCPU_EVENT_SIPI | 0x6600);
	CHECK_EQ(atomic_load(events_word) & 0xff00, 0x9900);
	/* INIT afterwards: the vCPU waits for a new one. */
	irq_event(&fx_vcpu[1], VCPU_EVENT_INIT);
	CHECK_EQ(atomic_load(events_word), VCPU_EVENT_INIT);
	irq_event(&fx_vcpu[1], VCPU_EVENT_NMI);
	CHECK_EQ(atomic_load(events_word), VCPU_EVENT_INIT | VCPU_EVENT_NMI);
}

static uint32_t sent(uint8_t vector)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < fx_vm.vcpu_count; i++) {
		if (fx_posted(i, vector))
			mask |= 1u << i;
		for (unsigned w = 0; w < 4; w++)
			atomic_store(&fx_vcpu[i].posted[w], 0);
		atomic_store(&fx_vcpu[i].posted_any, 0);
	}
	return mask;
}

static void destinations(void)
{
	struct irq_msg msg = {.vector = 0x50};

	fx_init(4);
	/* Not enabled by software: nobody takes a fixed interrupt, but NMI and INIT do arrive. */
	msg.dest = 0xff;
	CHECK_EQ(irq_send(&fx_vm, &msg), -ENOENT);
	msg.mode = IRQ_NMI;
	CHECK_EQ(irq_send(&fx_vm, &msg), 0);
	for (unsigned i = 0; i < 4; i++)
		CHECK_EQ(atomic_exchange(&fx_vcpu[i].events, 0), VCPU_EVENT_NMI);
	for (unsigned i = 0; i < 4; i++)
		fx_listen(i);
	msg.mode = IRQ_FIXED;
	for (uint32_t dest = 0; dest < 4; dest++) {
		msg.dest = dest;
		CHECK_EQ(irq_send(&fx_vm, &msg), 0);
		CHECK_EQ(sent(0x50), 1u << dest);
		CHECK(irq_single_target(&fx_vm, &msg) == &fx_vcpu[dest]);
	}
	msg.dest = 4;
	CHECK_EQ(irq_send(&fx_vm, &msg), -ENOENT);
	CHECK(!irq_single_target(&fx_vm, &msg));
	msg.dest = 0xff;
	CHECK_EQ(irq_send(&fx_vm, &msg), 0);
	CHECK_EQ(sent(0x50), 0xf);
	CHECK(!irq_single_target(&fx_vm, &msg));
	CHECK_EQ(irq_broadcast(&fx_vm, &msg, &fx_vcpu[2]), 0);
	CHECK_EQ(sent(0x50), 0xb);
	/* Lowest priority: one of them, the same one each time, and not the same for all vectors.
	 */
	msg.mode = IRQ_LOWEST;
	for (unsigned round = 0; round < 3; round++)
		for (unsigned vector = 0x40; vector < 0x60; vector++) {
			msg.vector = (uint8_t)vector;
			irq_send(&fx_vm, &msg);
			CHECK_EQ(sent((uint8_t)vector),
			         (vector & 31) < 4 ? 1u << (vector & 31) : 1);
		}
	/* Nothing with vectors of exceptions, and modes that lead nowhere. */
	msg.mode = IRQ_FIXED;
	msg.vector = 15;
	CHECK_EQ(irq_send(&fx_vm, &msg), -ENOENT);
	CHECK(!irq_single_target(&fx_vm, &msg));
	msg.vector = 0x50;
	for (unsigned mode = 0; mode < 256; mode++) {
		msg.mode = (uint8_t)mode;
		if (mode <= IRQ_LOWEST || (mode >= IRQ_NMI && mode <= IRQ_SIPI))
			continue;
		CHECK_EQ(irq_send(&fx_vm, &msg), -ENOENT);
	}
}

static void msi(void)
{
	struct irq_msg msg = irq_msi_decode(0xfee03000, 0x0041);

	CHECK_EQ(msg.dest, 3);
	CHECK_EQ(msg.logical, false);
	CHECK_EQ(msg.mode, IRQ_FIXED);
	CHECK_EQ(msg.vector, 0x41);
	msg = irq_msi_decode(0xfee0f00c, 0xc142);
	CHECK_EQ(msg.dest, 0xf);
	CHECK_EQ(msg.logical, true);
	CHECK_EQ(msg.mode, IRQ_LOWEST);
	CHECK_EQ(msg.vector, 0x42);
	CHECK_EQ(irq_msi_decode(0xfed00000, 0x41).mode, IRQ_INVALID);
	CHECK_EQ(irq_msi_decode(0x1fee00000, 0x41).mode, IRQ_INVALID);
	CHECK_EQ(irq_msi_decode(0, 0).mode, IRQ_INVALID);
}

/* --- the pairing of irq.c, with two threads: no interrupt and no wake-up is lost -------------- */

#define ROUNDS 20000

static atomic_uint taken[256];
static atomic_bool runner_done, runner_lost;

static void *runner(void *arg)
{
	struct vcpu *v = arg;

	while (!atomic_load(&runner_done)) {
		time_t start = time(NULL);

		atomic_store(&v->mode, VCPU_GUEST);
		if (!atomic_load(&v->posted_any))
			while (!atomic_load(&v->wake) && !atomic_load(&runner_done)) {
				sched_yield();
				if (time(NULL) > start + 20) {
					atomic_store(&runner_lost, true);
					return NULL;
				}
			}
		atomic_store(&v->mode, VCPU_HOST);
		atomic_store(&v->wake, 0);
		if (!atomic_exchange(&v->posted_any, 0))
			continue;
		for (unsigned w = 0; w < 4; w++)
			for (uint64_t set = atomic_exchange(&v->posted[w], 0); set; set &= set - 1)
				atomic_store(&taken[w * 64 + (unsigned)__builtin_ctzll(set)], 1);
	}
	return NULL;
}

static void nothing_is_lost(void)
{
	pthread_t thread;

	fx_init(1);
	atomic_store(&runner_done, false);
	CHECK_EQ(pthread_create(&thread, NULL, runner, &fx_vcpu[0]), 0);
	for (unsigned round = 0; round < ROUNDS && !atomic_load(&runner_lost); round++) {
		uint8_t burst[4];

		for (unsigned i = 0; i < 4; i++) {
			burst[i] = (uint8_t)(16 + (round * 4 + i) % 240);
			atomic_store(&taken[burst[i]], 0);
			irq_post(&fx_vcpu[0], burst[i]);
		}
		for (unsigned i = 0; i < 4; i++)
			while (!atomic_load(&taken[burst[i]]) && !atomic_load(&runner_lost))
				sched_yield();
	}
	atomic_store(&runner_done, true);
	pthread_join(thread, NULL);
	CHECK(!atomic_load(&runner_lost));
}

TESTS(T(post_wakes_by_mode), T(events), T(destinations), T(msi), T(nothing_is_lost))
