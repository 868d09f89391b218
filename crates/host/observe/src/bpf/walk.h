/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Finds the folios of a range of a file, and their nodes.
 *
 * The walk reads the page cache's xarray without lock or references, like the kernel's lockless readers, but with loads that
 * cannot fault (word_at). If a page changes meanwhile, at worst the node of the page before is counted. Every loop is
 * bounded. */
#ifndef HOMENODE_WALK_H
#define HOMENODE_WALK_H

#include "account.h"
#include "pages.h"

/* 64 MiB of single pages. The rest of a longer write is reported as unknown. */
#define WALK_MAX 16384

enum walk_kind {
	WALK_READ,  /* ends at the first missing page, like a batch of the kernel */
	WALK_FAULT, /* skips the pages that fault-around skips: not uptodate, locked, marked for readahead */
	WALK_RANGE, /* skips holes */
};

struct walk {
	struct access access;
	u64 root;         /* mapping->i_pages.xa_head */
	u64 leaf;         /* xa_node of the last page found, if its entries are single pages */
	u64 leaf_base;    /* its first page */
	u64 index;        /* next page to look at */
	u64 start, end;   /* bytes of the file; end is exclusive */
	u64 bytes_0, bytes_1;
	u64 found;        /* bytes on known nodes */
	u32 node_0, node_1;
	u32 folios;       /* folios that may still be taken */
	u32 kind;
};

static __always_inline u32 node_of_flags(unsigned long flags)
{
	return node_bits ? flags >> (64 - (node_bits & 63)) : 0;
}

static __always_inline void *folio_at(struct walk *walk, u64 index)
{
	unsigned long entry;

	if (walk->leaf && walk->leaf_base == (index & ~63ULL)) {
		entry = slot_of(walk->leaf, index);
		return (entry & XA_TAG) ? NULL : (void *)entry;
	}
	walk->leaf = 0;
	walk->leaf_base = index & ~63ULL;
	return folio_under(walk->root, index, &walk->leaf);
}

/* Where the bytes of the first sum begin in the file, of a read without holes; `later` bytes have come after them. A correction
 * has none: the ranges that it is about are not known. */
static __always_inline u64 place_of_sum(struct walk *walk, u64 later)
{
	if (!ranges_wanted || walk->kind != WALK_READ || !walk->end || walk->access.weight < 0)
		return NO_PLACE;
	return walk->start + walk->found - later - walk->bytes_0;
}

static __always_inline void walk_add(struct walk *walk, u32 node, u64 bytes)
{
	walk->found += bytes;
	/* Each sum of a read is of one place. */
	if (ranges_wanted && walk->bytes_0 && walk->node_0 != node) {
		account(&walk->access, walk->node_0, walk->bytes_0, place_of_sum(walk, bytes));
		walk->bytes_0 = 0;
	}
	if (walk->bytes_0 && walk->node_0 != node) {
		if (walk->bytes_1 && walk->node_1 != node) {
			account(&walk->access, walk->node_1, walk->bytes_1, NO_PLACE);
			walk->bytes_1 = 0;
		}
		walk->node_1 = node;
		walk->bytes_1 += bytes;
	} else {
		walk->node_0 = node;
		walk->bytes_0 += bytes;
	}
}

/* One folio or one hole. 0: continue, 1: the walk has ended. A global function, which the verifier checks only once. */
__noinline int walk_step(struct walk *walk)
{
	u64 index, from, to, next;
	unsigned long flags;
	void *folio;

	if (!walk)
		return 1;
	index = walk->index;
	from = index << PAGE_SHIFT;
	next = index + 1;
	if (from >= walk->end || !walk->folios)
		return 1;
	folio = folio_at(walk, index);
	if (!folio) {
		if (walk->kind == WALK_READ)
			return 1;
		walk->index = next;
		return 0;
	}
	flags = folio_flags(folio);
	/* A batch has at least its first folio, which may be replaced just now (migration): then it is not uptodate for a moment. */
	if (walk->kind == WALK_READ && from > walk->start && !(flags & (1UL << bpf_core_enum_value(enum pageflags, PG_uptodate))))
		return 1;
	/* Folios of the page cache start at a multiple of their size. */
	next = (index | ((1ULL << folio_order(folio, flags)) - 1)) + 1;
	walk->index = next;
	walk->folios--;
	if (walk->kind == WALK_FAULT) {
		unsigned long bad = 1UL << bpf_core_enum_value(enum pageflags, PG_locked) |
				    1UL << bpf_core_enum_value(enum pageflags, PG_readahead);

		if ((flags & bad) || !(flags & (1UL << bpf_core_enum_value(enum pageflags, PG_uptodate))))
			return 0;
	}
	if (from < walk->start)
		from = walk->start;
	to = next << PAGE_SHIFT;
	if (to > walk->end)
		to = walk->end;
	if (to > from)
		walk_add(walk, node_of_flags(flags), to - from);
	return 0;
}

static long walk_step_loop(u64 i, struct walk *walk)
{
	int ended = walk_step(walk);

	/* The compiler knows that this is 0 or 1; the verifier does not. */
	barrier_var(ended);
	return ended ? 1 : 0;
}

static __always_inline void walk_flush(struct walk *walk)
{
	if (walk->bytes_0)
		account(&walk->access, walk->node_0, walk->bytes_0, place_of_sum(walk, 0));
	if (walk->bytes_1)
		account(&walk->access, walk->node_1, walk->bytes_1, NO_PLACE);
}

/* Counts bytes [start, end) of a file; then walk->index is the first page not inspected. */
static __always_inline void walk_range(struct walk *walk, struct address_space *mapping, u64 start, u64 end)
{
	u64 size = mapping->host->i_size;

	walk->root = (u64)mapping->i_pages.xa_head;
	walk->start = start;
	/* A write's hook can fire before the file's new size is stored. */
	if (!walk->access.write && end > (u64)size)
		end = size;
	walk->end = end;
	walk->index = start >> PAGE_SHIFT;
	/* A read of one page, by far the most frequent event, needs no loop. */
	if (!walk_step(walk) && (walk->index << PAGE_SHIFT) < walk->end && walk->folios)
		bpf_loop(WALK_MAX, walk_step_loop, walk, 0);
	/* A correction says for itself whether the call was counted. */
	if (walk->kind == WALK_READ && walk->access.weight > 0 && (walk->index << PAGE_SHIFT) >= walk->end)
		walk->access.call |= CALL_ENDS;
	walk_flush(walk);
}

#endif
