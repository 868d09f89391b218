/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* read, pread, readv, splice, sendfile, io_uring and libaio of page-cache files all call filemap_get_pages, which fills
 * batches of folios to copy from. */
#ifndef HOMENODE_READS_H
#define HOMENODE_READS_H

#include "walk.h"

/* The weight of the slice that is on (../slices.rs); 0: none. Needed because the kernel calls the program also while it
 * attaches or detaches it, which can take longer than a slice. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} slice_on SEC(".maps");

static __always_inline u32 slice_weight(void)
{
	u32 zero = 0, *on;

	if (steady)
		return WEIGHT_ONE;
	on = bpf_map_lookup_elem(&slice_on, &zero);
	return on ? *on : 0;
}

/* Which system call the task is in. Of a thread of the kernel or of io_uring: none of those below. */
static __always_inline u64 syscall_of(struct task_struct *task)
{
	return SYSCALL((struct pt_regs *)bpf_task_pt_regs(task));
}

/* Whether the caller hands on what it reads: the pages themselves go to a pipe or socket, and no CPU of the caller's touches the
 * bytes. copy_file_range copies them. Not known here: io_uring's splice, and calls of 32-bit programs. */
static __always_inline bool hands_on(struct task_struct *task)
{
	u64 nr = syscall_of(task);

	return nr == SYS_SENDFILE || nr == SYS_SPLICE;
}

/* --- fexit/filemap_get_pages: the batch and the request are arguments. --- */

struct batch {
	struct walk walk; /* uses only its sums and byte range */
	struct folio_batch *folios;
	u64 pos;
	u32 nr;
};

static __always_inline long batch_step(u32 i, struct batch *batch)
{
	struct walk *walk = &batch->walk;
	unsigned long flags;
	void *folio;
	u64 next;

	if (i >= batch->nr || batch->pos >= walk->end)
		return 1;
	folio = (void *)word_at((u64)batch->folios + bpf_core_field_offset(struct folio_batch, folios) + 8 * i);
	flags = folio_flags(folio);
	next = (((batch->pos >> PAGE_SHIFT) | ((1ULL << folio_order(folio, flags)) - 1)) + 1) << PAGE_SHIFT;
	if (next > walk->end)
		next = walk->end;
	walk_add(walk, node_of_flags(flags), next - batch->pos);
	batch->pos = next;
	return 0;
}

static long batch_step_loop(u64 i, struct batch *batch)
{
	return batch_step(i + 1, batch);
}

/* `splice`: the pages themselves are wanted, not copies; copy_file_range copies them afterwards. */
static __always_inline int batch_read(struct kiocb *iocb, u64 count, struct folio_batch *folios, bool splice)
{
	struct sampler *s = sampler();
	u32 slice = slice_weight();
	struct batch batch = {};
	struct inode *inode;
	s64 size;

	if (!slice || !s || !drawn(s, pages_of(count)))
		return 0;
	inode = iocb->ki_filp->f_mapping->host;
	access_init(&batch.walk.access, inode, false, take_read(s, pages_of(count), slice));
	batch.walk.access.slice = slice;
	batch.walk.access.handed = splice && syscall_of(bpf_get_current_task_btf()) != SYS_COPY_FILE_RANGE;
	batch.walk.start = iocb->ki_pos;
	batch.folios = folios;
	batch.nr = folios->nr;
	batch.pos = iocb->ki_pos;
	size = inode->i_size;
	if (size < 0)
		return 0;
	batch.walk.end = batch.pos + count;
	if (batch.walk.end > (u64)size || batch.walk.end < batch.pos)
		batch.walk.end = size;
	if (!batch_step(0, &batch) && batch.nr > 1)
		bpf_loop(64, batch_step_loop, &batch, 0);
	if (batch.pos >= batch.walk.end)
		batch.walk.access.call = CALL_ENDS | CALL_PLACED;
	/* Later batches of a call do not begin where the last call ended. */
	if (iocb->ki_pos == iocb->ki_filp->f_ra.prev_pos)
		batch.walk.access.call |= CALL_CONTINUES;
	walk_flush(&batch.walk);
	return 0;
}

