// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The smallest program of each kind. If the kernel refuses it, it refuses the kind. User space loads one at a time. */
#include "intf.h"
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

SEC("?tp_btf/sched_process_exit")
int BPF_PROG(trial_tracepoint)
{
	return 0;
}

/* User space sets the function: one that the real programs hook. */
SEC("?fexit")
int BPF_PROG(trial_function)
{
	return 0;
}

SEC("?iter/task")
int trial_pass(void *ctx)
{
	return 0;
}

/* The file position after a write by the thread `trial_tid`, when generic_perform_write returns. */
const volatile u32 trial_tid = 0;
s64 trial_pos = -1;

SEC("?fexit/generic_perform_write")
int BPF_PROG(trial_write, struct kiocb *iocb, struct iov_iter *iter, long written)
{
	if (bpf_get_current_task_btf()->pid == (int)trial_tid)
		trial_pos = iocb->ki_pos;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
