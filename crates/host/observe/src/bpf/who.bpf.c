// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Who a thread is: the pass asks for one task by its id, and takes no lock of it. */
#include "intf.h"
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define PIDTYPE_SID 3 /* since 4.19 */

SEC("iter/task")
int who(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct who who = {};

	/* A zombie has ended. */
	if (!task || task->exit_state)
		return 0;
	who.start_ns = task->start_boottime;
	who.tid = task->pid;
	who.ppid = task->real_parent->tgid;
	who.session = BPF_CORE_READ(task, signal, pids[PIDTYPE_SID], numbers[0].nr);
	who.cpu = task->thread_info.cpu;
	who.kernel_thread = !!(task->flags & PF_KTHREAD);
	__builtin_memcpy(who.comm, task->comm, sizeof(who.comm));
	bpf_seq_write(ctx->meta->seq, &who, sizeof(who));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
