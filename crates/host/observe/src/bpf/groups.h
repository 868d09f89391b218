/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Control groups (v2) as they come and go. They cannot be renamed. */
#ifndef HOMENODE_GROUPS_H
#define HOMENODE_GROUPS_H

#include "kernel.h"

/* A window's: some 2,000 groups with paths of 100 bytes. What is lost is looked for in the directories. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 << 10);
} group_events SEC(".maps");

/* Events that found no room. */
u64 groups_lost = 0;

/* The kernel cuts longer ones (TRACE_CGROUP_PATH_LEN). */
#define GROUP_PATH 1024
struct group_event {
	struct group_record record;
	char path[GROUP_PATH];
};

/* One is enough: the kernel holds a lock, trace_cgroup_path_lock, around all tracepoints with a path. */
struct group_event group_event = {};

static __always_inline int group_changed(struct cgroup *group, const char *path, bool gone)
{
	long bytes = 1;

	/* The default hierarchy is version 2's. */
	if (BPF_CORE_READ(group, root, hierarchy_id))
		return 0;
	group_event.record.id = BPF_CORE_READ(group, kn, id);
	group_event.record.gone = gone;
	group_event.path[0] = 0;
	if (!gone)
		bytes = bpf_probe_read_kernel_str(group_event.path, GROUP_PATH, path);
	if (bytes < 1 || bytes > GROUP_PATH ||
	    bpf_ringbuf_output(&group_events, &group_event, sizeof(struct group_record) + bytes, 0))
		groups_lost++;
	return 0;
}

SEC("raw_tp/cgroup_mkdir")
int BPF_PROG(group_made, struct cgroup *group, const char *path)
{
	return group_changed(group, path, false);
}

SEC("raw_tp/cgroup_rmdir")
int BPF_PROG(group_gone, struct cgroup *group, const char *path)
{
	return group_changed(group, path, true);
}

#endif
