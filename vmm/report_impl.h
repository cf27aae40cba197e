/*
 * report_impl.h: what the tables (report.c) and the JSON (report_json.c) of the report share. Boot
 * core.
 */
#ifndef QUELL_VMM_REPORT_IMPL_H
#define QUELL_VMM_REPORT_IMPL_H

#include "vmm/report.h"

/* All that one guest did in some phases, over its vCPUs; for one guest at a time. */
struct report_sum {
	struct exit_stats exits; /* kicks are in their reason */
	uint64_t exit_count, exit_tsc;
	uint64_t rest_tsc; /* wall time that is in no other column */
	unsigned queue_count;
	struct tally *kick; /* by the guest's queue number, as queue[] */
	struct phase_queue *queue;
};

/* Sums the phases from first to last over vCPU vcpu, or over all (vcpu_count). Valid until the next
 * call. */
struct report_sum *report_sum(struct vm *vm, unsigned vcpu, unsigned first, unsigned last);

/* Phases that were begun, at least one. */
unsigned report_phases(struct vm *vm);

/* The vendor's name of an exit reason. */
const char *report_reason(unsigned reason);

uint64_t report_ns(uint64_t tsc);

/* part / whole in 1/10000; 0 of nothing. */
uint64_t report_ratio(uint64_t part, uint64_t whole);

/* The lines quell-stats and, for each guest and phase, quell-phase. */
void report_json_print(const struct report *report);

#endif
