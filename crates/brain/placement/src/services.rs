//! What a service is called, by its control group.
//!
//! **Problem.** People think in services; the kernel has control groups. Their names can be long
//! and odd, and any user may make groups of his own, with names that other users' services have.
//!
//! **Approach.** [`name`] takes the first part of a group's path that is a unit of systemd. What
//! follows was made by the unit itself, so it cannot take the name of another one; all that a user
//! runs under his own service manager stands behind `user@UID.service/`. A path without a unit is
//! the name itself.
//!
//! **Limits.** A name of more than [`LONGEST`] bytes is cut and ends in a hash of the whole.

/// Longest name, bytes.
pub const LONGEST: usize = 120;

/// What a control group is called: `postgresql.service`, `docker-3f2a.scope`,
/// `user@1000.service/app-x.scope`, `/kubepods/burstable/pod8c/3f2a`.
pub fn name(cgroup: &str) -> String {
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

/// The control group of the unit that this group is, or is a part of.
pub fn path(cgroup: &str) -> &str {
    let name = name(cgroup);
    let unit = format!("/{}", name.rsplit('/').next().unwrap_or_default());
    let mut ends = cgroup.match_indices(&unit).map(|(at, _)| at + unit.len());
    let end = ends.find(|end| matches!(cgroup.as_bytes().get(*end), None | Some(b'/')));
    end.and_then(|end| cgroup.get(..end)).unwrap_or(cgroup)
}

/// The name, or its beginning and a hash of it.
pub fn shortened(name: String) -> String {
    cut(name, LONGEST)
}

/// The same of a name of at most so many bytes, 20 or more.
pub fn cut(name: String, longest: usize) -> String {
    if name.len() <= longest {
        return name;
    }
    // FNV-1a: the same in every run and on every machine.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let end = (0..=longest.saturating_sub(20)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…{hash:016x}", name.get(..end).unwrap_or_default())
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
            ("/system.slice/a.service/b.service", "a.service"),
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
}
