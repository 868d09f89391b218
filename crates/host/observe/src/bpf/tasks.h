/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Facts and CPU time of every thread, from one pass; and the descendants of watched threads. */
#ifndef HOMENODE_TASKS_H
#define HOMENODE_TASKS_H

#include "account.h"

struct times {
	u64 cpu_ns;
	u64 wait_ns; /* ready to run, waiting for a CPU */
	u64 ran;     /* it had used CPU time by the last pass, or ran then */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct times);
} times_before SEC(".maps");

/* Marked threads and their descendants, by tid. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct watched);
} marked SEC(".maps");
/* Of those that were born of watched ones. */
struct shares watched_shares = {};

/* Number of threads that the passes have seen. */
u64 pass_tasks = 0;

/* Users with so many threads that those that ran and waited for less than this since the last pass, ns, are not shown
 * (../crowd.rs). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, USERS_CROWDED);
	__type(key, u32);
	__type(value, u64);
} floors SEC(".maps");

/* A thread's entry. An entry with another start time belongs to an earlier thread with this id; one without a start time was
 * made by user space, which did not know it. */
static __always_inline struct watched *watched_of(struct task_struct *task)
{
	u32 tid = task->pid;
	struct watched *watched = bpf_map_lookup_elem(&marked, &tid);

	if (watched && watched->start_ns && watched->start_ns / NS_PER_TICK != task->start_boottime / NS_PER_TICK)
		return NULL;
	return watched;
}

/* Whether its affinity is homenode's, as far as the last look at watched threads said. */
static __always_inline bool kept(u32 marks)
{
	return marks & MARK_MOVED && !(marks & MARK_OWN);
}

/* The address of the affinity that was asked for. Each successful sched_setaffinity stores it at another address than the one
 * before, even for the same CPUs, and a child gets a copy. Two calls may come back to the first address. 0: no affinity was asked for, or the kernel does not record it (before 6.2). */
static __always_inline u64 asked_by(struct task_struct *task)
{
	if (!bpf_core_type_exists(struct affinity_context) || !bpf_core_field_exists(task->user_cpus_ptr))
		return 0;
	return (u64)task->user_cpus_ptr;
}

/* Whether anybody set the affinity of a watched thread since it was ours. */
static __always_inline bool own(struct task_struct *task, const struct watched *watched)
{
	return watched->marks & MARK_OWN || (watched->asked && watched->asked != asked_by(task));
}

static __always_inline long put_mask(struct seq_file *seq, const struct cpumask *mask)
{
	u64 chunk[8];
	long error = 0;

	for (u32 done = 0; done < 128 && done < mask_words; done += 8) {
		u32 bytes = (mask_words - done) * 8;

		if (bytes > sizeof(chunk))
			bytes = sizeof(chunk);
		if (bpf_probe_read_kernel(chunk, bytes, (void *)mask + done * 8))
			__builtin_memset(chunk, 0, sizeof(chunk));
		error |= bpf_seq_write(seq, chunk, bytes);
	}
	return error;
}

/* Whether two affinities are the same. False if they cannot be read. */
static __always_inline bool same_mask(const struct cpumask *a, const struct cpumask *b)
{
	u64 chunk_a[8], chunk_b[8], differ = 0;

	for (u32 done = 0; done < 128 && done < mask_words; done += 8) {
		u32 bytes = (mask_words - done) * 8;

		if (bytes > sizeof(chunk_a))
			bytes = sizeof(chunk_a);
		__builtin_memset(chunk_a, 0, sizeof(chunk_a));
		__builtin_memset(chunk_b, 0, sizeof(chunk_b));
		if (bpf_probe_read_kernel(chunk_a, bytes, (void *)a + done * 8) ||
		    bpf_probe_read_kernel(chunk_b, bytes, (void *)b + done * 8))
			return false;
		for (u32 i = 0; i < 8; i++)
			differ |= chunk_a[i] ^ chunk_b[i];
	}
	return !differ;
}

