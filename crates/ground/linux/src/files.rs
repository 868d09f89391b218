//! The limit of open files of this process.

/// As many open files as this process may have. Programs that it starts afterwards may have as
/// many, too.
pub fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}
