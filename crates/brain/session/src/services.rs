//! What a service is called, also one that is a pod.
//!
//! **Approach.** [`placement::services`] takes the name from the control group's path; a pod of
//! Kubernetes is `NAMESPACE/POD` ([`linux::pods`]).

use std::collections::HashMap;
use std::sync::Arc;

use linux::pods;
use placement::services;

/// The row of all services that have none of their own.
pub const OTHER: &str = "other";
/// The row of threads whose service is not known.
pub const UNKNOWN: &str = "unknown";
/// Rules of a service that are told: its processes may have several.
pub const RULES: usize = 4;

/// What a control group is called: `postgresql.service`, `docker-3f2a.scope`,
/// `user@1000.service/app-x.scope`, `shop/cart-0`, `/kubepods/burstable/pod8c/3f2a`.
pub fn name(cgroup: &str) -> String {
    pods::name(cgroup).map_or_else(|| services::name(cgroup), services::shortened)
}

/// The control group of the unit or pod that this group is, or is a part of.
pub fn path(cgroup: &str) -> &str {
    let pod = pods::known(cgroup).and_then(|(_, end)| cgroup.get(..end));
    pod.unwrap_or_else(|| services::path(cgroup))
}

/// The names of groups, each found once in a window at most.
#[derive(Debug, Default)]
pub struct Names(HashMap<Arc<str>, Arc<str>>);

impl Names {
    pub fn of(&mut self, group: &Arc<str>) -> Arc<str> {
        Arc::clone(self.0.entry(Arc::clone(group)).or_insert_with(|| name(group).into()))
    }
}