SEC("fexit/filemap_get_pages")
int BPF_PROG(read_function, struct kiocb *iocb, unsigned long count, struct folio_batch *folios, bool splice)
{
	return batch_read(iocb, count, folios, splice);
}

/* Before 6.5, splice read into an iterator of a pipe, which takes the pages. */
static __always_inline bool into_pipe(struct iov_iter *to)
{
	return bpf_core_enum_value_exists(enum iter_type, ITER_PIPE) && to->iter_type == bpf_core_enum_value(enum iter_type, ITER_PIPE);
}

/* Before 6.3 the request was an iterator. */
SEC("fexit/filemap_get_pages")
int BPF_PROG(read_function_iter, struct kiocb *iocb, struct iov_iter *iter, struct folio_batch *folios)
{
	return batch_read(iocb, iter->count, folios, into_pipe(iter));
}

/* --- tp_btf/mm_filemap_get_pages: first and last page of the rest of the request. ---
 *
 * A batch whose last page the kernel takes away at that moment fires no tracepoint (filemap_get_pages returns what came before
 * it), so up to 30 pages are not counted. With DAMON's reclaim on a busy machine: 4 to 20 KB of a file of 4 MiB, in 3 of 100 tries. */

/* The exact byte range, if the system call is read or pread64. Used only if it fits the pages. Returns CALL_PLACED if the pages are
 * the first of the call, with CALL_CONTINUES if the call began where the last one ended. */
static __always_inline u32 exact_range(struct task_struct *task, struct address_space *mapping, u64 first, u64 last, u64 *start,
				       u64 *end)
{
#if defined(__TARGET_ARCH_x86)
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	u64 nr = SYSCALL(regs), count = regs->dx, pos;
	struct fdtable *fdt;
	u32 fd = regs->di;
	u64 file;

	if (nr != 0 /* read */ && nr != 17 /* pread64 */)
		return 0;
	fdt = untrusted(struct task_struct, task)->files->fdt;
	if (fd >= fdt->max_fds)
		return 0;
	file = word_at((u64)(fdt->fd + fd));
	pos = nr == 17 ? regs->r10 : word_at(file + bpf_core_field_offset(struct file, f_pos));
	if (!count || pos + count < pos || (pos + count - 1) >> PAGE_SHIFT != last || pos >> PAGE_SHIFT > first)
		return 0;
	if (pos > *start)
		*start = pos;
	*end = pos + count;
	if (pos >> PAGE_SHIFT != first)
		return 0;
	/* A stacked file system (overlayfs) opens another file below this one. */
	if (word_at(file + bpf_core_field_offset(struct file, f_mapping)) != (u64)mapping)
		return 0;
	if (word_at(file + bpf_core_field_offset(struct file, f_ra) + bpf_core_field_offset(struct file_ra_state, prev_pos)) != pos)
		return CALL_PLACED;
	return CALL_PLACED | CALL_CONTINUES;
#else
	return 0;
#endif
}

static __always_inline u64 syscalls(struct task_struct *task)
{
	return bpf_core_field_exists(task->ioac.syscr) ? task->ioac.syscr : 0;
}

/* By the low bits of the tid; threads with the same bits can at most lose a correction. 4,096 requests: 256 KB. */
#define OPEN_REQUESTS 4096
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OPEN_REQUESTS);
	__type(key, u32);
	__type(value, struct open_request);
} open_requests SEC(".maps");

static __always_inline struct open_request *open_request(struct task_struct *task)
{
	u32 slot = task->pid & (OPEN_REQUESTS - 1);

	return bpf_map_lookup_elem(&open_requests, &slot);
}

/* Whether these pages continue a request of which the program counted more than the kernel's batch held. The batch had ended at
 * a folio that was not uptodate or was marked for readahead, neither of which shows any more when the tracepoint fires. */
static __always_inline bool goes_on(struct open_request *open, struct address_space *mapping, struct task_struct *task,
				    u64 first, u64 last)
{
	return open->last == last && open->mapping == (u64)mapping && open->tid == (u32)task->pid &&
	       open->syscalls == syscalls(task) && open->handed == hands_on(task) && first > open->first && first < open->end;
}

