//! The names of pods of Kubernetes, by the control groups that they are in.
//!
//! **Problem.** The path of a pod's group has its UID, which people do not know it by.
//!
//! **Approach.** The kubelet makes a directory `NAMESPACE_POD_UID` in [`PODS`] for each pod. No
//! server is asked.
//!
//! **Limits.** A pod whose directory has gone, or that nobody asked for while it was there, has no
//! name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where the kubelet keeps logs: a directory `NAMESPACE_POD_UID` for each pod.
pub const PODS: &str = "/var/log/pods";

/// The name of the pod that a group is in, `NAMESPACE/POD`, and where the path of the pod's own
/// group ends.
pub fn known(cgroup: &str) -> Option<(String, usize)> {
    static KNOWN: LazyLock<Mutex<Pods>> = LazyLock::new(|| Mutex::new(Pods::new(Path::new(PODS))));
    let (uid, end) = pod(cgroup)?;
    Some((KNOWN.lock().unwrap_or_else(PoisonError::into_inner).name(&uid)?, end))
}

/// The name of the pod that a group is in, `NAMESPACE/POD`.
pub fn name(cgroup: &str) -> Option<String> {
    known(cgroup).map(|(name, _)| name)
}

/// Whether a group is that of a pod, or in one.
pub fn is_of_one(cgroup: &str) -> bool {
    pod(cgroup).is_some()
}

/// The UID of the pod that a group is in, and where the path of the pod's own group ends. Only root
/// makes groups of such a name at the top.
fn pod(cgroup: &str) -> Option<(String, usize)> {
    let top = cgroup.strip_prefix("/kubepods")?;
    if !top.starts_with(['/', '.']) {
        return None;
    }
    // `/kubepods/burstable/podUID` or `/kubepods.slice/kubepods-podUID.slice`, its hyphens as `_`.
    let uid = |part: &str| {
        let part = part.strip_suffix(".slice").unwrap_or(part);
        let uid = part.strip_prefix("pod").or_else(|| part.rsplit_once("-pod").map(|(_, uid)| uid));
        uid.map(|uid| uid.replace('_', "-"))
    };
    let mut end = 0;
    cgroup.split('/').find_map(|part| {
        end += part.len() + 1;
        Some((uid(part)?, end - 1))
    })
}

/// The names of pods by UID, as last seen.
#[derive(Debug)]
struct Pods {
    dir: PathBuf,
    names: HashMap<String, String>,
    not_before: Instant,
}

/// The directory is read again after this time at the earliest, if a pod is not known.
const PODS_EVERY: Duration = Duration::from_secs(1);
/// Pods that are remembered beside those that are there.
const PODS_MOST: usize = 10_000;

impl Pods {
    fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), names: HashMap::new(), not_before: Instant::now() }
    }

    fn name(&mut self, uid: &str) -> Option<String> {
        if !self.names.contains_key(uid) && Instant::now() >= self.not_before {
            self.not_before = Instant::now() + PODS_EVERY;
            if self.names.len() > PODS_MOST {
                self.names.clear();
            }
            let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
            self.names.extend(entries.filter_map(|entry| named(entry.file_name().to_str()?)));
        }
        self.names.get(uid).cloned()
    }
}

/// `shop_cart-0_8c1f` is pod `shop/cart-0` with the UID `8c1f`. Kubernetes allows no other
/// characters in names, and no unit of systemd has a `/` and no `@` in its name.
fn named(directory: &str) -> Option<(String, String)> {
    let mut parts = directory.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let plain = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c))
    };
    let all = parts.next().is_none() && [namespace, pod, uid].into_iter().all(plain);
    all.then(|| (uid.to_owned(), format!("{namespace}/{pod}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_called_by_its_namespace_and_name() {
        for (cgroup, uid, own) in [
            ("/kubepods/burstable/pod8c-1f/3f2a", "8c-1f", "/kubepods/burstable/pod8c-1f"),
            ("/kubepods/pod8c-1f", "8c-1f", "/kubepods/pod8c-1f"),
            (
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod8c_1f.slice/cri-containerd-3f.scope",
                "8c-1f",
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod8c_1f.slice",
            ),
            ("/kubepods.slice/kubepods-pod8c_1f.slice", "8c-1f", "/kubepods.slice/kubepods-pod8c_1f.slice"),
        ] {
            assert_eq!(pod(cgroup), Some((uid.to_owned(), own.len())));
        }
        for cgroup in [
            "/kubepods",
            "/kubepods.slice/kubepods-burstable.slice",
            "/kubepodsx/pod8c",
            "/user.slice/user-1.slice/user@1.service/kubepods/pod8c",
            "/system.slice/podman.service",
        ] {
            assert_eq!(pod(cgroup), None, "{cgroup}");
        }
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str| std::fs::create_dir(dir.path().join(name)).unwrap();
        ["shop_cart-0_8c-1f", "a_b_c_d", "A_b_7", "user@1.service_a.scope_8", "_x_9", "x"].into_iter().for_each(made);
        let mut pods = Pods::new(dir.path());
        assert_eq!(pods.name("8c-1f").as_deref(), Some("shop/cart-0"));
        assert_eq!(pods.names.len(), 1, "{pods:?}");
        // One that came is found, and one that has gone keeps its name.
        made("shop_till_9d");
        std::fs::remove_dir(dir.path().join("shop_cart-0_8c-1f")).unwrap();
        pods.not_before = Instant::now();
        assert_eq!(["9d", "8c-1f"].map(|uid| pods.name(uid).unwrap()), ["shop/till", "shop/cart-0"]);
    }
}
