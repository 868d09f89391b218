//! Options that several sub-commands have: which threads to manage, and how to observe.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use command::args::{pid, seconds};
use command::output::escape;
use linux::cpuset::Hierarchies;

/// Which threads to manage.
#[derive(Debug, Clone, Default, Args)]
pub struct ScopeArgs {
    /// Only these processes (repeat the option, or separate ids with commas)
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pub pid: Vec<u32>,
    /// Only processes in this control group and below: a directory under /sys/fs/cgroup, or a
    /// service as `homenode map` calls it, such as postgresql.service
    #[arg(long, value_name = "GROUP", conflicts_with = "pid", value_parser = OsStringValueParser::new().try_map(group))]
    pub cgroup: Option<PathBuf>,
    /// Also move threads with a custom affinity, within their cpuset; it is restored on exit
    #[arg(long)]
    pub touch_own_affinity: bool,
    /// Also bind threads while a sched_ext scheduler runs, which may treat them worse than others
    /// then
    #[arg(long)]
    pub beside_sched_ext: bool,
}

/// How to observe.
#[derive(Debug, Clone, Default, Args)]
pub struct ObserveArgs {
    /// Length of a window in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub window: Option<f64>,
    /// Count every read instead of a sample; this slows the observed threads down more
    #[arg(long)]
    pub exact: bool,
    /// Keep the read hook attached: reads cost some 60 ns more, but no CPU is interrupted to attach
    /// it again [default with nohz_full]
    #[arg(long)]
    pub steady: bool,
    /// Which threads to manage.
    #[command(flatten)]
    pub scope: ScopeArgs,
}

/// The control group of this path or name. Neither: what uses it says so.
fn group(name: OsString) -> Result<PathBuf, String> {
    let path = PathBuf::from(&name);
    if path.exists() {
        return Ok(path);
    }
    let groups = Hierarchies::new(Path::new(command::machine::PROC)).unified();
    named(&linux::shown(&name), groups).map(|found| found.unwrap_or(path))
}

/// The one of these control groups that has this name; none, if there is none.
fn named(name: &str, groups: Vec<(String, PathBuf)>) -> Result<Option<PathBuf>, String> {
    let is = |group: &str| session::services::path(group) == group && session::services::name(group) == name;
    let mut found: Vec<PathBuf> = groups.into_iter().filter(|(group, _)| is(group)).map(|(_, dir)| dir).collect();
    found.sort();
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => {
            let all: Vec<String> = found.iter().map(|dir| escape(&dir.display().to_string())).collect();
            Err(format!("several control groups have this name: give one by its path: {}", all.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--cgroup postgresql.service`, as homenode prints it, was "no such file".
    #[test]
    fn a_group_is_found_by_the_name_that_homenode_gives_it() {
        let groups =
            |all: &[&str]| all.iter().map(|group| (group.to_string(), Path::new("/cg").join(&group[1..]))).collect();
        let all = groups(&[
            "/",
            "/system.slice",
            "/system.slice/db.service",
            "/system.slice/db.service/workers",
            "/system.slice/db.service/db.service",
            "/user.slice/user-1.slice/user@1.service",
            "/user.slice/user-1.slice/user@1.service/app.slice/web.service",
            "/user.slice/user-1.slice/user@1.service/app.slice/db.service",
            "/other.slice/web.scope",
            "/third.slice/web.scope",
            "/kubepods/pod8c/3f2a",
        ]);
        let of = |name: &str| named(name, Vec::clone(&all)).map(|found| found.map(|dir| dir.display().to_string()));
        assert_eq!(of("db.service"), Ok(Some("/cg/system.slice/db.service".to_owned())));
        let web = "/cg/user.slice/user-1.slice/user@1.service/app.slice/web.service";
        assert_eq!(of("user@1.service/web.service"), Ok(Some(web.to_owned())));
        assert_eq!(of("/kubepods/pod8c/3f2a"), Ok(Some("/cg/kubepods/pod8c/3f2a".to_owned())));
        assert_eq!((of("workers"), of("web.service"), of("")), (Ok(None), Ok(None), Ok(None)));
        let error = of("web.scope").unwrap_err();
        assert!(error.ends_with("/cg/other.slice/web.scope, /cg/third.slice/web.scope"), "{error}");
    }
}
