//! `homenode reload`: has the daemon read its rules again, and says what came of it.

use std::time::{Duration, Instant};

use command::args::Global;
use rustix::process::{Pid, Signal, kill_process};
use session::status::Reload;
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
    kill_process(pid, Signal::USR1)
        .map_err(|e| Failure::from_error(Exit::Unsupported, format!("process {pid:?}"), &std::io::Error::from(e)))?;
    let end = Instant::now() + PATIENCE.max(Duration::from_secs_f64(2.0 * before.window_s));
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
        let now = running(global)?;
        if let Some(reload) = now.status.reload.as_ref().filter(|_| now.status.reloads > before.status.reloads) {
            return said(global, &now, reload);
        }
    }
    Err(Failure::new(
        Exit::Partly,
        "not reloaded",
        "homenode has not answered; `homenode status` shows whether it runs",
    ))
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
