/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Adds up bytes per thread, file and node: two tables, one filled while user space drains the other. */
#ifndef HOMENODE_ACCOUNT_H
#define HOMENODE_ACCOUNT_H

#include "sample.h"

/* Preallocated: no allocation on the read path, and a full table is a fact instead of memory pressure. */
struct usage_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct usage_key);
	__type(value, struct usage);
};
struct usage_table usage_a SEC(".maps");
struct usage_table usage_b SEC(".maps");

/* Who did what with which file: filled once per event. */
struct access {
	struct usage_key key; /* node is set per folio */
	u32 here;             /* node of this CPU */
	bool write;
	bool sliced;          /* by the hook on the read path */
	s64 weight;           /* in 1/1024ths; negative takes back */
};

static __always_inline void access_init(struct access *w, struct inode *inode, bool write, s64 weight)
{
	struct task_struct *task = bpf_get_current_task_btf();

	w->key.tid = task->pid;
	w->key.start_lo = task->start_boottime >> START_SHIFT;
	w->key.dev = inode->i_sb->s_dev;
	w->key.ino = inode->i_ino;
	w->key.node = 0;
	w->here = bpf_get_numa_node_id();
	w->write = write;
	w->sliced = false;
	w->weight = weight;
}

static __always_inline void usage_add(struct usage *u, struct access *w, u32 node, s64 bytes)
{
	/* Only this thread adds to its entries, and not twice at once: no atomics. A thread's first bytes in a window whose
	 * table is just being drained may be lost with the entry: at most one event. */
	if (w->write) {
		u->written += bytes;
	} else if (w->sliced) {
		u->sliced += bytes;
		u->sliced_reads += w->weight;
		if (node != w->here)
			u->sliced_remote += bytes;
	} else {
		u->read += bytes;
		if (node != w->here)
			u->remote += bytes;
	}
}

/* The entry of all that no entry was free for; made by user space for each node. */
static __always_inline void usage_full(void *table, struct access *w, u32 node, s64 bytes)
{
	struct usage_key none = { .node = node };
	struct counters *c = counted();
	struct usage *u;

	if (c) {
		c->full_events++;
		c->full_bytes += bytes;
	}
	u = bpf_map_lookup_elem(table, &none);
	if (!u)
		return;
	if (w->write) {
		__sync_fetch_and_add(&u->written, bytes);
	} else if (w->sliced) {
		__sync_fetch_and_add(&u->sliced, bytes);
		if (node != w->here)
			__sync_fetch_and_add(&u->sliced_remote, bytes);
	} else {
		__sync_fetch_and_add(&u->read, bytes);
		if (node != w->here)
			__sync_fetch_and_add(&u->remote, bytes);
	}
}

static __always_inline void usage_to(void *table, struct access *w, u32 node, s64 bytes)
{
	struct usage *u = bpf_map_lookup_elem(table, &w->key);

	if (!u) {
		struct usage zero = {};

		bpf_map_update_elem(table, &w->key, &zero, BPF_NOEXIST);
		u = bpf_map_lookup_elem(table, &w->key);
	}
	if (u)
		usage_add(u, w, node, bytes);
	else
		usage_full(table, w, node, bytes);
}

/* A global function: verified once, not at every call. */
__noinline int account(struct access *w, u32 node, s64 bytes)
{
	if (!w)
		return 0;
	bytes = bytes * w->weight >> WEIGHT_SHIFT;
	w->key.node = node;
	if (epoch)
		usage_to(&usage_b, w, node, bytes);
	else
		usage_to(&usage_a, w, node, bytes);
	return 0;
}

static __always_inline void unknown(struct access *w, s64 bytes)
{
	struct counters *c = counted();

	if (!c)
		return;
	if (w->write)
		c->unknown_written += bytes * w->weight >> WEIGHT_SHIFT;
	else
		c->unknown_read += bytes * w->weight >> WEIGHT_SHIFT;
}

#endif
