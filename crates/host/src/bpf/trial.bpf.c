// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The smallest program of each kind: what the kernel says to them is what it says to the kind. None is loaded unless asked for. */
#include "intf.h"
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

SEC("?tp_btf/sched_process_exit")
int BPF_PROG(trial_tracepoint)
{
	return 0;
}

/* Its function is set by user space: one that the programs proper want. */
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

/* Where a write of the thread `trial_tid` left the file position when generic_perform_write returned. */
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
