//! Which service a process belongs to, and what that service is called.
//!
//! **Problem.** People think in services; the kernel has control groups. Their names can be long
//! and odd, and any user may make groups of his own, with names that other users' services have.
//!
//! **Approach.** [`name`] takes the first part of a group's path that is a unit of systemd. What
//! follows was made by the unit itself, so it cannot take the name of another one; all that a user
//! runs under his own service manager stands behind `user@UID.service/`. A pod of Kubernetes is
//! `NAMESPACE/POD`, by the directories of [`PODS`], which the kubelet makes. A path without either
//! is the name itself.
//!
//! **Limits.** A name of more than [`LONGEST`] bytes is cut and ends in a hash of the whole. A pod
//! whose directory has gone, or that nobody asked for while it was there, has no other name than
//! its path.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest name, bytes.
pub const LONGEST: usize = 120;

/// Where the kubelet keeps logs: a directory `NAMESPACE_POD_UID` for each pod.
pub const PODS: &str = "/var/log/pods";

/// What a control group is called: `postgresql.service`, `docker-3f2a.scope`,
/// `user@1000.service/app-x.scope`, `shop/cart-0`, `/kubepods/burstable/pod8c/3f2a`.
pub fn name(cgroup: &str) -> String {
    if let Some((name, _)) = known_pod(cgroup) {
        return shortened(name);
    }
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    let mut parts = cgroup.split('/').filter(|part| !part.is_empty());
    // Only slices come before a unit of this machine's manager: what is below another group belongs
    // to a container, which can take any name.
    let mut unit = || parts.find(|part| !part.ends_with(".slice")).filter(is_unit);
    let name = match unit() {
        // A user's service manager: its units are his services.
        Some(manager) if manager.starts_with("user@") => match unit() {
            Some(unit) => format!("{manager}/{unit}"),
            None => manager.to_owned(),
        },
        Some(unit) => unit.to_owned(),
        None => cgroup.to_owned(),
    };
    shortened(name)
}

/// The control group of the unit or pod that this group is, or is a part of.
pub fn path(cgroup: &str) -> &str {
    if let Some((_, end)) = known_pod(cgroup) {
        return cgroup.get(..end).unwrap_or(cgroup);
    }
    let name = name(cgroup);
    let unit = format!("/{}", name.rsplit('/').next().unwrap_or_default());
    let mut ends = cgroup.match_indices(&unit).map(|(at, _)| at + unit.len());
    let end = ends.find(|end| matches!(cgroup.as_bytes().get(*end), None | Some(b'/')));
    end.and_then(|end| cgroup.get(..end)).unwrap_or(cgroup)
}

/// The name, or its beginning and a hash of it.
fn shortened(name: String) -> String {
    if name.len() <= LONGEST {
        return name;
    }
    // FNV-1a: the same in every run and on every machine.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let end = (0..=LONGEST - 20).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…{hash:016x}", name.get(..end).unwrap_or_default())
}

/// The name of the pod that a group is in, and where the path of the pod's own group ends.
fn known_pod(cgroup: &str) -> Option<(String, usize)> {
    static KNOWN: LazyLock<Mutex<Pods>> = LazyLock::new(|| Mutex::new(Pods::new(Path::new(PODS))));
    let (uid, end) = pod(cgroup)?;
    Some((KNOWN.lock().unwrap_or_else(PoisonError::into_inner).name(&uid)?, end))
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

/// The names of groups, each found once in a window at most.
#[derive(Debug, Default)]
pub struct Names(HashMap<Arc<str>, Arc<str>>);

impl Names {
    pub fn of(&mut self, group: &Arc<str>) -> Arc<str> {
        Arc::clone(self.0.entry(Arc::clone(group)).or_insert_with(|| name(group).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_called_by_its_unit() {
        for (cgroup, called) in [
            ("/system.slice/postgresql.service", "postgresql.service"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope", "user@1000.service/app-x.scope"),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "user@1000.service/init.scope"),
            ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
            ("/system.slice/docker-3f2a.scope/inner", "docker-3f2a.scope"),
            ("/machine.slice/machine-web.scope/payload/system.slice/postgresql.service", "machine-web.scope"),
            ("/kubepods.slice/kubepods-pod8c.slice/cri-containerd-3f2a.scope", "cri-containerd-3f2a.scope"),
            ("/kubepods/burstable/pod8c/3f2a", "/kubepods/burstable/pod8c/3f2a"),
            ("/lxc.payload.web/system.slice/postgresql.service", "/lxc.payload.web/system.slice/postgresql.service"),
            ("/docker/3f2a/system.slice/postgresql.service", "/docker/3f2a/system.slice/postgresql.service"),
            ("/", "/"),
        ] {
            assert_eq!(name(cgroup), called);
        }
        for (cgroup, unit) in [
            ("/system.slice/a.service", "/system.slice/a.service"),
            ("/system.slice/a.service/workers/1", "/system.slice/a.service"),
            ("/system.slice/a.service-x/a.service", "/system.slice/a.service-x/a.service"),
            (
                "/user.slice/u.slice/user@1.service/app.slice/x.scope/y",
                "/user.slice/u.slice/user@1.service/app.slice/x.scope",
            ),
            ("/kubepods/pod8c/3f2a", "/kubepods/pod8c/3f2a"),
            ("/", "/"),
        ] {
            assert_eq!(path(cgroup), unit);
        }
    }

    /// A user may make groups below those that systemd has delegated to him, and call them as he
    /// likes.
    #[test]
    fn no_group_of_a_user_takes_the_name_of_a_service() {
        for cgroup in [
            "/user.slice/user-1000.slice/user@1000.service/postgresql.service",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope/postgresql.service",
            "/system.slice/delegated.service/postgresql.service",
            "/user.slice/user-1000.slice/user@1000.service/other",
        ] {
            assert!(name(cgroup) != "postgresql.service" && name(cgroup) != "other", "{}", name(cgroup));
        }
    }

    #[test]
    fn a_long_name_is_cut_and_stays_different() {
        let of = |last: &str| name(&format!("/kubepods/{}{last}", "é".repeat(LONGEST)));
        assert!(of("a").len() <= LONGEST && of("b").len() <= LONGEST, "{}", of("a"));
        assert!(of("a") != of("b") && of("a").starts_with("/kubepods/é"), "{}", of("a"));
    }

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
