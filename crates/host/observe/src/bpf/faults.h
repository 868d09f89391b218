/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Page faults of mapped files. A read fault maps up to 16 pages around the address (fault-around): those that are cached and
 * ready, and not mapped yet. Other pages go through filemap_fault. Each page counts when it is mapped; further reads of a mapped
 * page cause no event. */
#ifndef HOMENODE_FAULTS_H
#define HOMENODE_FAULTS_H

#include "frames.h"

/* Shared anonymous memory, System V segments and memfds are not files of the user. */
static __always_inline bool is_file(struct inode *inode)
{
	return !(inode->i_sb->s_flags & SB_KERNMOUNT);
}

#define PMD_PAGES 512UL
#define PMD_LEAF 0x81UL /* x86: present, and a page of its own */

/* Counts the pages of a range that fault-around does not skip, also those that were mapped before. The walk is the caller's, all
 * zero: with one of each, the stack is too large for Linux before 6.13, which allows 512 bytes for a whole chain of calls. */
static __always_inline int window_mapped(struct walk *walk, struct address_space *mapping, u64 first, u64 last)
{
	u64 pages = pages_of((last + 1 - first) << PAGE_SHIFT);
	struct sampler *s = sampler();

	if (!s || !drawn(s, pages))
		return 0;
	access_init(&walk->access, mapping->host, false, take(s, pages));
	if (!is_file(mapping->host))
		return 0;
	walk->kind = WALK_FAULT;
	walk->folios = WALK_MAX;
	walk_range(walk, mapping, first << PAGE_SHIFT, (last + 1) << PAGE_SHIFT);
	return 0;
}

/* --- Functions: the one that fills in entries of the page table has the pages as its arguments. --- */

static __always_inline int entries_set(struct vm_fault *vmf, void *page, u64 pages, u64 address)
{
	s64 before = (address >> PAGE_SHIFT) - (vmf->address >> PAGE_SHIFT);
	u64 start = (vmf->pgoff + before) << PAGE_SHIFT, end = start + (pages << PAGE_SHIFT);
	struct sampler *s = sampler();
	struct inode *inode;
	struct access w;

	/* What filemap_fault found is in vmf->page, and counts there. */
	if (vmf->page || !s || !drawn(s, pages_of(end - start)))
		return 0;
	inode = vmf->vma->vm_file->f_mapping->host;
	access_init(&w, inode, false, take(s, pages_of(end - start)));
	if (end > (u64)inode->i_size)
		end = inode->i_size;
	if (end > start && is_file(inode))
		account(&w, node_of_flags(folio_flags(page)), end - start, NO_PLACE);
	return 0;
}

/* Since 6.6. */
SEC("fentry/set_pte_range")
int BPF_PROG(entries_function, struct vm_fault *vmf, struct folio *folio, struct page *page, unsigned int pages,
	     unsigned long address)
{
	return entries_set(vmf, page, pages, address);
}

SEC("fentry/do_set_pte")
int BPF_PROG(entry_function, struct vm_fault *vmf, struct page *page, unsigned long address)
{
	return entries_set(vmf, page, 1, address);
}

/* For the 2 MiB mapping of a large folio, which is an entry of the table above. */
SEC("fexit/filemap_map_pages")
int BPF_PROG(map_function, struct vm_fault *vmf, unsigned long first, unsigned long last)
{
#if defined(__TARGET_ARCH_x86)
	unsigned long pmd = 0;

	bpf_probe_read_kernel(&pmd, sizeof(pmd), vmf->pmd);
	if ((pmd & PMD_LEAF) == PMD_LEAF) {
		struct walk walk = {};

		first &= ~(PMD_PAGES - 1);
		return window_mapped(&walk, vmf->vma->vm_file->f_mapping, first, first + PMD_PAGES - 1);
	}
#endif
	return 0;
}

/* --- Tracepoints: entries of the page table, before and after. --- */

