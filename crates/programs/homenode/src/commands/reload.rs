//! `homenode reload`: has the daemon read its rules again, and says what came of it.

use std::time::{Duration, Instant};

use command::args::Global;
use rustix::process::{Pid, Signal, kill_process};
use session::status::{Reload, Status, now_s};
use session::totals::{self, Found, Told};

use crate::exit::{Exit, Failure};
use crate::output;

/// How long a daemon may take: it reads its rules between two windows.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the daemon that has the state directory, and waits for its answer.
pub fn run(global: &Global) -> Result<Exit, Failure> {
    let before = running(global)?;
    let holder = engine::state::holder(&global.state_dir)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "not reloaded", &e))?;
    // After a crash, `restore` may have the directory.
    let pid = holder.filter(|pid| *pid == before.pid).and_then(|pid| Pid::from_raw(pid as i32));
    let pid =
        pid.ok_or_else(|| Failure::new(Exit::Partly, "not reloaded", "no `homenode run` has the state directory"))?;
    let asked_s = now_s();
    kill_process(pid, Signal::USR1)
        .map_err(|e| Failure::from_error(Exit::Unsupported, format!("process {pid:?}"), &std::io::Error::from(e)))?;
    let end = Instant::now() + PATIENCE.max(Duration::from_secs_f64(2.0 * before.window_s));
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
        let now = running(global)?;
        if let Some(reload) = answer(&before.status, asked_s, &now.status) {
            return said(global, &now, reload);
        }
    }
    Err(Failure::new(
        Exit::Partly,
        "not reloaded",
        "homenode has not answered; `homenode status` shows whether it runs",
    ))
}

/// The reload that read the files after it was asked for; another one may have been under way.
/// Where the clock was set back, the second one from then on.
fn answer<'a>(before: &Status, asked_s: f64, now: &'a Status) -> Option<&'a Reload> {
    let since = now.reloads.saturating_sub(before.reloads);
    now.reload.as_ref().filter(|reload| since > 1 || (since > 0 && reload.unix_s >= asked_s))
}

fn running(global: &Global) -> Result<Told, Failure> {
    match totals::read(&global.state_dir)? {
        Found::Now(told) => Ok(*told),
        Found::Stale(why, _) => Err(Failure::new(Exit::Partly, "not reloaded", why)),
    }
}

fn said(global: &Global, told: &Told, reload: &Reload) -> Result<Exit, Failure> {
    if let Some(why) = &reload.error {
        return Err(Failure::new(Exit::Usage, "not reloaded", why.clone()));
    }
    output::tell(global.json, reload, || {
        let rules = output::units::count(told.status.rules.len(), "rule");
        format!("reloaded: {rules}\n") + &output::notes(&reload.later)
    })?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon that had begun to read the files before they were right said so, and `reload` took
    /// that for its answer.
    #[test]
    fn an_earlier_reload_is_no_answer() {
        let status = |reloads, unix_s| {
            let reload = Some(Reload { unix_s, ..Reload::default() });
            Status { reloads, reload, ..Status::default() }
        };
        let before = status(3, 90.0);
        let answered = |now: &Status| answer(&before, 100.0, now).is_some();
        assert!(!answered(&before));
        assert!(!answered(&status(4, 99.9)), "it began before");
        assert!(answered(&status(4, 100.0)));
        assert!(answered(&status(5, 40.0)), "the clock was set back");
    }
}
