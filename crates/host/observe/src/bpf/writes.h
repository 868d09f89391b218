/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Buffered writes, by the node of the page written. */
#ifndef HOMENODE_WRITES_H
#define HOMENODE_WRITES_H

#include "walk.h"

#define EXT4_MAGIC 0xEF53
#define XFS_MAGIC 0x58465342
#define GFS2_MAGIC 0x01161970
#define BCACHEFS_MAGIC 0xca451a4e

/* Bytes [pos, pos + bytes) were written, or are about to be (`coming`). Pages that do not exist yet then count on this CPU's
 * node, where the kernel allocates them unless a memory policy says otherwise. */
static __always_inline int range_written(struct address_space *mapping, u64 pos, u64 bytes, bool coming)
{
	struct sampler *s = sampler();
	struct walk walk = {};

	if (!s || !drawn(s, pages_of(bytes)))
		return 0;
	access_init(&walk.access, mapping->host, true, take(s, pages_of(bytes)));
	walk.kind = WALK_RANGE;
	walk.folios = WALK_MAX;
	walk_range(&walk, mapping, pos, pos + bytes);
	if (walk.found < bytes) {
		if (coming)
			account(&walk.access, walk.access.here, bytes - walk.found, NO_PLACE);
		else
			unknown(&walk.access, bytes - walk.found);
	}
	return 0;
}

static __always_inline int file_written(struct kiocb *iocb, s64 written, bool pos_advanced)
{
	u64 pos = iocb->ki_pos;

	if (written <= 0)
		return 0;
	if (pos_advanced)
		pos -= written;
	return range_written(iocb->ki_filp->f_mapping, pos, written, false);
}

/* ext4, tmpfs, f2fs, fat, nfs, … */
SEC("fexit/generic_perform_write")
int BPF_PROG(write_generic, struct kiocb *iocb, struct iov_iter *iter, long written)
{
	return file_written(iocb, written, generic_pos_advanced);
}

/* xfs, gfs2, block devices. The number of arguments differs between kernels. */
SEC("fexit/iomap_file_buffered_write")
int BPF_PROG(write_iomap, struct kiocb *iocb)
{
	u64 written = 0;

	if (bpf_get_func_ret(ctx, &written))
		return 0;
	return file_written(iocb, written, iomap_pos_advanced);
}

/* To some kernels, every argument of a module's tracepoint may be NULL. */
SEC("tp_btf/ext4_da_write_end")
int BPF_PROG(write_ext4_delayed, struct inode *inode, s64 pos, unsigned int len, unsigned int copied)
{
	return inode ? range_written(untrusted(struct inode, inode)->i_mapping, pos, copied, false) : 0;
}

SEC("tp_btf/ext4_write_end")
int BPF_PROG(write_ext4, struct inode *inode, s64 pos, unsigned int len, unsigned int copied)
{
	return inode ? range_written(untrusted(struct inode, inode)->i_mapping, pos, copied, false) : 0;
}

SEC("tp_btf/ext4_journalled_write_end")
int BPF_PROG(write_ext4_journalled, struct inode *inode, s64 pos, unsigned int len, unsigned int copied)
{
	return inode ? range_written(untrusted(struct inode, inode)->i_mapping, pos, copied, false) : 0;
}

/* Fires before the write, so a write that is then cut short (full disk) counts in full. */
SEC("tp_btf/xfs_file_buffered_write")
int BPF_PROG(write_xfs, struct kiocb *iocb, struct iov_iter *from)
{
	if (!iocb || !from)
		return 0;
	iocb = untrusted(struct kiocb, iocb);
	return range_written(iocb->ki_filp->f_mapping, iocb->ki_pos, from->count, true);
}

/* The last resort, for file systems whose writes no hook above sees: a clean folio becomes dirty. The whole folio counts as
 * written, once until it is written back. */
SEC("tp_btf/writeback_dirty_folio")
int BPF_PROG(write_dirtied, struct folio *folio, struct address_space *mapping)
{
	struct sampler *s;
	struct inode *inode;
	struct access w;
	unsigned long magic, flags;

	if (!mapping || !folio)
		return 0;
	mapping = untrusted(struct address_space, mapping);
	inode = mapping->host;
	magic = inode->i_sb->s_magic;
	if ((ext4_hooked && magic == EXT4_MAGIC) || (xfs_hooked && magic == XFS_MAGIC))
		return 0;
	/* bcachefs has a write_begin, and writes past it. */
	if (generic_hooked &&
	    (magic == XFS_MAGIC || magic == GFS2_MAGIC || (mapping->a_ops->write_begin && magic != BCACHEFS_MAGIC)))
		return 0;
	/* A file system's own metadata is not the thread's file. */
	if (inode->i_sb->s_flags & SB_KERNMOUNT)
		return 0;
	s = sampler();
	if (!s || !drawn(s, 1))
		return 0;
	access_init(&w, inode, true, take(s, 1));
	flags = folio_flags(folio);
	account(&w, node_of_flags(flags), 1ULL << (folio_order(folio, flags) + PAGE_SHIFT), NO_PLACE);
	return 0;
}

#endif
