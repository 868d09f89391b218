/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Adds up what is read from each range of a file, by the node of its data and that of its readers.
 *
 * Of the reads that are counted, one in RANGE_ONE_IN is also counted here, and weighs as many times as much: a hot range is read
 * often enough. So at most 2,048 updates a second and CPU take 0.04 % of the CPU, at 200 ns each. User space empties the table in each
 * window. A user whose share of it is full gets no further ranges in that window. */
#ifndef HOMENODE_RANGES_H
#define HOMENODE_RANGES_H

#include "shares.h"

#define NO_PLACE (~0ULL)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct range_key);
	__type(value, s64);
} ranges SEC(".maps");
struct shares range_shares = {};

/* A read of more counts for its first ranges only. */
#define RANGES_OF_READ 16

/* A read of so many bytes from this place on, all of them on one node. */
static __always_inline void count_range(struct range_key *key, u64 at, s64 bytes, s64 weight)
{
	struct counters *c = counted();
	s64 part, *sum;
	long error;
	u32 user;

	if (!exact) {
		if (bpf_get_prandom_u32() % RANGE_ONE_IN)
			return;
		weight *= RANGE_ONE_IN;
	}
	user = user_of(current_task());
	for (int i = 0; i < RANGES_OF_READ && bytes > 0; i++) {
		part = (1 << RANGE_SHIFT) - (at & ((1 << RANGE_SHIFT) - 1));
		if (part > bytes)
			part = bytes;
		key->range = at >> RANGE_SHIFT;
		at += part;
		bytes -= part;
		part = part * weight >> WEIGHT_SHIFT;
		sum = bpf_map_lookup_elem(&ranges, key);
		if (sum)
			__sync_fetch_and_add(sum, part);
		else if (!may_hold(&range_shares, user, range_entries)) {
			if (c)
				c->unranged_bytes += part;
		} else {
			error = bpf_map_update_elem(&ranges, key, &part, BPF_NOEXIST);
			if (!error)
				hold(&range_shares, user);
			else if (error != -EEXIST && c)
				c->unranged_bytes += part;
			/* Another CPU has just made the entry: this read is lost. Rare. */
		}
	}
}

#endif
