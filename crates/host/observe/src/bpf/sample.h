/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Draws one page in 2^k, and counts the event (a read, a fault, a write) that it belongs to.
 *
 * An event of u pages is counted with probability 1 - (1 - 2^-k)^u and weighs the inverse (Horvitz and Thompson, 1952). So
 * sums are unbiased, and large events, which would make them noisy, are nearly always counted. The distance from one drawn
 * page to the next is geometric: every page has the same chance whatever came before, no pattern of the workload can evade
 * it, and k may change at any counted event. An event that is not counted costs one subtraction from a per-CPU word. */
#ifndef HOMENODE_SAMPLE_H
#define HOMENODE_SAMPLE_H

#include "tunables.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sampler);
} samplers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counters);
} counters SEC(".maps");

static __always_inline struct sampler *sampler(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&samplers, &zero);
}

static __always_inline struct counters *counted(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&counters, &zero);
}

/* Whether to count an event of this many pages. */
static __always_inline bool drawn(struct sampler *s, u64 pages)
{
	if (exact)
		return true;
	s->countdown -= pages;
	return s->countdown <= 0;
}

/* Keeps counted events within counted_per_s. Up to a second's worth can be used at once. */
static __always_inline void adapt(struct sampler *s)
{
	u64 now, passed;
	s64 earned;

	/* Without sampling, reads the clock only now and then. */
	if (s->k == 0 && s->counted < adapt_counted)
		return;
	now = bpf_ktime_get_ns();
	passed = now - s->since;
	if (s->counted < adapt_counted && passed < adapt_ns)
		return;
	if (passed > 1000000000ULL)
		passed = 1000000000ULL;
	earned = counted_per_s * passed / 1000000000ULL;
	s->budget += earned - (s64)s->counted;
	if (s->budget > (s64)counted_per_s)
		s->budget = counted_per_s;
	if (s->budget > (s64)counted_per_s / 2)
		s->k = 0;
	else if (s->budget > 0 && s->k > 0)
		s->k--;
	else if (s->budget <= 0 && earned < (s64)s->counted && s->k < k_max)
		s->k++;
	s->counted = 0;
	s->since = now;
}

/* For an event that was drawn: draws the next page, and returns the weight of this event. */
static __always_inline u64 take(struct sampler *s, u64 pages)
{
	struct counters *c;
	u64 weight, e;

	if (exact)
		return 1 << WEIGHT_SHIFT;
	pages = pages ? (pages - 1 < SIZE_MAX_PAGES ? pages - 1 : SIZE_MAX_PAGES - 1) : 0;
	weight = weights[s->k & 15][pages & (SIZE_MAX_PAGES - 1)];
	c = counted();
	if (c) {
		c->counted++;
		c->stood_for += weight;
	}
	s->counted++;
	adapt(s);
	if (s->k == 0) {
		s->countdown = 1;
		return weight;
	}
	e = exp_table[bpf_get_prandom_u32() >> (32 - EXP_BITS)];
	s->countdown = 1 + ((e * exp_scale[s->k & 15]) >> 32);
	return weight;
}

/* Tells user space that the hook on the read path takes more than its budget. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} over_budget SEC(".maps");

/* What the hook took for reads that one counted read stands for. Reads the clock once in 1,024 reads. */
static __always_inline void spend(struct sampler *s, u64 weight)
{
	u64 now;

	s->reads += weight;
	s->reads_counted++;
	if (s->reads < 1024ULL << WEIGHT_SHIFT || !read_ns)
		return;
	now = bpf_ktime_get_ns();
	s->debt += (s->reads * read_ns >> WEIGHT_SHIFT) + s->reads_counted * read_count_ns -
		   ((now - s->paid) * read_budget >> 10);
	if (s->debt < 0)
		s->debt = 0;
	s->reads = 0;
	s->reads_counted = 0;
	s->paid = now;
	if (s->debt <= (s64)read_burst_ns)
		return;
	s->debt = 0;
	bpf_ringbuf_output(&over_budget, &now, sizeof(now), 0);
}

/* The same for the hook on the read path, in a slice of this weight. */
static __always_inline u64 take_read(struct sampler *s, u64 pages, u32 slice)
{
	u64 weight = take(s, pages);
	struct counters *c;

	if (steady)
		return weight;
	c = counted();
	/* Serves to choose the slices. */
	if (c)
		c->reads += weight;
	if (slice == WEIGHT_ONE)
		spend(s, weight);
	return weight * slice >> WEIGHT_SHIFT;
}

/* Pages of an event of this many bytes, for drawing: at most SIZE_MAX_PAGES. */
static __always_inline u64 pages_of(u64 bytes)
{
	u64 pages = (bytes + 4095) >> PAGE_SHIFT;

	return pages < SIZE_MAX_PAGES ? pages : SIZE_MAX_PAGES;
}

#endif
