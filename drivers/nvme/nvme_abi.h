/*
 * nvme_abi.h: registers and structures of NVM Express 1.4, as the specification lays them out.
 */
#ifndef QUELL_DRIVERS_NVME_ABI_H
#define QUELL_DRIVERS_NVME_ABI_H

#include "arch/types.h"

/* Controller registers (3.1). */
#define NVME_REG_CAP      0x00 /* 64 bits */
#define NVME_REG_VS       0x08
#define NVME_REG_CC       0x14
#define NVME_REG_CSTS     0x1c
#define NVME_REG_AQA      0x24
#define NVME_REG_ASQ      0x28 /* 64 bits */
#define NVME_REG_ACQ      0x30 /* 64 bits */
#define NVME_REG_DOORBELL 0x1000

/* CAP (3.1.1). */
#define NVME_CAP_MQES(cap)   ((uint32_t)(cap)&0xffffu)         /* entries, 0-based */
#define NVME_CAP_TO(cap)     ((uint32_t)((cap) >> 24) & 0xffu) /* 500 ms units */
#define NVME_CAP_DSTRD(cap)  ((uint32_t)((cap) >> 32) & 0xfu)  /* 4 << n bytes */
#define NVME_CAP_CSS_NVM     BIT(37)
#define NVME_CAP_MPSMIN(cap) ((uint32_t)((cap) >> 48) & 0xfu) /* 4096 << n bytes */
#define NVME_CAP_MPSMAX(cap) ((uint32_t)((cap) >> 52) & 0xfu)

/* CC (3.1.5): NVM command set, 4 KiB pages, round robin are all zero. */
#define NVME_CC_EN         ((uint32_t)BIT(0))
#define NVME_CC_SHN_MASK   0xc000u
#define NVME_CC_SHN_NORMAL 0x4000u
#define NVME_CC_IOSQES     (6u << 16) /* 64-byte entries */
#define NVME_CC_IOCQES     (4u << 20) /* 16-byte entries */

/* CSTS (3.1.6). */
#define NVME_CSTS_RDY       ((uint32_t)BIT(0))
#define NVME_CSTS_CFS       ((uint32_t)BIT(1))
#define NVME_CSTS_SHST_MASK 0xcu
#define NVME_CSTS_SHST_DONE 0x8u
#define NVME_CSTS_GONE      UINT32_MAX /* what a read gives when nothing answers */

#define NVME_VS_1_1 0x00010100u

/* Opcodes (5, 6). */
enum nvme_admin_opcode {
	NVME_ADMIN_CREATE_SQ = 0x01,
	NVME_ADMIN_CREATE_CQ = 0x05,
	NVME_ADMIN_IDENTIFY = 0x06,
	NVME_ADMIN_SET_FEATURES = 0x09,
};

enum nvme_io_opcode {
	NVME_IO_FLUSH = 0x00,
	NVME_IO_WRITE = 0x01,
	NVME_IO_READ = 0x02,
	NVME_IO_WRITE_ZEROES = 0x08,
	NVME_IO_DATASET_MANAGEMENT = 0x09,
};

#define NVME_FEATURE_NUM_QUEUES 0x07u
#define NVME_QUEUE_CONTIGUOUS   ((uint32_t)BIT(0))
#define NVME_CQ_IRQ_ENABLE      ((uint32_t)BIT(1))
#define NVME_DSM_DEALLOCATE     ((uint32_t)BIT(2))

enum nvme_identify_cns {
	NVME_CNS_NAMESPACE = 0x00,
	NVME_CNS_CONTROLLER = 0x01,
	NVME_CNS_ACTIVE_LIST = 0x02,
};

/* Submission queue entry (4.2). */
struct nvme_sqe {
	uint8_t opcode;
	uint8_t flags; /* PRPs, not fused: 0 */
	uint16_t cid;
	uint32_t nsid;
	uint32_t cdw2, cdw3;
	uint64_t metadata;
	uint64_t prp1, prp2;
	uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15;
};
_Static_assert(sizeof(struct nvme_sqe) == 64, "NVMe 1.4 figure 105");
_Static_assert(offsetof(struct nvme_sqe, prp1) == 24, "NVMe 1.4 figure 105");
_Static_assert(offsetof(struct nvme_sqe, cdw10) == 40, "NVMe 1.4 figure 105");