/* Unless an administrator has changed fault_around_bytes. */
#define AROUND 16UL
#define AROUND_BYTES (AROUND << PAGE_SHIFT)

/* The latest fault of a thread. */
struct fault {
	u64 address;
	u32 tid;
	u32 none; /* of the pages around the address, those that it may still map */
};

/* By the low bits of the tid: 64 KB. Of threads with the same bits one may count as where nothing is known. */
#define FAULTS 4096
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FAULTS);
	__type(key, u32);
	__type(value, struct fault);
} thread_faults SEC(".maps");

#if defined(__TARGET_ARCH_x86)

/* arch/x86/include/asm/trap_pf.h */
#define FAULT_OF_PRESENT 1
#define FAULT_OF_WRITE 2
/* pt_regs.orig_ax, unless the kernel was called */
#define NO_CALL ((unsigned long)-1)

static __always_inline struct fault *fault_of(u32 tid)
{
	u32 slot = tid & (FAULTS - 1);

	return bpf_map_lookup_elem(&thread_faults, &slot);
}

/* The fault that this thread is in; NULL if it is not known. A system call maps pages by faults that have no tracepoint. */
static __always_inline struct fault *this_fault(void)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u32 tid = bpf_get_current_pid_tgid();
	struct fault *fault = fault_of(tid);

	return fault && fault->tid == tid && regs->orig_ax == NO_CALL ? fault : NULL;
}

static __always_inline u32 bit_of(u64 address)
{
	return 1U << (address >> PAGE_SHIFT & (AROUND - 1));
}

/* The entries of the pages around an address; 0 if they are not there. They never cross the end of a table. */
static __always_inline u64 entries_of(u64 address)
{
	u64 bytes = 0, first = address & ~(AROUND_BYTES - 1);
	u64 at = entry_for((u64)current_task()->mm->pgd, first, &bytes);

	return bytes == 1 << PAGE_SHIFT ? at : 0;
}

/* Which of the pages around an address have no entry. A global function, which the verifier checks only once, and without a branch
 * for each entry, of which it would try all combinations. */