/* The least time that a thread of this user has to have run and waited for to be shown. */
static __always_inline u64 floor_of(struct task_struct *task)
{
	u32 user = task->group_leader->real_cred->uid.val;
	u64 *floor = bpf_map_lookup_elem(&floors, &user);

	return floor ? *floor : 0;
}

/* Adds to the CPU time of threads that are not shown. Other CPUs add to it, too. */
static __always_inline void hide(u32 cpu, u64 cpu_ns)
{
	u32 zero = 0;
	struct counters *c = bpf_map_lookup_percpu_elem(&counters, &zero, cpu);

	if (c)
		__sync_fetch_and_add(&c->hidden_cpu_ns, cpu_ns);
}

/* Whether the task runs on a CPU now. The kernel adds up a running task's CPU time at ticks only. */
static __always_inline bool running(struct task_struct *task)
{
	return !bpf_core_field_exists(task->on_cpu) || task->on_cpu;
}

/* Emits all threads if that is wanted, otherwise the threads that used CPU time since the last pass, those that run now, and those
 * that the last pass emitted for either reason: every thread that touched a file in the window is one of them. What a thread
 * touched after the tables were swapped and before the last pass is in this window, even if it has not run since. Of users with too
 * many threads, only those above their floor. */
SEC("iter/task")
int task_pass(struct bpf_iter__task *ctx)
{
	struct task_struct *trusted = ctx->task, *task = untrusted(struct task_struct, trusted);
	struct task_record record = {};
	struct seq_file *seq = ctx->meta->seq;
	struct times *before, now;
	struct watched *watched;
	u64 spent;
	u32 marks = 0;

	if (!trusted || (task->flags & PF_EXITING))
		return 0;
	if (own_tgid && task->tgid == (int)own_tgid)
		own_program = program_of(task);
	before = bpf_task_storage_get(&times_before, trusted, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!before)
		return 0;
	now.cpu_ns = task->se.sum_exec_runtime;
	now.wait_ns = bpf_core_field_exists(task->sched_info.run_delay) ? task->sched_info.run_delay : 0;
	spent = now.cpu_ns - before->cpu_ns + now.wait_ns - before->wait_ns;
	now.ran = now.cpu_ns > before->cpu_ns || running(task);
	watched = watched_of(task);
	if (watched)
		marks = watched->marks;
	if (now.ran && spent < floor_of(task) && !running(task) && !kept(marks))
		now.ran = false;
	if (!now.ran && !before->ran && !pass_all) {
		pass_tasks++;
		if (now.cpu_ns > before->cpu_ns) {
			hide(task->thread_info.cpu, now.cpu_ns - before->cpu_ns);
			*before = now;
		}
		return 0;
	}
	record.tid = task->pid;
	record.tgid = task->tgid;
	record.ppid = task->real_parent->tgid;
	record.cpu = task->thread_info.cpu;
	record.start_ns = task->start_boottime;
	record.cpu_ns = now.cpu_ns - before->cpu_ns;
	record.wait_ns = now.wait_ns - before->wait_ns;
	record.leader_start_ns = task->group_leader->start_boottime;
	record.parent_start_ns = task->real_parent->group_leader->start_boottime;
	record.cgroup_id = task->cgroups->dfl_cgrp->kn->id;
	if (task->flags & PF_KTHREAD)
		record.flags |= TASK_KTHREAD;
	if (marks & MARK_TREE)
		record.flags |= TASK_IN_TREE;
	if (kept(marks))
		record.flags |= TASK_KEPT;
	if (bpf_core_type_exists(struct affinity_context))
		record.flags |= asked_by(task) ? TASK_ASKED : TASK_NOT_ASKED;
	record.mask_words = mask_words;
	record.process_cgroup_id = task->group_leader->cgroups->dfl_cgrp->kn->id;
	record.uid = task->group_leader->real_cred->euid.val;
	record.real_uid = task->group_leader->real_cred->uid.val;
	__builtin_memcpy(record.comm, task->comm, sizeof(record.comm));
	__builtin_memcpy(record.command, task->group_leader->comm, sizeof(record.command));
	/* cpus_mask, not cpus_ptr, which is one CPU while the thread may not migrate.
	 * If the record does not fit, the kernel calls again with an empty buffer: keep the old time. */
	if (bpf_seq_write(seq, &record, sizeof(record)) || put_mask(seq, &task->cpus_mask))
		return 0;
	pass_tasks++;
	*before = now;
	return 0;
}

