/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Adds up bytes per thread, file and node. There are two tables: the programs fill one while user space drains the other.
 *
 * Nobody can take a table from others. A user may hold twice as many entries as are free, and of what the user may still take, a
 * process may hold twice as many: the first of each gets two thirds of what there is, the next of the rest. Who holds more goes on
 * without the names of files: one entry for a thread and node. A part of the table is for these alone. */
#ifndef HOMENODE_ACCOUNT_H
#define HOMENODE_ACCOUNT_H

#include "pages.h"
#include "ranges.h"

/* Preallocated: the read path allocates nothing, and a full table is reported instead of using ever more memory. */
struct usage_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct usage_key);
	__type(value, struct usage);
};
struct usage_table usage_a SEC(".maps");
struct usage_table usage_b SEC(".maps");

/* One access to a file; filled once per event. */
struct access {
	struct usage_key key; /* node is set per folio, group when an entry begins */
	u64 groups;           /* as in struct pending */
	u32 here;             /* this CPU's node */
	bool write;
	bool handed;          /* a read whose bytes the caller hands on */
	u32 slice;            /* of a read call: weight of its slice, WEIGHT_ONE without slices; 0: no call */
	u8 call;              /* CALL_*; counted with the next bytes, once */
	u32 opens;
	u32 generation;
	s64 weight;           /* in 1/1024ths; negative: a correction */
};
#define CALL_ENDS 1      /* the last bytes of a read call */
#define CALL_PLACED 2    /* a read call whose beginning is known */
#define CALL_CONTINUES 4 /* it began where the last read of the open file ended */

/* Times that the file is open. Not i_count: dentries hold the inode, and open files hold the dentry, so a file that is open ten
 * times has an i_count of 1, and one with two names that nobody has open may have 2. */
static __always_inline u32 opens_of(struct inode *inode)
{
	int writing = inode->i_writecount.counter;

	if (!bpf_core_field_exists(inode->i_readcount))
		return 0;
	return inode->i_readcount.counter + (writing > 0 ? writing : 0);
}

/* The fewest times in the window, because somebody who looks at a file opens it for a moment; homenode does. 0: not known. */
static __always_inline u32 fewer_opens(u32 a, u32 b)
{
	return !a || (b && b < a) ? b : a;
}

/* The id of the group in the v2 hierarchy. An event whose thread has the css_set of the one before needs none of these loads. */
static __always_inline u64 group_of(u64 groups)
{
	u64 group = word_at(groups + bpf_core_field_offset(struct css_set, dfl_cgrp));

	return word_at(word_at(group + bpf_core_field_offset(struct cgroup, kn)) + bpf_core_field_offset(struct kernfs_node, id));
}

/* Sets what the file does not say. */
static __always_inline void access_begin(struct access *w, bool write, s64 weight)
{
	struct task_struct *task = bpf_get_current_task_btf();

	w->key.tid = task->pid;
	w->key.start_lo = task->start_boottime >> START_SHIFT;
	w->key.node = 0;
	w->key.group = 0;
	w->groups = (u64)task->cgroups;
	w->here = bpf_get_numa_node_id();
	w->write = write;
	w->handed = false;
	w->slice = 0;
	w->call = 0;
	w->weight = weight;
}

static __always_inline void access_init(struct access *w, struct inode *inode, bool write, s64 weight)
{
	access_begin(w, write, weight);
	w->key.dev = device_of(inode);
	w->key.ino = inode->i_ino;
	w->opens = opens_of(inode);
	w->generation = inode->i_generation;
}

/* Each CPU keeps its last entry pending, one for each table: a thread mostly continues with the same file, which then takes no
 * table lookup. User space adds the pending entries when it drains the table. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct pending);
} pending SEC(".maps");

/* Entries in each table, and those of each process and user. Two with the same place share what they may hold. User space empties
 * them with the table. */
#define PROCESS_BITS 12
struct shares entry_shares[2] = {};
u32 process_entries[2][1 << PROCESS_BITS] = {};

enum room { ROOM_NONE, ROOM_FOR_THREAD, ROOM_FOR_FILE };

/* What the entry of this process and user may be. */
static __always_inline enum room room_for(struct pending *last, u32 table)
{
	struct shares *shares = &entry_shares[table & 1];
	s64 process = process_entries[table & 1][last->process & ((1 << PROCESS_BITS) - 1)];
	s64 left = left_for(shares, last->user, file_entries);

	if (left > 0 && process < 2 * left)
		return ROOM_FOR_FILE;
	return may_hold(shares, last->user, table_entries) ? ROOM_FOR_THREAD : ROOM_NONE;
}

static __always_inline void usage_add(struct usage *u, struct access *w, u32 node, s64 bytes)
{
	if (w->handed) {
		u->handed += bytes;
		if (w->slice > WEIGHT_ONE)
			u->sliced_reads += w->weight;
		w->call = 0;
	} else if (w->write) {
		u->written += bytes;
	} else if (w->slice > WEIGHT_ONE) {
		u->sliced += bytes;
		u->sliced_reads += w->weight;
		if (node != w->here)
			u->sliced_remote += bytes;
	} else {
		u->read += bytes;
		if (w->slice)
			u->called += bytes;
		if (node != w->here)
			u->remote += bytes;
	}
	if (w->call) {
		if (w->call & CALL_ENDS)
			u->calls += w->weight;
		if (w->call & CALL_PLACED)
			u->placed += w->weight;
		if (w->call & CALL_CONTINUES)
			u->continued += w->weight;
		w->call = 0;
	}
	u->opens = fewer_opens(u->opens, w->opens);
	u->generation = w->generation;
	u->here = w->here;
}

