//! `homenode export`: what the daemon counts, as metrics.
//!
//! **Problem.** Monitoring asks over a network. A client of a port must not come near the rights of
//! the daemon, and the daemon must not wait for clients.
//!
//! **Approach.** The exporter is a process of its own without privileges. For each request it reads
//! the file that the daemon writes after each window ([`session::totals`]). [`text`] makes the
//! metrics of it, [`serve`] answers over HTTP. Both are our own: a client library keeps counters in
//! a registry, and here they come finished from a file; a web server would be larger than the rest
//! of the exporter. [`serve`] knows one request, in bounded memory, and waits for no client.
//!
//! **Limits.** There is no authentication and no encryption, so it listens on this machine only. On
//! a loopback port every local user may ask; what they see is what systemd shows them anyway, names
//! of services, and how many bytes these read.

mod serve;
mod text;

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::thread::CapabilitySet;
use session::totals::{self, Found};

use crate::commands::{plane, replace};
use crate::exit::{Exit, Failure};
use crate::notify;
use crate::output;
use crate::signals::Stop;
use command::args::{Global, seconds};

/// `homenode export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Where to listen: a loopback address with a port, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9951", value_parser = listen)]
    pub listen: Listen,
    /// Write the metrics to this file, by rename, instead of listening: for node_exporter
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub textfile: Option<PathBuf>,
    /// How often to write the file
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds, requires = "textfile")]
    pub every: f64,
    /// Print the metrics, or write the file once, and end
    #[arg(long, conflicts_with_all = ["listen", "every"])]
    pub once: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

fn listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return match path.is_empty() {
            true => Err("a path must follow unix:".to_owned()),
            false => Ok(Listen::Unix(path.into())),
        };
    }
    // A name could lead anywhere; this one has one meaning.
    let address = text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    let address: SocketAddr =
        address.parse().map_err(|_| "not an address such as 127.0.0.1:9951, [::1]:9951 or unix:/path".to_owned())?;
    match address.ip().to_canonical().is_loopback() {
        true => Ok(Listen::Tcp(address)),
        false => Err("not a loopback address: without authentication homenode serves this machine only".to_owned()),
    }
}

/// Serves until stopped, or writes a file until stopped, or prints once.
pub fn run(global: &Global, args: &ExportArgs) -> Result<Exit, Failure> {
    let metrics = || totals::read(&global.state_dir).map(|found| text::metrics(&found));
    match &args.textfile {
        None if args.once => {
            drop_privileges()?;
            let found = totals::read(&global.state_dir)?;
            if let Found::Stale(why, _) = &found {
                output::complain(&format!("homenode: no counters: {why}\n"));
            }
            output::print(&text::metrics(&found))?;
            return Ok(Exit::Done);
        }
        Some(path) if args.once => {
            drop_privileges()?;
            // node_exporter reads names that end in `.prom` only, so it never sees half of a file.
            replace::write(path, &metrics()?, 0o644)?;
            return Ok(Exit::Done);
        }
        _ => {}
    }
    let stop = Stop::or_killed()?;
    match &args.textfile {
        Some(path) => {
            drop_privileges()?;
            notify::ready(None);
            while !stop.requested() {
                // A directory that is full now may have room later.
                if let Err(failure) = metrics().and_then(|text| replace::write(path, &text, 0o644)) {
                    failure.report(global.json);
                }
                std::thread::park_timeout(Duration::from_secs_f64(args.every));
            }
        }
        None => {
            let server = serve::Server::open(&args.listen)?;
            drop_privileges()?;
            notify::ready(None);
            match global.json {
                true => output::print_json_line(&serde_json::json!({ "listen": server.address() }))?,
                false => output::print(&format!("{}\n", server.address()))?,
            }
            let mut shared = Shared { dir: global.state_dir.clone(), made: None };
            server.run(&|| stop.requested(), &mut || shared.text().map_err(|failure| failure.line()))?;
        }
    }
    Ok(Exit::Done)
}

/// The file of the daemon: device, inode, and when it was written.
type Written = (u64, u64, i64, i64);

/// The metrics of the last window: their text is made once.
struct Shared {
    dir: PathBuf,
    made: Option<Made>,
}

/// What was found in which file, and its text.
type Made = (Option<Written>, Found, Arc<str>);

impl Shared {
    fn text(&mut self) -> Result<Arc<str>, Failure> {
        let file = std::fs::metadata(self.dir.join(totals::FILE)).ok();
        let file = file.map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec()));
        // A daemon that has written nothing since may have ended.
        let same =
            |(then, found, _): &Made| *then == file && !matches!(found, Found::Now(told) if told.stale().is_some());
        let (.., text) = match self.made.take().filter(same) {
            Some(made) => self.made.insert(made),
            None => {
                let found = totals::read(&self.dir)?;
                let text = text::metrics(&found).into();
                self.made.insert((file, found, text))
            }
        };
        Ok(text.clone())
    }
}

/// Root's rights are of no use here.
fn drop_privileges() -> Result<(), Failure> {
    plane::keep_only(CapabilitySet::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        for text in ["127.0.0.1:9", "127.8.8.8:9", "[::1]:9", "[::ffff:127.0.0.1]:9", "localhost:9"] {
            assert!(matches!(listen(text), Ok(Listen::Tcp(_))), "{text}");
        }
        for text in ["0.0.0.0:9", "[::]:9", "192.0.2.1:9", "[::ffff:192.0.2.1]:9", "10.0.0.1:9"] {
            assert!(listen(text).unwrap_err().contains("not a loopback address"), "{text}");
        }
        for text in ["example.org:9", "localhost.example.org:9", "9", "127.0.0.1", ""] {
            assert!(listen(text).unwrap_err().contains("not an address"), "{text}");
        }
        assert_eq!(listen("unix:/run/x"), Ok(Listen::Unix("/run/x".into())));
        listen("unix:").unwrap_err();
    }
}