__noinline u32 none_of(u64 entries)
{
	u32 none = 0;

	if (!entries)
		return (1U << AROUND) - 1;
	for (u32 i = 0; i < AROUND; i++) {
		u64 entry = word_at(entries + 8 * i), set = entry | -entry;

		barrier_var(set);
		none |= (u32)(1 - (set >> 63)) << i;
	}
	return none;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(fault_begins, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct fault *fault;

	if (error & FAULT_OF_PRESENT)
		return 0;
	fault = fault_of(tid);
	if (!fault)
		return 0;
	fault->tid = tid;
	fault->address = address;
	/* A write maps one page. */
	fault->none = error & FAULT_OF_WRITE ? bit_of(address) : none_of(entries_of(address));
	return 0;
}

struct filled {
	struct walk walk; /* uses only its sums */
	u64 entries;
	u32 pages; /* those to count, a bit each */
	u32 node;  /* of the last one */
};

/* A global function, which the verifier checks only once. */
__noinline int filled_step(struct filled *filled, u32 i)
{
	u64 entry;

	if (!filled || !(filled->pages & 1U << (i & 31)))
		return 0;
	entry = word_at(filled->entries + 8 * i);
	filled->node = entry & ENTRY_PRESENT ? node_of_frame(frame_in(entry, 0, 1 << PAGE_SHIFT)) : NO_NODE;
	if (filled->node == NO_NODE)
		unknown(&filled->walk.access, 1 << PAGE_SHIFT);
	else
		walk_add(&filled->walk, filled->node, 1 << PAGE_SHIFT);
	return 0;
}

SEC("tp_btf/mm_filemap_map_pages")
int BPF_PROG(map_tracepoint, struct address_space *mapping, unsigned long first, unsigned long last)
{
	struct fault *fault = this_fault();
	struct sampler *s = sampler();
	struct filled filled = {};
	u64 size, in_last, pages;

	mapping = untrusted(struct address_space, mapping);
	size = mapping->host->i_size;
	in_last = size & ((1 << PAGE_SHIFT) - 1);
	if (!fault || last + 1 - first > AROUND)
		return window_mapped(&filled.walk, mapping, first, last);
	filled.entries = entries_of(fault->address);
	filled.pages = fault->none & ~none_of(filled.entries);
	/* The fault may come here again: it begins anew when it has waited for a page. */
	fault->none &= ~filled.pages;
	pages = __builtin_popcount(filled.pages);
	if (!pages || !s || !drawn(s, pages))
		return 0;
	access_init(&filled.walk.access, mapping->host, false, take(s, pages));
	if (!is_file(mapping->host))
		return 0;
	for (u32 i = 0; i < AROUND; i++)
		filled_step(&filled, i);
	/* The file's last page is nearly always at its distance from the first. */
	if (in_last && filled.node != NO_NODE && last >= size >> PAGE_SHIFT &&
	    filled.pages >> ((size >> PAGE_SHIFT) - first & (AROUND - 1)))
		walk_add(&filled.walk, filled.node, in_last - (1 << PAGE_SHIFT));
	walk_flush(&filled.walk);
	return 0;
}

#else

static __always_inline struct fault *this_fault(void)
{
	return NULL;
}

static __always_inline u32 bit_of(u64 address)
{
	return 0;
}

/* User space does not load it. */
SEC("tp_btf/page_fault_user")
int fault_begins(void *ctx)
{
	return 0;
}

SEC("tp_btf/mm_filemap_map_pages")
int BPF_PROG(map_tracepoint, struct address_space *mapping, unsigned long first, unsigned long last)
{
	struct walk walk = {};

	return window_mapped(&walk, untrusted(struct address_space, mapping), first, last);
}

#endif

/* Fires before the page is looked up. If the page is not cached, the kernel reads it in and repeats the fault, which counts. */
SEC("tp_btf/mm_filemap_fault")
int BPF_PROG(fault_tracepoint, struct address_space *mapping, unsigned long index)
{
	u64 start = (u64)index << PAGE_SHIFT, end = start + (1 << PAGE_SHIFT), size, leaf;
	void *folio = folio_under((unsigned long)mapping->i_pages.xa_head, index, &leaf);
	struct fault *fault = this_fault();
	struct sampler *s = sampler();
	struct access w;
	u32 bit;

	if (!folio)
		return 0;
	mapping = untrusted(struct address_space, mapping);
	size = mapping->host->i_size;
	if (fault) {
		bit = bit_of(fault->address);
		/* It counted before the fault waited for it. */
		if (!(fault->none & bit))
			return 0;
		fault->none &= ~bit;
	}
	if (end > size)
		end = size;
	if (end <= start || !s || !drawn(s, 1))
		return 0;
	access_init(&w, mapping->host, false, take(s, 1));
	account(&w, node_of_flags(folio_flags(folio)), end - start, NO_PLACE);
	return 0;
}

/* Returns with the page locked if it has the page; otherwise the kernel repeats the fault. */
SEC("fexit/filemap_fault")
int BPF_PROG(fault_function, struct vm_fault *vmf, unsigned int result)
{
	struct sampler *s;
	struct access w;
	struct inode *inode;
	u64 start, end;
	s64 size;

	if (!(result & VM_FAULT_LOCKED))
		return 0;
	s = sampler();
	if (!s || !drawn(s, 1))
		return 0;
	inode = vmf->vma->vm_file->f_mapping->host;
	access_init(&w, inode, false, take(s, 1));
	start = (u64)vmf->pgoff << PAGE_SHIFT;
	end = start + (1UL << PAGE_SHIFT);
	size = inode->i_size;
	if (size < 0)
		return 0;
	if (end > (u64)size)
		end = size;
	if (end > start)
		account(&w, node_of_flags(folio_flags(vmf->page)), end - start, NO_PLACE);
	return 0;
}

#endif
