/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* User space sets these before it loads the programs; the verifier then removes code that is switched off. */
#ifndef HOMENODE_TUNABLES_H
#define HOMENODE_TUNABLES_H

#include "kernel.h"

/* Count every event: k stays 0. */
const volatile bool exact = false;

/* The hook on the read path stays attached: there is one slice, without end (../slices.rs). */
const volatile bool steady = false;

const volatile u32 counted_per_s = COUNTED_PER_S;

/* Adapt k after this many counted events, or after this time, to follow changes within a window. */
const volatile u32 adapt_counted = 32;
const volatile u64 adapt_ns = 1000000000ULL / 64;

/* One page in 1,024 at the least: enough for 16 million events a second and CPU, more than any machine has. */
const volatile u32 k_max = 10;

/* Width of the node id at the very top of page->flags (include/linux/page-flags-layout.h; 64-bit distribution kernels use
 * SPARSEMEM_VMEMMAP, hence there is no section number above it). */
const volatile u32 node_bits = 0;

/* Words of an affinity mask: possible CPUs / 64. */
const volatile u32 mask_words = 1;

/* Count also which ranges of files are read. */
const volatile bool ranges_wanted = false;

/* Whether generic_perform_write and iomap_file_buffered_write advance the file position before they return: since 6.5, and in
 * some earlier long-term kernels. */
const volatile bool generic_pos_advanced = true;
const volatile bool iomap_pos_advanced = true;

/* Whether the tracepoints of these file systems' own write paths are attached. Their pages must not count again when dirtied. */
const volatile bool ext4_hooked = false;
const volatile bool xfs_hooked = false;
/* Whether generic_perform_write and iomap_file_buffered_write are hooked. */
const volatile bool generic_hooked = false;

/* exp_table[i] = -ln((i + 0.5) / 1024) and exp_scale[k] = -1 / ln(1 - 2^-k), both in 1/65,536ths. They turn one
 * random number into an exponentially distributed distance to the next page drawn. */
#define EXP_BITS 10
const volatile u32 exp_table[1 << EXP_BITS] = {};
const volatile u32 exp_scale[16] = {};

/* weights[k][u] = 1 / (1 - (1 - 2^-k)^u) in 1/1024ths: an event of u pages is counted if any of them is drawn. */
#define SIZE_MAX_PAGES 32
const volatile u32 weights[16][SIZE_MAX_PAGES] = {};

/* Entries of a table, and those of them that may name a file. */
const volatile u32 table_entries = 0;
const volatile u32 file_entries = 0;
/* Those of the tables of ranges and of watched threads. */
const volatile u32 range_entries = 0;
const volatile u32 watched_entries = 0;

/* The part of the time that the hook on the read path may take, in 1/1024ths, and what it may take at once, ns. */
const volatile u32 read_budget = 0;
const volatile u32 read_burst_ns = 0;

/* What this hook adds to a read that it does not count, ns; 0: not measured yet. And to one that it counts. */
volatile u32 read_ns = 0;
const volatile u32 read_count_ns = 0;

/* Makes it impossible to foresee who has which place in the counts of entries. */
const volatile u32 places_seed = 0;

/* The table that the programs fill now. */
volatile u32 epoch = 0;

/* The process that loaded these programs; 0: not known. */
const volatile u32 own_tgid = 0;

/* The inode of the program that it runs: set by each pass over all tasks. */
u64 own_program = 0;

/* What processes that run this program touch counts for nobody; 0: there is none. */
volatile u64 ignored_program = 0;
/* The next pass shows every thread. */
volatile u32 pass_all = 0;

#endif
