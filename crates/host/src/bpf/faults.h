/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Page faults of mapped files. A fault maps up to 16 pages around the address that are cached and ready (fault-around); other
 * pages go through filemap_fault. The two never count the same page of one fault: fault-around skips pages that are locked,
 * not uptodate or marked for readahead, and so does the program. Further reads of a mapped page cause no event. */
#ifndef HOMENODE_FAULTS_H
#define HOMENODE_FAULTS_H

#include "walk.h"

/* Shared anonymous memory, System V segments and memfds are not files of the user. */
static __always_inline bool is_file(struct inode *inode)
{
	return !(inode->i_sb->s_flags & SB_KERNMOUNT);
}

static __always_inline bool ignored(void)
{
	return (u32)bpf_get_current_pid_tgid() == ignored_tid;
}

#define PMD_PAGES 512UL
#define PMD_LEAF 0x81UL /* x86: present, and a page of its own */

static __always_inline int pages_mapped(struct address_space *mapping, u64 first, u64 last)
{
	u64 pages = pages_of((last + 1 - first) << PAGE_SHIFT);
	struct sampler *s = sampler();
	struct walk walk = {};

	if (ignored() || !s || !drawn(s, pages))
		return 0;
	access_init(&walk.access, mapping->host, false, take(s, pages));
	if (!is_file(mapping->host))
		return 0;
	walk.kind = WALK_FAULT;
	walk.folios = WALK_MAX;
	walk_range(&walk, mapping, first << PAGE_SHIFT, (last + 1) << PAGE_SHIFT);
	return 0;
}

SEC("tp_btf/mm_filemap_map_pages")
int BPF_PROG(map_tracepoint, struct address_space *mapping, unsigned long first, unsigned long last)
{
	return pages_mapped(mapping, first, last);
}

/* The function also shows whether the kernel answered the fault with a 2 MiB mapping of a large folio. */
SEC("fexit/filemap_map_pages")
int BPF_PROG(map_function, struct vm_fault *vmf, unsigned long first, unsigned long last)
{
#if defined(__TARGET_ARCH_x86)
	unsigned long pmd = 0;

	bpf_probe_read_kernel(&pmd, sizeof(pmd), vmf->pmd);
	if ((pmd & PMD_LEAF) == PMD_LEAF) {
		first &= ~(PMD_PAGES - 1);
		last = first + PMD_PAGES - 1;
	}
#endif
	return pages_mapped(vmf->vma->vm_file->f_mapping, first, last);
}

/* Fires before the page is looked up. If the page is not cached, the kernel reads it in and repeats the fault, which counts. */
SEC("tp_btf/mm_filemap_fault")
int BPF_PROG(fault_tracepoint, struct address_space *mapping, unsigned long index)
{
	struct sampler *s = sampler();
	struct walk walk = {};

	if (ignored() || !s || !drawn(s, 1))
		return 0;
	access_init(&walk.access, mapping->host, false, take(s, 1));
	walk.kind = WALK_RANGE;
	walk.folios = 1;
	walk_range(&walk, mapping, (u64)index << PAGE_SHIFT, ((u64)index + 1) << PAGE_SHIFT);
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

	if (!(result & VM_FAULT_LOCKED) || ignored())
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
		account(&w, node_of_flags(folio_flags(vmf->page)), end - start);
	return 0;
}

#endif