/* Emits the living watched threads. For threads just moved it notes the address of their affinity; for others it notes whether
 * anybody has set theirs since. */
SEC("iter/task")
int descendant_pass(struct bpf_iter__task *ctx)
{
	struct task_struct *trusted = ctx->task, *task = untrusted(struct task_struct, trusted);
	struct descendant_record record = {};
	struct watched *watched;

	if (!trusted || (task->flags & PF_EXITING))
		return 0;
	watched = watched_of(task);
	if (!watched || !(watched->marks & MARK_MOVED))
		return 0;
	if (own(task, watched))
		watched->marks |= MARK_OWN;
	else
		watched->asked = asked_by(task);
	record.start_ns = watched->start_ns;
	record.tid = task->pid;
	record.tgid = task->tgid;
	record.parent_tid = watched->parent_tid;
	record.origin = watched->origin;
	record.own = !!(watched->marks & MARK_OWN);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	u32 parent_tid = parent->pid, tid = child->pid;
	struct watched *watched = watched_of(parent);
	struct watched born = {};
	struct counters *c;
	u32 user;

	if (!watched)
		return 0;
	parent = untrusted(struct task_struct, parent);
	child = untrusted(struct task_struct, child);
	user = user_of(child);
	born.start_ns = child->start_boottime;
	born.asked = asked_by(child);
	born.tgid = child->tgid;
	born.parent_tid = parent_tid;
	born.marks = watched->marks;
	/* The child was copied a moment ago. If the parent's affinity was put back since, the child still has ours. */
	born.marks &= ~MARK_OWN;
	if (own(parent, watched) && same_mask(&parent->cpus_mask, &child->cpus_mask))
		born.marks |= MARK_OWN;
	born.origin = ORIGIN_BORN;
	born.share = user + 1;
	if (may_hold(&watched_shares, user, watched_entries) && !bpf_map_update_elem(&marked, &tid, &born, BPF_ANY)) {
		hold(&watched_shares, user);
		return 0;
	}
	c = counted();
	if (c)
		c->children_full++;
	return 0;
}

/* A thread that calls exec takes the id and start time of its process's first thread, which has exited by now. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, int before)
{
	u32 old = before, tid = task->pid;
	struct watched *watched;
	struct watched now;
	struct counters *c;

	if (old == tid)
		return 0;
	watched = bpf_map_lookup_elem(&marked, &old);
	if (!watched)
		return 0;
	now = *watched;
	now.start_ns = task->start_boottime;
	if (now.origin == ORIGIN_MARKED)
		now.parent_tid = old;
	now.origin = ORIGIN_EXEC;
	/* Deleted first: a full table then has room for the new entry. */
	bpf_map_delete_elem(&marked, &old);
	if (bpf_map_update_elem(&marked, &tid, &now, BPF_ANY)) {
		if (now.share)
			let_go(&watched_shares, now.share - 1);
		c = counted();
		if (c)
			c->children_full++;
	}
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	u32 tid = task->pid;
	struct counters *c = counted();
	struct times *before = bpf_task_storage_get(&times_before, task, 0, 0);
	u64 cpu = task->se.sum_exec_runtime;
	struct watched *watched;
	u32 share;

	if (c)
		c->exited_cpu_ns += before ? cpu - before->cpu_ns : cpu;
	watched = bpf_map_lookup_elem(&marked, &tid);
	share = watched ? watched->share : 0;
	if (watched && !bpf_map_delete_elem(&marked, &tid) && share)
		let_go(&watched_shares, share - 1);
	return 0;
}

#endif