/* Subtracts the pages that now come again. The caller lends the walk: two of them do not fit the stack. */
static __always_inline void take_back(struct open_request *open, struct address_space *mapping, u64 first, struct walk *walk)
{
	u64 start = first << PAGE_SHIFT, end = open->end << PAGE_SHIFT;

	if (end > open->end_byte)
		end = open->end_byte;
	access_init(&walk->access, mapping->host, false, -(s64)open->weight);
	walk->access.slice = open->slice;
	walk->access.handed = open->handed;
	if (open->end > open->last)
		walk->access.call = CALL_ENDS;
	walk->kind = WALK_READ;
	walk->folios = WALK_MAX;
	walk_range(walk, mapping, start, end);
	__builtin_memset(walk, 0, sizeof(*walk));
}

static __always_inline int pages_read(struct sampler *s, struct address_space *mapping, u64 first, u64 last, u64 pages, bool due,
				       u32 slice)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct open_request *open = open_request(task);
	struct walk walk = {};
	u64 start = first << PAGE_SHIFT, end = (last + 1) << PAGE_SHIFT;

	if (!open)
		return 0;
	if (goes_on(open, mapping, task, first, last)) {
		take_back(open, mapping, first, &walk);
		open->tid = 0;
	}
	if (!due)
		return 0;
	access_init(&walk.access, mapping->host, false, take_read(s, pages, slice));
	walk.access.slice = slice;
	walk.access.handed = hands_on(task);
	walk.access.call = exact_range(task, mapping, first, last, &start, &end);
	walk.kind = WALK_READ;
	walk.folios = bpf_core_field_size(struct folio_batch, folios) / sizeof(void *);
	walk_range(&walk, mapping, start, end);
	if (!walk.found && walk.end > start)
		/* The page was removed meanwhile. Rare. */
		unknown(&walk.access, (walk.end < start + 4096 ? walk.end : start + 4096) - start);
	s->open_last = NOT_OPEN;
	if (walk.index > first + 1) {
		s->open_last = last;
		open->mapping = (u64)mapping;
		open->tid = walk.access.key.tid;
		open->syscalls = syscalls(task);
		open->first = first;
		open->end = walk.index;
		open->last = last;
		open->end_byte = end;
		open->weight = walk.access.weight;
		open->slice = slice;
		open->handed = walk.access.handed;
	}
	return 0;
}

/* A read of one page, by far the most frequent event, that does not continue an earlier request. */
static __always_inline int page_read(struct sampler *s, struct address_space *mapping, u64 index, u32 slice)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 start = index << PAGE_SHIFT, end = start + (1 << PAGE_SHIFT), size, leaf;
	struct inode *inode = mapping->host;
	struct access access;
	void *folio;

	s->open_last = NOT_OPEN;
	access_init(&access, inode, false, take_read(s, 1, slice));
	access.slice = slice;
	access.handed = hands_on(task);
	access.call = CALL_ENDS | exact_range(task, mapping, index, index, &start, &end);
	size = inode->i_size;
	if (end > size)
		end = size;
	if (end <= start)
		return 0;
	folio = folio_under((unsigned long)mapping->i_pages.xa_head, index, &leaf);
	if (folio)
		account(&access, node_of_flags(folio_flags(folio)), end - start, start);
	else
		/* It was removed meanwhile. Rare. */
		unknown(&access, end - start);
	return 0;
}

/* An uncounted read of one page needs only the per-CPU word: it can at most be the end of a request. */
SEC("tp_btf/mm_filemap_get_pages")
int BPF_PROG(read_tracepoint, struct address_space *mapping, unsigned long first, unsigned long last)
{
	u64 pages = last - first < SIZE_MAX_PAGES ? last - first + 1 : SIZE_MAX_PAGES;
	struct sampler *s = sampler();
	struct open_request *open;
	struct task_struct *task;
	u32 slice = slice_weight();
	bool due;

	if (!slice || !s)
		return 0;
	mapping = untrusted(struct address_space, mapping);
	due = drawn(s, pages);
	if (first == last && s->open_last != last)
		return due ? page_read(s, mapping, first, slice) : 0;
	if (!due) {
		task = bpf_get_current_task_btf();
		open = open_request(task);
		if (!open || !goes_on(open, mapping, task, first, last))
			return 0;
	}
	return pages_read(s, mapping, first, last, pages, due, slice);
}

#endif
