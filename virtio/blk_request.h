/*
 * blk_request.h: a chain's bytes turned into a block request (VIRTIO 1.2 5.2.6). Parsing knows
 * nothing of execution.
 */
#ifndef QUELL_VIRTIO_BLK_REQUEST_H
#define QUELL_VIRTIO_BLK_REQUEST_H

#include "virtio/blk.h"

/* What to do with a parsed request. */
enum vblk_verdict {
	VBLK_SUBMIT, /* req->bio goes to the device */
	VBLK_OK,     /* done already: status OK, req->data_bytes written */
	VBLK_IOERR,
	VBLK_UNSUPP,
	VBLK_NO_STATUS, /* no room for a status byte, or not in memory: push with length 0 */
};

/*
 * Consumes blk->chain and fills req but for its queue, head and bio.done. The chain may be framed
 * in any way (2.7.4.1). I/O core.
 */
enum vblk_verdict vblk_request_parse(struct vblk *blk, struct vblk_req *req);

#endif
