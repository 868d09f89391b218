// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Reads another process's page table, for the accessed bits in it. Changes nothing.
 *
 * User space (../mapped) names one thread, and gives each program its question in the variables below. A page table may
 * change or be freed while a program reads it: what it then copies is out of date or no page table at all. User space takes only
 * entries whose frames are memory of a node. */
#include "intf.h"
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "pages.h"

/* ---- The question. ---- */
u64 start_ns = 0;       /* of the process, in whole ticks; 0: any */
u64 least_bytes = 0;    /* regions: of the mappings that count */
u64 direct_map = 0;     /* walk: where the kernel maps all physical memory */
u64 memory_end = 0;     /* ... and the physical address at which that ends */
u64 walk_from = 0;
u64 walk_to = 0;
u64 five_levels = 0;
u64 magic = 0;          /* find_direct_map: the first word of a page of the caller's ... */
u64 magic_address = 0;  /* ... that is at this physical address */

/* ---- The answer. ---- */
u64 found_start_ns = 0; /* of the process; 0: there is none, or it has no memory */
u64 memory_id = 0;      /* another one after exec */
u64 walked_to = 0;
u64 filled = 0;         /* how many of `slots` */

#define SLOTS 512
#define ENTRIES 512

/* One entry of a page table that is not a table itself, or one last-level table. */
struct slot {
	u64 address;
	u64 bytes;      /* that one entry maps: 4 KiB, 2 MiB or 1 GiB */
	u64 entry;      /* of 2 MiB or 1 GiB; the entries of 4 KiB are in `tables` */
};
struct slot slots[SLOTS];
u64 tables[SLOTS][ENTRIES];

/* include/linux/mm.h, include/linux/fs.h, include/uapi/linux/stat.h */
#define VM_EXEC 0x4
#define VM_PFNMAP 0x400
#define VM_IO 0x4000
#define VM_HUGETLB 0x400000

static __always_inline bool is_asked_for(struct task_struct *task)
{
	u64 start = task->group_leader->start_boottime;

	if (start_ns && start / NS_PER_TICK != start_ns / NS_PER_TICK)
		return false;
	if (!task->mm || task->flags & PF_KTHREAD)
		return false;
	found_start_ns = start;
	memory_id = (u64)task->mm;
	return true;
}

/* Emits the mappings of files that count: large, and data of a file system or a persistent-memory device. What is mapped from the
 * kernel's own mounts (System V and anonymous shared memory, memfd) and huge pages are the process's memory. What is executed is
 * emitted, whatever its size, so that user space can leave out the rest of that file. */
