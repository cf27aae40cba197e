#include "drivers/nvme/nvme.h"
#include "arch/platform.h"

/*
 * A controller is stopped before its bios finish: once done is called, their memory is somebody
 * else's. One that may not listen to CC.EN, and is not worth waiting for, is cut off from memory.
 */
static void kill_controller(struct nvme_ctrl *c)
{
	c->dead = true;
	pci_dma_disable(&c->pci);
	nvme_pair_abort(&c->io, BIO_EGONE);
}

/*
 * Every outstanding bio finishes here exactly once; poll then calls done. The reset holds up the
 * I/O core for as long as the controller takes.
 */
void nvme_recover(struct nvme_ctrl *c, enum nvme_fault fault)
{
	static const char *const what[] = {
	        [NVME_FAULT_TIMEOUT] = "a command got no answer: resetting the controller",
	        [NVME_FAULT_FATAL] = "controller fatal status: given up",
	        [NVME_FAULT_GONE] = "no longer answers: given up",
	};

	plat_log("%s: %s", c->name, what[fault]);
	if (fault == NVME_FAULT_TIMEOUT && !nvme_ctrl_disable(c)) {
		nvme_pair_abort(&c->io, BIO_EIO);
		if (!nvme_ctrl_up(c)) {
			plat_log("%s: works again", c->name);
			return;
		}
		plat_log("%s: the reset failed: given up", c->name);
	}
	kill_controller(c);
}

static bool has_lost_command(const struct nvme_pair *q)
{
	for (uint32_t i = 0; i < q->ring.depth; i++) {
		const struct nvme_cmd *cmd = &q->cmd[i];

		if (cmd->bio && (uint8_t)(q->epoch - cmd->epoch) > NVME_TIMEOUT_TICKS)
			return true;
	}
	return false;
}

void nvme_check(struct nvme_pair *q)
{
	uint64_t now_tsc = plat_tsc();
	uint32_t csts;

	if (q->ctrl->dead || now_tsc < q->next_tick_tsc)
		return;
	/* However long nobody looked, it is one tick: a stopped machine is no lost command. */
	q->next_tick_tsc = now_tsc + q->tick_tsc;
	q->epoch++;
	csts = nvme_csts_read(q->ctrl);
	if (csts == NVME_CSTS_GONE)
		nvme_recover(q->ctrl, NVME_FAULT_GONE);
	else if (csts & NVME_CSTS_CFS || !(csts & NVME_CSTS_RDY))
		nvme_recover(q->ctrl, NVME_FAULT_FATAL);
	else if (has_lost_command(q))
		nvme_recover(q->ctrl, NVME_FAULT_TIMEOUT);
}
