/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reads of OpenZFS. They do not pass through the page cache: zpl_iter_read copies from ZFS's own cache (ARC) by one
 * zfs_uiomove(p, n, rw, uio) per block, where p is the cached data's address. OpenZFS seldom has BTF, so these are kprobes, whose
 * arguments are numbers.
 *
 * The copied pages are in the direct map or in vmalloc's area; the kernel's page table has the frame of both. */
#ifndef HOMENODE_ARC_H
#define HOMENODE_ARC_H

#include "frames.h"

/* What a thread's latest zpl_iter_read was called with. It may have returned, but then no zfs_uiomove has its iterator. */
struct arc_call {
	u64 to;
	u64 count;
	u64 file;
	u64 end;        /* where it ends, unless the file ends before */
	bool continues; /* it began where the call before ended */
};
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct arc_call);
} arc_calls SEC(".maps");

#if defined(__TARGET_ARCH_x86)

/* A read of a file whose inode a kprobe has found: a number to the verifier. */
static __always_inline void access_by_number(struct access *w, struct inode *inode, s64 weight)
{
	int writing = BPF_CORE_READ(inode, i_writecount.counter);

	access_begin(w, false, weight);
	w->key.dev = BPF_CORE_READ(inode, i_sb, s_dev);
	w->key.ino = BPF_CORE_READ(inode, i_ino);
	w->generation = BPF_CORE_READ(inode, i_generation);
	w->opens = 0;
	if (bpf_core_field_exists(inode->i_readcount))
		w->opens = BPF_CORE_READ(inode, i_readcount.counter) + (writing > 0 ? writing : 0);
}

struct copy {
	struct walk walk; /* uses only its sums */
	u64 top;          /* the highest table of the kernel's addresses */
	u64 at, end;
	u64 stride;
};

/* A block is up to 16 MiB. These many of its pages stand for all. */
#define LOOKED_AT 16

/* A global function, which the verifier checks only once. */
__noinline int copy_step(struct copy *copy)
{
	u64 next;
	u32 node;

	if (!copy || copy->at >= copy->end)
		return 1;
	next = (copy->at & ~((1ULL << PAGE_SHIFT) - 1)) + copy->stride;
	if (next > copy->end)
		next = copy->end;
	node = node_of_frame(frame_of(copy->top, copy->at));
	if (node == NO_NODE)
		unknown(&copy->walk.access, next - copy->at);
	else
		walk_add(&copy->walk, node, next - copy->at);
	copy->at = next;
	return 0;
}

static long copy_step_loop(u64 i, struct copy *copy)
{
	int ended = copy_step(copy);

	barrier_var(ended);
	return ended ? 1 : 0;
}

SEC("kprobe/zpl_iter_read")
int arc_call(struct pt_regs *ctx)
{
	struct kiocb *iocb = (void *)ctx->di;
	struct iov_iter *to = (void *)ctx->si;
	struct arc_call *call;
	u64 file, begin;

	call = bpf_task_storage_get(&arc_calls, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call)
		return 0;
	file = (u64)BPF_CORE_READ(iocb, ki_filp);
	begin = BPF_CORE_READ(iocb, ki_pos);
	call->to = (u64)to;
	call->count = BPF_CORE_READ(to, count);
	/* OpenZFS does not keep the file's prev_pos. */
	call->continues = call->file == file && call->end == begin;
	call->file = file;
	call->end = begin + call->count;
	return 0;
}

#define UIO_READ 0

SEC("kprobe/zfs_uiomove")
int arc_read(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 bytes = ctx->si, uio = ctx->cx, left, pages;
	struct sampler *s = sampler();
	struct arc_call *call;
	struct iov_iter *to;
	struct inode *inode;
	struct file *file;
	struct copy copy = {};

	if ((u32)ctx->dx != UIO_READ || !s)
		return 0;
	call = bpf_task_storage_get(&arc_calls, task, 0, 0);
	/* Its first member is the iterator. Links and attributes are read without one. */
	if (!call || !call->to || word_at(uio) != call->to)
		return 0;
	to = (void *)call->to;
	left = BPF_CORE_READ(to, count);
	if (bytes > left)
		bytes = left;
	if (!bytes || !drawn(s, pages_of(bytes)))
		return 0;
	file = (void *)call->file;
	inode = BPF_CORE_READ(file, f_mapping, host);
	access_by_number(&copy.walk.access, inode, take(s, pages_of(bytes)));
	copy.walk.access.slice = WEIGHT_ONE;
	if (left == call->count)
		copy.walk.access.call = call->continues ? CALL_PLACED | CALL_CONTINUES : CALL_PLACED;
	if (bytes == left || call->end - left + bytes >= (u64)BPF_CORE_READ(inode, i_size))
		copy.walk.access.call |= CALL_ENDS;
	copy.top = (u64)BPF_CORE_READ(task, active_mm, pgd);
	copy.at = ctx->di;
	copy.end = copy.at + bytes;
	pages = ((copy.end - 1) >> PAGE_SHIFT) - (copy.at >> PAGE_SHIFT) + 1;
	copy.stride = exact ? 1 << PAGE_SHIFT : (pages + LOOKED_AT - 1) / LOOKED_AT << PAGE_SHIFT;
	bpf_loop(WALK_MAX, copy_step_loop, &copy, 0);
	walk_flush(&copy.walk);
	return 0;
}

#else

/* User space does not load these: it does not know the page table. */
SEC("kprobe/zpl_iter_read")
int arc_call(void *ctx)
{
	return 0;
}

SEC("kprobe/zfs_uiomove")
int arc_read(void *ctx)
{
	return 0;
}

#endif
#endif
