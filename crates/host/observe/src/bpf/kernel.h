/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The kernel structures and fields that the programs read. Offsets come from the running kernel's BTF. */
#ifndef HOMENODE_KERNEL_H
#define HOMENODE_KERNEL_H

#include "intf.h"

typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

/* From uapi/linux/bpf.h; the whole header needs the distribution's kernel headers. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_CGROUP_ARRAY = 8,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_EXIST = 2 };
enum { BPF_F_NO_PREALLOC = 1 };
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	u32 s_dev;
	unsigned long s_flags;
	unsigned long s_magic;
	struct block_device *s_bdev;
};
struct gendisk {
	int node_id;
};
struct block_device {
	struct gendisk *bd_disk;
};
typedef struct {
	int counter;
} atomic_t;
struct inode {
	u16 i_mode;
	unsigned int i_flags;
	struct super_block *i_sb;
	unsigned long i_ino;
	s64 i_size;
	u32 i_generation;
	atomic_t i_writecount; /* times that it is open for writing; negative: its program runs */
	atomic_t i_readcount;  /* times that it is open for reading only */
	struct address_space *i_mapping;
};
struct btrfs_root {
	u32 anon_dev; /* what stat(2) shows */
};
struct btrfs_inode {
	struct btrfs_root *root;
	struct inode vfs_inode;
};
struct timespec64 {
	s64 tv_sec;
};
struct xarray {
	void *xa_head;
};
struct address_space {
	struct inode *host;
	struct xarray i_pages;
	const struct address_space_operations *a_ops;
};
struct address_space_operations {
	void *write_begin;
};
struct xa_node {
	u8 shift;
	void *slots[64];
};
typedef struct {
	unsigned long f;
} memdesc_flags_t;
struct folio {
	memdesc_flags_t flags; /* since 6.18 */
	unsigned long _flags_1; /* low byte: order (since 6.6), for a large folio */
};
struct folio___long_flags {
	unsigned long flags; /* before 6.18 */
};
struct folio___order {
	u8 _folio_order; /* before 6.6 */
};
struct page;
struct folio_batch {
	u8 nr;
	struct folio *folios[31]; /* 15 before 6.10: the size comes from BTF */
};
struct file_ra_state {
	s64 prev_pos; /* the end of the last read; since 6.8 or so, set once a call, before once a batch */
};
struct file {
	struct address_space *f_mapping;
	s64 f_pos;
	struct file_ra_state f_ra;
	struct inode *f_inode;
};
struct fdtable {
	u32 max_fds;
	struct file **fd;
};
struct files_struct {
	struct fdtable *fdt;
};
struct kiocb {
	struct file *ki_filp;
	s64 ki_pos;
	int ki_flags;
};
enum iter_type {
	ITER_PIPE = 5, /* before 6.5 */
};
struct iov_iter {
	u8 iter_type;
	bool data_source;
	unsigned long count;
};
struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	struct file *vm_file;
};
struct mm_struct {
	void *pgd;
	struct file *exe_file;
};
struct vm_fault {
	struct vm_area_struct *vma;
	unsigned long pgoff;
	unsigned long address;
	void *pmd;
	struct page *page;
};
struct kernfs_node {
	u64 id;
};
struct cgroup_root {
	int hierarchy_id;
};
struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_root *root;
};
struct css_set {
	struct cgroup *dfl_cgrp;
};
struct task_io_accounting {
	u64 syscr;
};
struct sched_entity {
	u64 sum_exec_runtime;
};
struct sched_info {
	u64 run_delay;
};
struct thread_info {
	u32 cpu;
};
struct cpumask {
	unsigned long bits[1];
};
struct affinity_context { /* since 6.2: from then on user_cpus_ptr is what sched_setaffinity was asked for */
	unsigned int flags;
};
typedef struct {
	u32 val;
} kuid_t;
struct ns_common {
	unsigned int inum;
};
struct user_namespace {
	struct ns_common ns;
	struct user_namespace *parent;
	int level;
	kuid_t owner;
};
struct cred {
	kuid_t uid;
	kuid_t euid;
	struct user_namespace *user_ns;
};
struct upid {
	int nr;
};
struct pid {
	struct upid numbers[1];
};
struct signal_struct {
	struct pid *pids[4];
};
struct task_struct {
	struct thread_info thread_info;
	u32 flags;
	int exit_state;
	int on_cpu;
	struct sched_entity se;
	struct sched_info sched_info;
	struct cpumask cpus_mask;
	struct mm_struct *mm;
	struct mm_struct *active_mm; /* of a kernel thread: the one it has borrowed */
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	u64 start_boottime;
	struct cred *real_cred;
	struct signal_struct *signal;
	char comm[16];
	struct cpumask *user_cpus_ptr;
	struct files_struct *files;
	struct css_set *cgroups;
	struct task_io_accounting ioac;
};
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long orig_ax, di, si, dx, cx, r10;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	int syscallno;
};
#endif
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};
struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
};
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
};
enum pageflags {
	PG_locked = 0,
	PG_uptodate = 3,
	PG_head = 6,
	PG_readahead = 16,
};

#pragma clang attribute pop

#if defined(__TARGET_ARCH_x86)
#define SYSCALL(regs) ((regs)->orig_ax)
#define SYS_SENDFILE 40
#define SYS_SPLICE 275
#define SYS_COPY_FILE_RANGE 326
#else
#define SYSCALL(regs) ((regs)->syscallno)
#define SYS_SENDFILE 71
#define SYS_SPLICE 76
#define SYS_COPY_FILE_RANGE 285
#endif

#define PAGE_SHIFT 12 /* x86-64, arm64 with 4 KiB pages; user space refuses other sizes */
#define PF_EXITING 0x4
#define PF_KTHREAD 0x200000
#define SB_KERNMOUNT (1UL << 22)
#define BTRFS_SUPER_MAGIC 0x9123683E
#define VM_FAULT_LOCKED 0x200

#endif
