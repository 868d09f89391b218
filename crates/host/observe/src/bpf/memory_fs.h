/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* File systems that do not use filemap_get_pages: tmpfs (its pages are the file) and DAX (it has no pages). */
#ifndef HOMENODE_MEMORY_FS_H
#define HOMENODE_MEMORY_FS_H

#include "device.h"
#include "reads.h"

static __always_inline int memory_read(struct address_space *mapping, u64 end, s64 bytes, bool handed)
{
	struct sampler *s = sampler();
	struct walk walk = {};

	if (!s || !drawn(s, pages_of(bytes)))
		return 0;
	access_init(&walk.access, mapping->host, false, take(s, pages_of(bytes)));
	walk.access.call = CALL_ENDS;
	walk.access.slice = WEIGHT_ONE;
	/* The kernel copies between two files on the caller's CPU. */
	walk.access.handed = handed && syscall_of(bpf_get_current_task_btf()) != SYS_COPY_FILE_RANGE;
	walk.kind = WALK_RANGE; /* a hole is read from the zero page, which has no node */
	walk.folios = WALK_MAX;
	walk_range(&walk, mapping, end - bytes, end);
	return 0;
}

SEC("fexit/shmem_file_read_iter")
int BPF_PROG(shmem_read, struct kiocb *iocb, struct iov_iter *to, long bytes)
{
	if (bytes <= 0)
		return 0;
	return memory_read(iocb->ki_filp->f_mapping, iocb->ki_pos, bytes, into_pipe(to));
}

/* splice and sendfile from tmpfs (since 6.5). */
SEC("fexit/shmem_file_splice_read")
int BPF_PROG(shmem_splice, struct file *in, s64 *pos, void *pipe, unsigned long len, unsigned int flags, long bytes)
{
	u64 end = 0;

	if (bytes <= 0)
		return 0;
	bpf_probe_read_kernel(&end, sizeof(end), pos);
	return memory_read(in->f_mapping, end, bytes, true);
}

/* Reads and writes of DAX files. The node is that of the block device, if the kernel has one. */
SEC("fexit/dax_iomap_rw")
int BPF_PROG(dax_rw, struct kiocb *iocb, struct iov_iter *iter, void *ops, long bytes)
{
	struct sampler *s;
	struct inode *inode;
	struct access w;
	int node;

	if (bytes <= 0)
		return 0;
	s = sampler();
	if (!s || !drawn(s, pages_of(bytes)))
		return 0;
	inode = iocb->ki_filp->f_mapping->host;
	access_init(&w, inode, iter->data_source, take(s, pages_of(bytes)));
	if (!iter->data_source) {
		w.call = CALL_ENDS;
		w.slice = WEIGHT_ONE;
	}
	node = node_of_device(inode);
	account(&w, node >= 0 ? node : NO_NODE, bytes, NO_PLACE);
	return 0;
}

#endif
