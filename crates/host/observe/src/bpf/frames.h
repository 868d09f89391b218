/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The frame of an address, by its page table, and the node of a frame. x86-64 only. */
#ifndef HOMENODE_FRAMES_H
#define HOMENODE_FRAMES_H

#include "walk.h"

/* ../frames.rs finds these. */
const volatile u64 direct_map = 0;  /* where the kernel maps all physical memory */
const volatile u64 memory_end = 0;  /* the physical address at which that ends */
const volatile bool five_levels = false;
/* Frames [first, end) are memory of a node. They rise and do not overlap; unused ones are 0. */
struct frames {
	u64 first, end;
	u32 node;
	u32 pad;
};
const volatile struct frames frames[FRAMES_MAX] = {};

#define NO_FRAME (~0ULL)

/* Where the lowest entry for an address is, below the table `top`: a word of kernel memory. 0 if a table is missing. `bytes`: what
 * the entry maps. */
static __always_inline u64 entry_for(u64 top, u64 address, u64 *bytes)
{
	u64 table = top, at, entry;

#pragma unroll
	for (int level = 4; level >= 0; level--) {
		u32 shift = PAGE_SHIFT + 9 * level;

		if (level == 4 && !five_levels)
			continue;
		at = table + 8 * ((address >> shift) & 511);
		*bytes = 1ULL << shift;
		if (level == 0)
			return at;
		entry = word_at(at);
		if (!(entry & ENTRY_PRESENT))
			return 0;
		if (level < 3 && entry & ENTRY_HUGE)
			return at;
		if ((entry & ENTRY_ADDRESS) >= memory_end)
			return 0;
		table = direct_map + (entry & ENTRY_ADDRESS);
	}
	return 0;
}

/* The frame that an entry points to: of a page, or a part of a huge page of `bytes`. */
static __always_inline u64 frame_in(u64 entry, u64 address, u64 bytes)
{
	return ((entry & ENTRY_ADDRESS & ~(bytes - 1)) | (address & (bytes - 1))) >> PAGE_SHIFT;
}

/* The frame of an address; NO_FRAME if nothing is mapped there. */
static __always_inline u64 frame_of(u64 top, u64 address)
{
	u64 bytes = 0, at = entry_for(top, address, &bytes), entry = at ? word_at(at) : 0;

	return entry & ENTRY_PRESENT ? frame_in(entry, address, bytes) : NO_FRAME;
}

static __always_inline u32 node_of_frame(u64 frame)
{
	for (u32 i = 0; i < FRAMES_MAX && frames[i].end; i++)
		if (frame >= frames[i].first && frame < frames[i].end)
			return frames[i].node;
	return NO_NODE;
}

#endif
