/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* One folio of the page cache, and its flags, by loads that cannot fault. */
#ifndef HOMENODE_PAGES_H
#define HOMENODE_PAGES_H

#include "kernel.h"

/* lib/xarray: internal entries end in binary 10; nodes are above 4096, siblings below 64 << 2. */
#define XA_INTERNAL 2UL
#define XA_TAG 3UL
#define XA_NODE_MIN 4096UL
#define XA_SIBLING_MAX (62UL << 2 | XA_INTERNAL)
#define XA_LEVELS 11 /* 64 bits at 6 a level */
#define FOLIO_ORDER_MAX 20

/* Since 6.2: makes a load that cannot fault, and that the verifier accepts. */
extern void *bpf_rdonly_cast(const void *address, u32 btf_id) __ksym __weak;

/* The same pointer, which the verifier no longer trusts. At each load of a pointer through one that
 * it trusts (the current task, an argument of a tracepoint) it looks for up to four types by name,
 * and goes through all types of the kernel for each. What is loaded through this one is not trusted
 * either. Such loads cannot fault, and cost no more. Helpers that take a task refuse it. */
#define untrusted(type, pointer)                                                                                    \
	(bpf_ksym_exists(bpf_rdonly_cast) ? (type *)bpf_rdonly_cast(pointer, bpf_core_type_id_kernel(type)) : (pointer))

static __always_inline struct task_struct *current_task(void)
{
	return untrusted(struct task_struct, bpf_get_current_task_btf());
}

/* A word of kernel memory; 0 if the address is invalid. The cast makes it one instruction instead of a call; any structure that
 * starts with a 64-bit number will do. */
static __always_inline u64 word_at(u64 address)
{
	u64 word = 0;

	if (bpf_ksym_exists(bpf_rdonly_cast)) {
		struct timespec64 *number = bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct timespec64));

		return number->tv_sec;
	}
	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

/* The device that names a file's inode together with its number. Each subvolume of btrfs has inode numbers of its own, and a device
 * of its own that stat(2) shows. If btrfs is a module, it must have been loaded before this program. */
static __always_inline u32 device_of(struct inode *inode)
{
	u64 root;
	u32 dev;

	if (!bpf_core_type_exists(struct btrfs_inode) || inode->i_sb->s_magic != BTRFS_SUPER_MAGIC)
		return inode->i_sb->s_dev;
	root = word_at((u64)inode - bpf_core_field_offset(struct btrfs_inode, vfs_inode) +
		       bpf_core_field_offset(struct btrfs_inode, root));
	dev = word_at(root + bpf_core_field_offset(struct btrfs_root, anon_dev));
	return dev ? dev : inode->i_sb->s_dev;
}

static __always_inline unsigned long folio_flags(void *folio)
{
	struct folio *now = folio;

	if (bpf_core_field_exists(now->flags.f))
		return word_at((u64)folio + bpf_core_field_offset(struct folio, flags));
	return word_at((u64)folio + bpf_core_field_offset(struct folio___long_flags, flags));
}

/* Number of pages of a folio, as a power of two. */
static __always_inline u32 folio_order(void *folio, unsigned long flags)
{
	struct folio___order *old = folio;
	u32 order;

	if (!(flags & (1UL << bpf_core_enum_value(enum pageflags, PG_head))))
		return 0;
	if (bpf_core_field_exists(old->_folio_order))
		order = word_at((u64)folio + bpf_core_field_offset(struct folio___order, _folio_order)) & 0xff;
	else
		order = word_at((u64)folio + bpf_core_field_offset(struct folio, _flags_1)) & 0xff;
	return order <= FOLIO_ORDER_MAX ? order : 0;
}

static __always_inline unsigned long slot_of(u64 node, u32 offset)
{
	u64 slots = node + bpf_core_field_offset(struct xa_node, slots);
	unsigned long entry = word_at(slots + 8 * (offset & 63));

	if ((entry & XA_TAG) == XA_INTERNAL && entry <= XA_SIBLING_MAX)
		entry = word_at(slots + 8 * ((entry >> 2) & 63));
	return entry;
}

/* The folio at `index` of the tree under `root`. NULL for no entry, a shadow entry, or an entry that is being changed. Sets
 * `leaf` to the folio's xa_node if that node's entries are single pages. */
static __always_inline void *folio_under(unsigned long root, u64 index, u64 *leaf)
{
	unsigned long entry = root;

	for (int level = 0; level < XA_LEVELS; level++) {
		u64 node = entry - XA_INTERNAL;
		u8 shift;

		if ((entry & XA_TAG) != XA_INTERNAL || entry <= XA_NODE_MIN)
			break;
		shift = word_at(node + bpf_core_field_offset(struct xa_node, shift));
		if (shift > 60 || (level == 0 && (index >> shift) > 63))
			return NULL;
		entry = slot_of(node, index >> shift);
		if (shift == 0) {
			*leaf = node;
			break;
		}
	}
	/* A file of one page has its folio in the root itself. */
	if (entry == root && index > 0)
		return NULL;
	return (entry & XA_TAG) ? NULL : (void *)entry;
}

#endif
