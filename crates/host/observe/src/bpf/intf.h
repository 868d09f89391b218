/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The data that the programs and user space exchange. build.rs makes constants and structures of Rust of those here
 * (../records.rs): numbers, ~0 and shifts of 1; one line for each field or more, and no gaps between them. */
#ifndef HOMENODE_INTF_H
#define HOMENODE_INTF_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define COMM_LEN 16

/* procfs shows the start of a thread in ticks (USER_HZ is 100). */
#define NS_PER_TICK 10000000

/* 16,384 counted events a second and CPU take 0.25 % of the CPU at 150 ns each. A thread with 25,000 reads a second (100 MB at
 * 4 KiB) is then known to 1 %. */
#define COUNTED_PER_S 16384

/* Users of whom only the busiest threads are looked at. */
#define USERS_CROWDED 64

/* Ranges of physical memory with a node each. */
#define FRAMES_MAX 64

/* Of an entry of a page table (x86-64: arch/x86/include/asm/pgtable_types.h). */
#define ENTRY_PRESENT (1ULL << 0)
#define ENTRY_HUGE (1ULL << 7)
#define ENTRY_PROTNONE (1ULL << 8) /* only if not present: AutoNUMA waits for an access, and the bits of the frame are inverted */
#define ENTRY_ADDRESS 0x000ffffffffff000ULL

/* Hash key: one thread in one control group, one file, one node. Without the file (dev, ino): a thread's bytes of all files for which there was no room.
 * With all fields 0 except the node: bytes of threads for which there was none either. */
struct usage_key {
	u32 tid;
	u32 dev;      /* superblock's device, kernel encoding: major << 20 | minor */
	u64 ino;
	u32 start_lo; /* start_boottime >> START_SHIFT, low bits: distinguishes reused tids */
	u32 node;
	u64 group;    /* id in the v2 hierarchy, at the time */
};
#define START_SHIFT 16
/* A DAX file on a device whose node is not known here: user space knows it of a device-mapper device on one node. */
#define NO_NODE (~0U)

/* Signed: a correction may land in the window after the one it corrects. */
struct usage {
	s64 read;
	s64 remote; /* part of `read` by CPUs on another node */
	s64 written;
	s64 called; /* part of `read` by calls, not by faults */
	s64 sliced; /* estimate of what was read by calls, from slices of the time: see ../slices.rs */
	s64 sliced_remote;
	s64 sliced_reads; /* number of these reads, in 1/1024ths */
	/* Read calls, in 1/1024ths; one call can take several events. */
	s64 calls;     /* calls whose last bytes were counted */
	s64 placed;    /* calls whose beginning is known */
	s64 continued; /* part of `placed` that began where the last read of the open file ended */
	s64 handed;    /* not in `read`: handed on by sendfile or splice, no CPU of the caller's touches it */
	u32 opens;     /* times that the file was open when it was last counted; 0: not known */
	u32 generation; /* of the inode */
	u32 here;      /* node of the CPU that counted last */
	u32 unused;
};

/* Hash key: one range of a file, the node of its data, and that of the CPU that read it. */
struct range_key {
	u64 ino;
	u32 dev;
	u32 generation;
	u32 range;      /* position in the file >> RANGE_SHIFT */
	u16 node;
	u16 here;
};
/* 2 MiB: the largest folio of the page cache on x86-64, and what a move of one range costs little more than. */
#define RANGE_SHIFT 21
/* Of the counted reads, one in so many is also counted for its range. */
#define RANGE_ONE_IN 8

/* Per CPU and table: the latest entry, not yet in the table. */
struct pending {
	struct usage_key key; /* without a thread: nothing is pending */
	u64 groups;           /* address of the thread's css_set: another one once it is in another group */
	u64 busy;             /* a program uses it; a program that interrupts it must not */
	u32 process, user;    /* places of the key's process and user in the counts of entries */
	struct usage usage;
};

/* Per CPU: the event to count next. */
struct sampler {
	s64 countdown;  /* pages left until an event is counted */
	u64 open_last;  /* last page of the latest counted request that may continue, or NOT_OPEN */
	u32 k;          /* one page in 2^k is drawn; the event it is in is counted */
	u32 counted;    /* since `since` */
	s64 budget;     /* events that may still be counted before k must rise */
	u64 since;      /* ns */
	u64 reads;      /* by the hook on the read path, since `paid`, in 1/1024ths; and those of them that it counted */
	u64 reads_counted;
	u64 paid;       /* ns */
	s64 debt;       /* ns that this hook took beyond its budget */
};
#define NOT_OPEN (~0ULL)