/* Several CPUs may merge into one entry at once. */
static __always_inline void usage_merge(struct usage *to, struct usage *from)
{
	/* Most fields are 0, and an atomic operation costs more than a test. */
#define MERGE(field)                                             \
	if (from->field)                                         \
	__sync_fetch_and_add(&to->field, from->field)
	MERGE(read);
	MERGE(remote);
	MERGE(written);
	MERGE(called);
	MERGE(sliced);
	MERGE(sliced_remote);
	MERGE(sliced_reads);
	MERGE(calls);
	MERGE(placed);
	MERGE(continued);
	MERGE(handed);
#undef MERGE
	to->opens = fewer_opens(to->opens, from->opens);
	/* Any of the latest will do. */
	to->generation = from->generation;
	to->here = from->here;
}

/* Moves a pending entry into the table. Key and value are passed by their place in the map: before 6.3, maps refuse pointers
 * that came as a function's argument, and copies would not fit the stack, which is 512 bytes for a whole chain of calls. */
static __always_inline void usage_to(void *table, struct pending *last, u32 which)
{
	struct usage *to = bpf_map_lookup_elem(table, &last->key);
	s64 bytes = last->usage.read + last->usage.written + last->usage.sliced + last->usage.handed;
	struct counters *c = counted();
	enum room room;

	if (to) {
		usage_merge(to, &last->usage);
		return;
	}
	room = room_for(last, which);
	if (room != ROOM_FOR_FILE) {
		if (c)
			c->crowded_bytes += bytes;
		last->key.dev = 0;
		last->key.ino = 0;
		to = bpf_map_lookup_elem(table, &last->key);
		if (to) {
			usage_merge(to, &last->usage);
			return;
		}
	}
	if (room != ROOM_NONE && !bpf_map_update_elem(table, &last->key, &last->usage, BPF_NOEXIST)) {
		hold(&entry_shares[which & 1], last->user);
		__sync_fetch_and_add(&process_entries[which & 1][last->process & ((1 << PROCESS_BITS) - 1)], 1);
		return;
	}
	/* Another CPU made the entry first, or there is no room. The latter goes to the node's entry, made by user space. */
	to = room != ROOM_NONE ? bpf_map_lookup_elem(table, &last->key) : NULL;
	if (!to) {
		if (c)
			c->full_bytes += bytes;
		last->key.tid = 0;
		last->key.start_lo = 0;
		last->key.dev = 0;
		last->key.ino = 0;
		last->key.group = 0;
		to = bpf_map_lookup_elem(table, &last->key);
	}
	if (to)
		usage_merge(to, &last->usage);
}

static __always_inline bool same_key(struct usage_key *a, struct usage_key *b)
{
	return a->ino == b->ino && a->tid == b->tid && a->node == b->node && a->dev == b->dev && a->start_lo == b->start_lo;
}

static __always_inline u64 program_of(struct task_struct *task)
{
	return (u64)task->mm->exe_file->f_inode;
}

/* Whether this process runs homenode, which reads other programs' files to see where they are and to move them. */
static __always_inline bool ignored(void)
{
	return ignored_program && program_of(current_task()) == ignored_program;
}

static __always_inline void unknown(struct access *w, s64 bytes)
{
	struct counters *c = counted();

	if (!c || ignored())
		return;
	if (w->write)
		c->unknown_written += bytes * w->weight >> WEIGHT_SHIFT;
	else
		c->unknown_read += bytes * w->weight >> WEIGHT_SHIFT;
}

/* A function of its own: a chain of calls has 512 bytes of stack, and this one is not in it where no ranges are wanted. */
__noinline int account_range(struct access *w, u32 node, s64 bytes, u64 at)
{
	struct range_key range = {};

	if (!w)
		return 0;
	range.ino = w->key.ino;
	range.dev = w->key.dev;
	range.generation = w->generation;
	range.node = node;
	range.here = w->here;
	count_range(&range, at, bytes, w->weight);
	return 0;
}

/* A global function, which the verifier checks once instead of at every call. `at`: of a read, its first byte in the file; NO_PLACE:
 * not known. */
__noinline int account(struct access *w, u32 node, s64 bytes, u64 at)
{
	u32 table = epoch;
	struct task_struct *task;
	struct pending *last;

	if (!w)
		return 0;
	if (ranges_wanted && at != NO_PLACE && !w->handed)
		account_range(w, node, bytes, at);
	last = bpf_map_lookup_elem(&pending, &table);
	if (!last)
		return 0;
	if (last->busy) {
		/* Programs on functions, unlike those on tracepoints, can be preempted. Rare. */
		unknown(w, bytes);
		return 0;
	}
	bytes = bytes * w->weight >> WEIGHT_SHIFT;
	w->key.node = node;
	last->busy = 1;
	barrier();
	if (!same_key(&last->key, &w->key) || last->groups != w->groups) {
		/* No such thread has an entry. */
		if (ignored()) {
			last->busy = 0;
			return 0;
		}
		if (last->key.tid && table)
			usage_to(&usage_b, last, 1);
		else if (last->key.tid)
			usage_to(&usage_a, last, 0);
		task = current_task();
		last->key = w->key;
		last->key.group = group_of(w->groups);
		last->groups = w->groups;
		last->process = place_of(task->tgid, PROCESS_BITS);
		last->user = user_of(task);
		__builtin_memset(&last->usage, 0, sizeof(last->usage));
	}
	usage_add(&last->usage, w, node, bytes);
	barrier();
	last->busy = 0;
	return 0;
}

#endif
