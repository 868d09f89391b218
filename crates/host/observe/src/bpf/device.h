/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The node of the device under a file system. */
#ifndef HOMENODE_DEVICE_H
#define HOMENODE_DEVICE_H

#include "kernel.h"

/* -1 if the node is unknown: the device has none, or there is no block device (virtiofs, famfs). Without the test, loads
 * through the null pointer would give node 0. */
static __always_inline int node_of_device(struct inode *inode)
{
	struct block_device *device = inode->i_sb->s_bdev;

	return device && device->bd_disk ? device->bd_disk->node_id : -1;
}

#endif