/* A counted request that may continue in another batch (tracepoint path). */
struct open_request {
	u64 mapping;
	u64 first;      /* first page counted */
	u64 end;        /* first page not counted */
	u64 last;       /* last page asked for */
	u64 end_byte;
	u64 syscalls;   /* of the thread so far */
	u64 weight;
	u32 tid;
	u32 slice;
	u32 handed;
	u32 unused;
};
/* Weights are in 1/1024ths, also that of a slice: what is read in it stands for this many times as much. */
#define WEIGHT_SHIFT 10
#define WEIGHT_ONE (1U << WEIGHT_SHIFT)

/* Per CPU: events and bytes, including those that could not be attributed, and CPU time of ended threads. */
struct counters {
	u64 full_bytes;      /* no free entry, not even without the file */
	u64 crowded_bytes;   /* counted without the file */
	u64 unknown_read;    /* bytes whose page was not found */
	u64 unknown_written;
	u64 exited_cpu_ns;   /* CPU time of threads that ended, since their last pass */
	u64 hidden_cpu_ns;   /* and of threads that the passes did not show */
	u64 counted;         /* events counted, all windows */
	u64 stood_for;       /* events that these represent */
	u64 children_full;
	u64 unranged_bytes;  /* counted for no range: the user's share of the table was full */
	u64 reads;           /* reads that the counted ones represent, by the hook on the read path */
};

struct task_record {
	u32 tid, tgid, ppid;
	u32 cpu;
	u64 start_ns;
	u64 cpu_ns;    /* since the last pass */
	u64 wait_ns;
	u64 cgroup_id;
	u64 leader_start_ns; /* when its process started */
	u64 parent_start_ns; /* when its parent process started */
	u32 flags;     /* TASK_* */
	u32 mask_words;
	u64 process_cgroup_id; /* of the first thread, as are user and command: rules are for processes */
	u32 uid, real_uid; /* effective and real, as the first user namespace has them */
	char comm[COMM_LEN];
	char command[COMM_LEN]; /* the name of the first thread */
	/* followed by mask_words u64 */
};
#define TASK_KTHREAD 1
#define TASK_IN_TREE 2
#define TASK_ASKED 4       /* an affinity was asked for, by itself, by others or by an ancestor */
#define TASK_NOT_ASKED 8   /* none was; neither flag: the kernel does not say */
#define TASK_KEPT 16       /* its affinity is ours: it is shown whatever it runs */

/* A control group (v2) was made, or has gone. */
struct group_record {
	u64 id;
	u64 gone;
	/* followed by its path from the root of the hierarchy, with a 0 at its end; empty if it has gone */
};

/* Who a thread is, as /proc/TID/stat has it. */
struct who {
	u64 start_ns;
	u32 tid, ppid, session, cpu;
	u32 kernel_thread;
	char comm[COMM_LEN];
	u32 unused;
};

/* Descendants. */
struct watched {
	u64 start_ns;
	u64 asked;     /* address of the affinity asked for (user_cpus_ptr) when it was ours; 0: not known */
	u32 tgid;
	u32 parent_tid;
	u32 marks;     /* MARK_* */
	u32 origin;    /* ORIGIN_* */
	u32 share;     /* the place of the user in whose share it is + 1; 0: in none, user space made it */
	u32 unused;
};
#define MARK_MOVED 1
#define MARK_TREE 2
#define MARK_OWN 4     /* its affinity is its own: set by others since, or put back */
#define ORIGIN_MARKED 0  /* by user space */
#define ORIGIN_BORN 1    /* inherited its marks */
#define ORIGIN_EXEC 2    /* took the place of its process's first thread by exec */

/* One living thread with MARK_MOVED. */
struct descendant_record {
	u64 start_ns;
	u32 tid, tgid;
	u32 parent_tid;
	u32 origin;
	u32 own;
	u32 pad;
};

/* One mapping of a file (hotness.bpf.c). */
struct mapping_record {
	u64 start, end;
	u64 ino;
	u32 dev;         /* as in usage_key */
	u32 mode;
	u32 inode_flags;
	u32 program;     /* it is executed: other mappings of the file are its data */
};

#endif
