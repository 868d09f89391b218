// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Counts file bytes per thread, file and node where the kernel touches the pages.
 *
 * User space decides which of these programs to load (../choose.rs): never two that see the same bytes. */
#include "intf.h"
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#include "reads.h"
#include "faults.h"
#include "writes.h"
#include "memory_fs.h"
#include "arc.h"
#include "tasks.h"
#include "groups.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
