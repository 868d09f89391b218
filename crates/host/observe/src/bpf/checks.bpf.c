// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Programs for the tests only (tests/observe/programs.rs). A test loads the one it needs. */
#include "intf.h"
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "device.h"

/* Set before loading. */
const volatile u32 own_pid = 0;
const volatile u32 asked_fd = 0;

int device_node = 0;
u32 files_seen = 0;

/* Calls node_of_device() for the file that this process has open as `asked_fd`. */
SEC("?iter/task_file")
int device_of_file(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;

	if (!task || !file || task->pid != (int)own_pid || ctx->fd != asked_fd)
		return 0;
	files_seen++;
	device_node = node_of_device(file->f_inode);
	return 0;
}

/* Stays inside for a third of a second. */
#define HOLD_NS 333000000ULL
u32 inside = 0;

static long hold_on(u64 i, u64 *until)
{
	return bpf_ktime_get_ns() >= *until;
}

SEC("?raw_tp/sched_process_exit")
int hold(void *ctx)
{
	u64 until = bpf_ktime_get_ns() + HOLD_NS;

	__sync_fetch_and_add(&inside, 1);
	bpf_loop(1 << 23, hold_on, &until, 0);
	__sync_fetch_and_add(&inside, -1);
	return 0;
}

/* Waits for a page of user memory within the program, while the kernel keeps the thread from migrating. */
struct user_word {
	u64 address;
};

SEC("?syscall")
int copy_user_word(struct user_word *from)
{
	u64 word;

	return bpf_copy_from_user(&word, sizeof(word), (void *)from->address);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