SEC("?iter/task_vma")
int mappings(struct bpf_iter__task_vma *ctx)
{
	struct task_struct *task = ctx->task;
	struct vm_area_struct *vma = ctx->vma;
	struct mapping_record record = {};
	struct inode *inode;
	struct file *file;

	if (!task || !vma || !is_asked_for(task))
		return 0;
	file = vma->vm_file;
	if (!file || vma->vm_flags & (VM_PFNMAP | VM_IO | VM_HUGETLB))
		return 0;
	record.program = !!(vma->vm_flags & VM_EXEC);
	if (!record.program && vma->vm_end - vma->vm_start < least_bytes)
		return 0;
	inode = file->f_inode;
	if (inode->i_sb->s_flags & SB_KERNMOUNT)
		return 0;
	record.start = vma->vm_start;
	record.end = vma->vm_end;
	record.ino = inode->i_ino;
	record.dev = device_of(inode);
	record.mode = inode->i_mode;
	record.inode_flags = inode->i_flags;
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

struct walk {
	u64 top; /* the highest table */
	u64 at;
};

/* The entry of the table `*table` for an address, 0 if it cannot be read. */
static __always_inline u64 entry_at(u64 table, u64 index)
{
	u64 entry = 0;

	/* A read that fails leaves 0: nothing is mapped there. */
	bpf_probe_read_kernel(&entry, sizeof(entry), (void *)(table + (index & (ENTRIES - 1)) * 8));
	return entry;
}

static __always_inline void put(u64 address, u64 bytes, u64 entry)
{
	u64 i = filled;

	if (i >= SLOTS)
		return;
	slots[i].address = address;
	slots[i].bytes = bytes;
	slots[i].entry = entry;
	filled = i + 1;
}

static __always_inline u64 after(u64 at, u64 bytes)
{
	return (at & ~(bytes - 1)) + bytes;
}

/* The table that an entry points to; 0 if that is no memory: what was read was no page table any more. */
static __always_inline u64 table_of(u64 entry)
{
	u64 address = entry & ENTRY_ADDRESS;

	return entry & ENTRY_PRESENT && address < memory_end ? direct_map + address : 0;
}

/* One step: over one entry of the lowest table that there is for the address, or one whole last-level table. */
static long step(u64 n, struct walk *w)
{
	u64 at = w->at, table = w->top, entry, i = filled;

	if (at >= walk_to || i >= SLOTS)
		return 1;
	if (five_levels) {
		entry = entry_at(table, at >> 48);
		table = table_of(entry);
		if (!table) {
			w->at = after(at, 1ULL << 48);
			return 0;
		}
	}
	entry = entry_at(table, at >> 39);
	table = table_of(entry);
	if (!table) {
		w->at = after(at, 1ULL << 39);
		return 0;
	}
	entry = entry_at(table, at >> 30);
	table = table_of(entry);
	if (!table || entry & ENTRY_HUGE) {
		if (entry & ENTRY_PRESENT && entry & ENTRY_HUGE)
			put(at & ~((1ULL << 30) - 1), 1ULL << 30, entry);
		w->at = after(at, 1ULL << 30);
		return 0;
	}
	entry = entry_at(table, at >> 21);
	w->at = after(at, 1ULL << 21);
	at &= ~((1ULL << 21) - 1);
	if (entry & ENTRY_HUGE && entry & (ENTRY_PRESENT | ENTRY_PROTNONE)) {
		put(at, 1ULL << 21, entry);
		return 0;
	}
	table = table_of(entry);
	if (table && !bpf_probe_read_kernel(tables[i], sizeof(tables[i]), (void *)table))
		put(at, 1ULL << 12, 0);
	return 0;
}

/* The highest table, as a number: the verifier allows no arithmetic on a pointer of the kernel's. */
static __always_inline u64 top_of(struct mm_struct *mm)
{
	u64 top = 0;

	bpf_core_read(&top, sizeof(top), &mm->pgd);
	return top;
}

/* Copies the entries for walk_from to walk_to, as far as there is room, to `slots` and `tables`. */
SEC("?iter/task")
int walk(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct walk w = {};

	if (!task || !is_asked_for(task))
		return 0;
	w.top = top_of(task->mm);
	w.at = walk_from;
	/* More steps than slots: holes have none. */
	bpf_loop(1 << 16, step, &w, 0);
	walked_to = w.at;
	return 0;
}

/* Page tables lie in the direct map, which begins at a multiple of 1 GiB (arch/x86/mm/kaslr.c). */
static long try_base(u64 k, struct walk *w)
{
	u64 base = (w->top & ~((1ULL << 30) - 1)) - (k << 30), word = 0;

	if (bpf_probe_read_kernel(&word, sizeof(word), (void *)(base + magic_address)) || word != magic)
		return 0;
	direct_map = base;
	return 1;
}

/* Finds the direct map by a page of the caller's, whose physical address and content the caller knows. */
SEC("?iter/task")
int find_direct_map(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct walk w = {};

	if (!task || !task->mm)
		return 0;
	w.top = top_of(task->mm);
	/* 64 TiB, which is all that four levels can map. */
	bpf_loop(1 << 16, try_base, &w, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
