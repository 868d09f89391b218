// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* How long reads of the page cache take: one in READS_PER_TIMED, from the beginning of filemap_read to its return, by process and
 * length of time. */
#include "intf.h"
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* A read that is timed. */
struct reading {
	u64 begun_ns;
	u64 iocb; /* that of the call */
};

/* Reads that are timed and have not ended, by thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct reading);
} begun SEC(".maps");

/* With TIMES_OF_PIDS: the processes whose reads are timed. User space sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} pids SEC(".maps");

/* With TIMES_OF_CGROUP: the control group whose reads are timed, and of all below it. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} cgroup SEC(".maps");

/* Whose reads are timed: TIMES_OF_… */
const volatile u32 times_of = TIMES_OF_ALL;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TIMES_ENTRIES);
	__type(key, struct time_key);
	__type(value, u64);
} times SEC(".maps");

/* Timed reads for which there was no room. */
u64 times_lost = 0;

/* The number of the highest bit that is set; 0 for 0. */
static __always_inline u32 highest_bit(u64 v)
{
	u32 n = 0;

	if (v >> 32) { v >>= 32; n += 32; }
	if (v >> 16) { v >>= 16; n += 16; }
	if (v >> 8) { v >>= 8; n += 8; }
	if (v >> 4) { v >>= 4; n += 4; }
	if (v >> 2) { v >>= 2; n += 2; }
	return n + (v >> 1);
}

/* Each power of two has 2^TIME_BITS buckets; shorter times have one for each nanosecond. */
static __always_inline u32 bucket_of(u64 ns)
{
	u32 high = highest_bit(ns);

	if (high < TIME_BITS)
		return ns;
	return ((high - TIME_BITS) << TIME_BITS) + (ns >> (high - TIME_BITS));
}

static __always_inline bool wanted(u32 pid)
{
	if (times_of == TIMES_OF_PIDS)
		return bpf_map_lookup_elem(&pids, &pid);
	if (times_of == TIMES_OF_CGROUP)
		return bpf_current_task_under_cgroup(&cgroup, 0) == 1;
	return true;
}

SEC("fentry/filemap_read")
int BPF_PROG(read_begins, struct kiocb *iocb)
{
	u64 id = bpf_get_current_pid_tgid();
	struct reading first = {}, *reading;
	u32 tid = id;

	reading = bpf_map_lookup_elem(&begun, &tid);
	if (bpf_get_prandom_u32() & (READS_PER_TIMED - 1) || !wanted(id >> 32)) {
		/* The end of the last one was not seen: that of this one is not its end. */
		if (reading)
			bpf_map_delete_elem(&begun, &tid);
		return 0;
	}
	if (!reading) {
		/* Only this thread adds it. */
		bpf_map_update_elem(&begun, &tid, &first, BPF_ANY);
		reading = bpf_map_lookup_elem(&begun, &tid);
	}
	if (!reading) {
		__sync_fetch_and_add(&times_lost, 1);
		return 0;
	}
	reading->iocb = (u64)iocb;
	/* Last, so that none of this is in the time. */
	reading->begun_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("fexit/filemap_read")
int BPF_PROG(read_ends, struct kiocb *iocb, struct iov_iter *iter, long already, long ret)
{
	/* First, so that none of this is in the time. */
	u64 now = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid(), one = 1, *count;
	struct time_key key = { .pid = id >> 32 };
	struct reading *reading;
	u32 tid = id;

	reading = bpf_map_lookup_elem(&begun, &tid);
	if (!reading || reading->iocb != (u64)iocb)
		return 0;
	key.bucket = bucket_of(now - reading->begun_ns);
	bpf_map_delete_elem(&begun, &tid);
	/* What read nothing says nothing. */
	if (ret <= 0)
		return 0;
	count = bpf_map_lookup_elem(&times, &key);
	if (!count) {
		if (!bpf_map_update_elem(&times, &key, &one, BPF_NOEXIST))
			return 0;
		/* Another thread has just added it, or there is no room. */
		count = bpf_map_lookup_elem(&times, &key);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		__sync_fetch_and_add(&times_lost, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
