/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Shares of a table: nobody can take one from others.
 *
 * A user may hold twice as many entries as are free: the first one gets two thirds of what there is, the next two thirds of the
 * rest. Users whose ids have the same place share what they may hold. All users of a user namespace are one: its owner, who may
 * have tens of thousands of ids, or, where root made it, the namespace itself.
 *
 * Limits: by set-user-id files of his subordinate ids a user can run as each of them outside of his namespace, and has the share of
 * each; a set-user-id program of root's that makes namespaces gives a share to each. */
#ifndef HOMENODE_SHARES_H
#define HOMENODE_SHARES_H

#include "sample.h"

#define EEXIST 17

#define USER_BITS 10
/* User namespaces, one in the other: create_user_ns (kernel/user_namespace.c). */
#define NAMESPACES_MAX 33

static __always_inline u32 place_of(u32 id, u32 bits)
{
	return (id ^ places_seed) * 0x9E3779B1U >> (32 - bits);
}

static __always_inline u32 user_of(struct task_struct *task)
{
	struct user_namespace *ns = task->real_cred->user_ns;
	u32 user = task->real_cred->uid.val;

	if (ns->level > 0) {
		for (int i = 0; i < NAMESPACES_MAX && ns->level > 1; i++)
			ns = ns->parent;
		user = ns->owner.val ? ns->owner.val : ns->ns.inum;
	}
	return place_of(user, USER_BITS);
}

/* Entries of a table, and those of each user. */
struct shares {
	int held;
	int of_user[1 << USER_BITS];
};

static __always_inline void hold(struct shares *shares, u32 user)
{
	__sync_fetch_and_add(&shares->held, 1);
	__sync_fetch_and_add(&shares->of_user[user & ((1 << USER_BITS) - 1)], 1);
}

static __always_inline void let_go(struct shares *shares, u32 user)
{
	__sync_fetch_and_add(&shares->held, -1);
	__sync_fetch_and_add(&shares->of_user[user & ((1 << USER_BITS) - 1)], -1);
}

/* How many more of so many this user may hold, if nobody else takes one; none if not positive. */
static __always_inline s64 left_for(struct shares *shares, u32 user, u32 entries)
{
	return 2 * ((s64)entries - shares->held) - shares->of_user[user & ((1 << USER_BITS) - 1)];
}

static __always_inline bool may_hold(struct shares *shares, u32 user, u32 entries)
{
	return left_for(shares, user, entries) > 0;
}

#endif
