// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The smallest program of each kind. If the kernel refuses it, it refuses the kind. User space loads those that it needs. */
#include "intf.h"
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#include "pages.h"

SEC("?tp_btf/sched_process_exit")
int BPF_PROG(probe_tracepoint)
{
	return 0;
}

/* User space sets the function: one that the real programs hook. */
SEC("?fexit")
int BPF_PROG(probe_function)
{
	return 0;
}

SEC("?iter/task")
int probe_pass(void *ctx)
{
	return 0;
}

/* The file position after a write by the thread `probe_tid`, when generic_perform_write returns. */
const volatile u32 probe_tid = 0;
s64 probe_pos = -1;

SEC("?fexit/generic_perform_write")
int BPF_PROG(probe_write, struct kiocb *iocb, struct iov_iter *iter, long written)
{
	if (bpf_get_current_task_btf()->pid == (int)probe_tid)
		probe_pos = iocb->ki_pos;
	return 0;
}

/* The flags of the first page of the file that the thread `probe_tid` has open as `probe_fd`; 0: there is none. */
const volatile u32 probe_fd = 0;
u64 probe_flags = 0;

SEC("?iter/task")
int probe_page(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u64 file, mapping, leaf;
	struct fdtable *fdt;
	void *folio;

	if (!task || task->pid != (int)probe_tid)
		return 0;
	fdt = task->files->fdt;
	if (probe_fd >= fdt->max_fds)
		return 0;
	file = word_at((u64)(fdt->fd + probe_fd));
	mapping = word_at(file + bpf_core_field_offset(struct file, f_mapping));
	folio = folio_under(word_at(mapping + bpf_core_field_offset(struct address_space, i_pages.xa_head)), 0, &leaf);
	if (folio)
		probe_flags = folio_flags(folio);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
