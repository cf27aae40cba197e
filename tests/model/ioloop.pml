/*
 * The wake-up protocol of vmm/ioloop.c and virtio/ring.c under total store order.
 *
 * A store first goes to its core's buffer and reaches memory later; a fence waits until the buffer
 * is empty; a locked instruction drains it too. The guest publishes requests and notifies if
 * notifications are on; the I/O core polls, arms, looks a last time, sleeps; the device completes
 * requests and interrupts if interrupts are on. What is complete the loop tells the guest at once or,
 * while it polls the guest's ring, later (vmm/coalesce.c); a guest may wait for that before it goes
 * on. Lost wake-up = the I/O core sleeps for ever with a request, a completion or an interrupt
 * outstanding = spin's invalid end state.
 *
 * Each safeguard can be left out to see that the model notices: -DNO_ARM_FENCE, -DNO_SLEEP_FENCE,
 * -DNO_LAST_LOOK (ring), -DNO_READY_LOOK, -DNO_CQ_LOOK, -DNO_DRIVER_FENCE, -DNO_FLUSH. vmm/ioloop.c has two
 * fences because a kicker looks at `sleeping`, not at the ring.
 */
#define REQUESTS 3

byte avail = 0;          /* avail.idx in memory */
bool armed = true;       /* notifications on, in memory */
bool ready = false;      /* ready bit */
bool sleeping = false;
bool wake = false;       /* an IPI or interrupt that plat_wait sees */
byte cq = 0;             /* completions posted by the device */
byte sq = 0;             /* commands the device has been given */
bool irq_on = false;
byte told = 0;           /* completions that the guest has had an interrupt for */

/* Store buffers, one entry a variable. */
bool avail_buf = false;  byte avail_val = 0;
bool armed_buf = false;  bool armed_val = false;
bool sleep_buf = false;  bool sleep_val = false;

active proctype drain()
{
end:
	do
	:: d_step { avail_buf -> avail = avail_val; avail_buf = false }
	/* The I/O core's own two stores leave in order. */
	:: d_step { armed_buf -> armed = armed_val; armed_buf = false }
	:: d_step { sleep_buf && !armed_buf -> sleeping = sleep_val; sleep_buf = false }
	od
}

inline guest_fence() { !avail_buf }
inline loop_fence()  { !armed_buf && !sleep_buf }

inline store_armed(v) { atomic { !armed_buf && !sleep_buf -> armed_val = v; armed_buf = true } }
inline store_sleep(v) { atomic { !sleep_buf -> sleep_val = v; sleep_buf = true } }

active proctype guest()
{
	byte n = 0;

	do
	:: n < REQUESTS ->
		n++;
		atomic { !avail_buf -> avail_val = n; avail_buf = true };
#ifndef NO_DRIVER_FENCE
		guest_fence();
#endif
		if
		:: armed ->
			/* The kick's exit is a locked OR: it drains this core's buffer. */
			guest_fence();
			ready = true;
			if
			:: sleeping -> wake = true
			:: else
			fi
		:: else
		fi;
		if
		:: told == n     /* asks for nothing more before it is answered */
		:: n < REQUESTS
		fi
	:: else -> break
	od
}

active proctype device()
{
	byte n = 0;

	do
	:: n < REQUESTS ->
		sq > n;
		atomic {
			n++;
			cq = n;
			if
			:: irq_on -> wake = true
			:: else
			fi
		}
	:: else -> break
	od
}

active proctype ioloop()
{
	byte seen = 0, done = 0;
	bool hot = false, again, deferred = false;

	do
	:: done == REQUESTS && !deferred -> break
	:: else ->
		/* A pass. */
		if
		:: ready -> atomic { ready = false; hot = true };
			store_armed(false)
		:: else
		fi;
		if
		:: hot && avail != seen -> seen = avail; sq = seen
		:: else
		fi;
		if
		:: cq != done ->
			done = cq;
			if
			:: true -> told = done; deferred = false
			:: hot -> deferred = true
			fi
		:: deferred -> told = done; deferred = false /* it is due */
		:: else
		fi;
		if
		:: true -> skip    /* keeps polling */
		:: true ->         /* its time without progress is over */
			again = false;
			if
			:: hot ->
				hot = false;
				store_armed(true);
#ifndef NO_ARM_FENCE
				loop_fence();
#endif
#ifndef NO_LAST_LOOK
				if
				:: avail != seen -> again = true; hot = true; store_armed(false)
				:: else
				fi
#endif
			:: else
			fi;
			if
			:: again || (done == REQUESTS && !deferred)
			:: else ->
#ifndef NO_FLUSH
				if
				:: deferred -> told = done; deferred = false
				:: else
				fi;
#endif
				store_sleep(true);
#ifndef NO_SLEEP_FENCE
				loop_fence();
#endif
				irq_on = true;
				if
#ifndef NO_READY_LOOK
				:: ready -> skip
#endif
#ifndef NO_CQ_LOOK
				:: cq != done -> skip
#endif
				:: done == REQUESTS && !deferred -> skip /* the end */
				:: else -> wake /* sleeps until somebody wakes it */
				fi;
				irq_on = false;
				store_sleep(false);
				loop_fence();
				wake = false
			fi
		fi
	od
}