/* Completion queue entry (4.6). The last dword carries the phase and is read first. */
struct nvme_cqe {
	uint32_t result;
	uint32_t reserved;
	uint16_t sq_head, sq_id;
	atomic_uint_least32_t cid_status;
};
_Static_assert(sizeof(struct nvme_cqe) == 16, "NVMe 1.4 figure 123");
_Static_assert(offsetof(struct nvme_cqe, cid_status) == 12, "NVMe 1.4 figure 123");

#define NVME_CQE_CID(dw3)    ((uint16_t)(dw3))
#define NVME_CQE_PHASE(dw3)  ((dw3) >> 16 & 1)
#define NVME_CQE_STATUS(dw3) ((uint16_t)((dw3) >> 17 & 0x7ff)) /* SCT and SC, 0: success */

/* Status values, status code type in bits 10:8 (4.6.1). */
enum nvme_status {
	NVME_SC_SUCCESS = 0x000,
	NVME_SC_INVALID_OPCODE = 0x001,
	NVME_SC_INVALID_FIELD = 0x002,
	NVME_SC_INVALID_NAMESPACE = 0x00b,
	NVME_SC_LBA_RANGE = 0x080,
	NVME_SC_UNRECOVERED_READ = 0x281,
};

/* Dataset management range (6.7). */
struct nvme_dsm_range {
	uint32_t attributes;
	uint32_t block_count;
	uint64_t lba;
};
_Static_assert(sizeof(struct nvme_dsm_range) == 16, "NVMe 1.4 figure 365");

/* Identify controller (5.15.2.2), what of it is read. */
struct nvme_id_ctrl {
	uint16_t vendor, subsystem_vendor;
	char serial[20], model[40], firmware[8];
	uint8_t rab, ieee[3], cmic;
	uint8_t mdts; /* 2^n smallest pages, 0: no limit */
	uint8_t reserved78[434];
	uint8_t sqes, cqes; /* required size in bits 3:0, power of two */
	uint16_t max_cmd;
	uint32_t namespace_count;
	uint16_t oncs;
	uint16_t fuses;
	uint8_t fna, vwc;
	uint8_t reserved526[3570];
};
_Static_assert(sizeof(struct nvme_id_ctrl) == 4096, "NVMe 1.4 figure 247");
_Static_assert(offsetof(struct nvme_id_ctrl, mdts) == 77, "NVMe 1.4 figure 247");
_Static_assert(offsetof(struct nvme_id_ctrl, sqes) == 512, "NVMe 1.4 figure 247");
_Static_assert(offsetof(struct nvme_id_ctrl, namespace_count) == 516, "NVMe 1.4 figure 247");
_Static_assert(offsetof(struct nvme_id_ctrl, oncs) == 520, "NVMe 1.4 figure 247");
_Static_assert(offsetof(struct nvme_id_ctrl, vwc) == 525, "NVMe 1.4 figure 247");

#define NVME_ONCS_DSM          BIT(2)
#define NVME_ONCS_WRITE_ZEROES BIT(3)
#define NVME_VWC_PRESENT       BIT(0)

struct nvme_lba_format {
	uint16_t metadata_bytes;
	uint8_t lba_shift;
	uint8_t performance;
};

/* Identify namespace (5.15.2.1), what of it is read. */
struct nvme_id_ns {
	uint64_t size_blocks, capacity_blocks, use_blocks;
	uint8_t features, format_count, format; /* format_count is 0-based */
	uint8_t reserved27[37];
	uint16_t preferred_write_blocks; /* 0-based, valid with NVME_NS_OPTPERF */
	uint8_t reserved66[33];
	uint8_t attributes;
	uint8_t reserved100[28];
	struct nvme_lba_format formats[16];
	uint8_t reserved192[3904];
};
_Static_assert(sizeof(struct nvme_id_ns) == 4096, "NVMe 1.4 figure 245");
_Static_assert(offsetof(struct nvme_id_ns, format) == 26, "NVMe 1.4 figure 245");
_Static_assert(offsetof(struct nvme_id_ns, preferred_write_blocks) == 64, "NVMe 1.4 figure 245");
_Static_assert(offsetof(struct nvme_id_ns, attributes) == 99, "NVMe 1.4 figure 245");
_Static_assert(offsetof(struct nvme_id_ns, formats) == 128, "NVMe 1.4 figure 245");

#define NVME_NS_OPTPERF         BIT(4) /* features */
#define NVME_NS_FORMAT_INDEX    0xfu   /* format */
#define NVME_NS_WRITE_PROTECTED BIT(0) /* attributes */

#endif
