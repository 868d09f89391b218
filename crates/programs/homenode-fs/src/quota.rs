//! `homenode-fs fs quota`: what users and projects use of a mounted volume, and limits.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::args::QuotaArgs;
use command::args::Global;
use command::exit::{Exit, Failure};
use command::output::table::Table;
use command::output::units::size;
use command::output::{self};
use command::signals::Stop;
use linux::quota::{self, Limit, Quota, Quotas, Subject};

/// How long to wait for the server to count, between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Shows what is used, or sets limits, or gives files to a project.
pub fn run(global: &Global, args: &QuotaArgs) -> Result<Exit, Failure> {
    let open = |path: &Path| File::open(path).map_err(|e| Failure::io("open", path, &e));
    let mount = open(&args.mount)?;
    let stop = Stop::on_signals()?;
    let all = quotas(&mount, &args.mount, &stop)?;
    let subject = match (&args.user, args.project) {
        (Some(user), _) => Some(Subject::User(user_of(user)?)),
        (None, project) => project.map(Subject::Project),
    };
    let Some(subject) = subject else { return show(global, args, &all) };
    let known = all.quotas.iter().find(|quota| quota.subject == subject);
    if args.bytes.is_some() || args.files.is_some() {
        // A limit that is not named stays.
        let bytes = args.bytes.unwrap_or_else(|| known.map_or(0, |quota| quota.bytes_limit));
        let files = args.files.unwrap_or_else(|| known.map_or(0, |quota| quota.files_limit));
        let limit = Limit { subject, bytes, files }.to_string();
        set(&mount, quota::QUOTA, &limit).map_err(|e| refused(&args.mount, e))?;
    }
    if let (Some(tree), Subject::Project(id)) = (&args.assign, subject) {
        assign(tree, &id.to_string())?;
    }
    if args.bytes.is_none() && args.files.is_none() && args.assign.is_none() {
        let none = Quota { subject, bytes: 0, bytes_limit: 0, files: 0, files_limit: 0 };
        let one = known.copied().unwrap_or(none);
        return show(global, args, &Quotas { quotas: vec![one], more: false, ..all });
    }
    Ok(Exit::Done)
}

/// The number of a user, who may be given by name.
fn user_of(user: &str) -> Result<u32, Failure> {
    if let Ok(uid) = user.parse() {
        return Ok(uid);
    }
    let found = nix::unistd::User::from_name(user).ok().flatten();
    found.map(|user| user.uid.as_raw()).ok_or_else(|| Failure::new(Exit::Usage, user, "there is no such user"))
}

/// What the mount says, once it has counted.
fn quotas(mount: &File, path: &Path, stop: &Stop) -> Result<Quotas, Failure> {
    loop {
        let mut answer = vec![0; 64 << 10];
        let len = rustix::fs::fgetxattr(mount, quota::QUOTA, &mut *answer).map_err(|e| refused(path, e.into()))?;
        let quotas: Quotas = serde_json::from_slice(answer.get(..len).unwrap_or_default())
            .map_err(|e| Failure::from_error(Exit::Io, path.display().to_string(), &e))?;
        if !quotas.counting || stop.requested() {
            return Ok(quotas);
        }
        thread::sleep(PAUSE);
    }
}

fn set(file: impl AsFd, name: &str, value: &str) -> io::Result<()> {
    Ok(rustix::fs::fsetxattr(file, name, value.as_bytes(), rustix::fs::XattrFlags::empty())?)
}

fn refused(path: &Path, error: io::Error) -> Failure {
    let what = path.display().to_string();
    match error.raw_os_error() {
        Some(libc::ENODATA | libc::EOPNOTSUPP) => {
            Failure::new(Exit::Usage, what, "is not on a mounted volume, or not for this user")
                .hint("quotas take root (CAP_SYS_ADMIN) and the mount's directory")
        }
        Some(libc::EPERM) => Failure::new(Exit::Unsupported, what, "quotas take CAP_SYS_ADMIN").hint("try sudo"),
        Some(libc::EINVAL) => Failure::new(Exit::Usage, what, "root has no limit, and 0 is no project"),
        _ => Failure::from_error(Exit::Io, what, &error),
    }
}

/// Gives a file, or a directory with all that is in it, to a project. What is made in it later is
/// the project's, too.
fn assign(path: &Path, id: &str) -> Result<(), Failure> {
    let at = |e: io::Error| Failure::io("give to a project", path, &e);
    let kind = path.symlink_metadata().map_err(at)?.file_type();
    // What is opened may not be a link, or wait for a reader.
    if kind.is_file() || kind.is_dir() {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(|e| at(e.into()))?;
        set(&opened, quota::PROJECT, id).map_err(at)?;
    }
    if kind.is_dir() {
        for entry in path.read_dir().map_err(at)? {
            assign(&entry.map_err(at)?.path(), id)?;
        }
    }
    Ok(())
}

fn show(global: &Global, args: &QuotaArgs, all: &Quotas) -> Result<Exit, Failure> {
    if global.json {
        output::print_json(&serde_json::json!({
            "mount": linux::shown(args.mount.as_os_str()), "counting": all.counting, "quotas": all.quotas, "more": all.more,
        }))?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["whose", ">used", ">limit", ">files", ">limit of files"]);
    let limit = |limit: u64, text: String| if limit == 0 { "-".to_owned() } else { text };
    for quota in &all.quotas {
        let whose = match quota.subject {
            Subject::User(id) => format!("user {id}"),
            Subject::Project(id) => format!("project {id}"),
        };
        let bytes = [size(quota.bytes), limit(quota.bytes_limit, size(quota.bytes_limit))];
        let files = [quota.files.to_string(), limit(quota.files_limit, quota.files_limit.to_string())];
        table.row([whose].into_iter().chain(bytes).chain(files));
    }
    output::print(&table.render())?;
    Ok(Exit::Done)
}
