// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* How long reads of the page cache take: one in READS_PER_TIMED, from the beginning of filemap_read to its return, by process and
 * length of time. */
#include "intf.h"
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* Reads that are timed and have not ended, by thread. A thread ends no call without a return, so none stays. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, u64);
} begun SEC(".maps");

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

SEC("fentry/filemap_read")
int BPF_PROG(read_begins)
{
	u32 tid = bpf_get_current_pid_tgid();
	u64 now;

	if (bpf_get_prandom_u32() & (READS_PER_TIMED - 1))
		return 0;
	now = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&begun, &tid, &now, BPF_ANY))
		__sync_fetch_and_add(&times_lost, 1);
	return 0;
}

SEC("fexit/filemap_read")
int BPF_PROG(read_ends, struct kiocb *iocb, struct iov_iter *iter, long already, long ret)
{
	u64 id = bpf_get_current_pid_tgid(), one = 1, *at, *count;
	struct time_key key = { .pid = id >> 32 };
	u32 tid = id;

	at = bpf_map_lookup_elem(&begun, &tid);
	if (!at)
		return 0;
	key.bucket = bucket_of(bpf_ktime_get_ns() - *at);
	bpf_map_delete_elem(&begun, &tid);
	/* What read nothing says nothing. */
	if (ret <= 0)
		return 0;
	count = bpf_map_lookup_elem(&times, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&times, &key, &one, BPF_NOEXIST))
		__sync_fetch_and_add(&times_lost, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
