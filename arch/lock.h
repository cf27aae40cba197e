/*
 * A spin lock for slow paths only: no path that serves a steady-state block request takes one.
 * Each lock's declaration lists every field it guards.
 */
#ifndef QUELL_ARCH_LOCK_H
#define QUELL_ARCH_LOCK_H

#include "arch/platform.h"

struct spinlock {
	atomic_uint held;
};

/* Takes the lock; spins. Not recursive; never held across a world switch. */
static inline void spin_lock(struct spinlock *lock)
{
	while (atomic_exchange_explicit(&lock->held, 1, memory_order_acquire))
		while (atomic_load_explicit(&lock->held, memory_order_relaxed))
			plat_relax();
}

/* Takes the lock if nobody has it. */
static inline bool spin_trylock(struct spinlock *lock)
{
	return !atomic_load_explicit(&lock->held, memory_order_relaxed) &&
	       !atomic_exchange_explicit(&lock->held, 1, memory_order_acquire);
}

/* Gives the lock back; only its holder may. */
static inline void spin_unlock(struct spinlock *lock)
{
	atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#endif
