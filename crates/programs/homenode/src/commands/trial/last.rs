//! The last trial, as `homenode report` shows it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::commands::replace;
use crate::exit::Failure;

const FILE: &str = "trial.json";

/// How a trial began and ended, in the forms of `homenode trial --json`, and what it printed at its
/// end. Names of processes can be in it, so only root may read the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Last {
    /// Format version, 1.
    version: u32,
    /// When it ended: seconds since 1970.
    unix_s: u64,
    start: Value,
    end: Value,
}

impl Last {
    pub fn new(start: Value, end: Value) -> Self {
        let unix_s = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        Self { version: 1, unix_s, start, end }
    }

    pub fn save(&self, state_dir: &Path) -> Result<(), Failure> {
        let path = state_dir.join(FILE);
        let text = serde_json::to_string(self).map_err(|e| Failure::io("write", &path, &e.into()))?;
        replace::write(&path, &text, 0o600)
    }

    /// What it found, without what names processes or files.
    pub fn value(&self) -> Value {
        let mut value = without_names(&self.start);
        if let Some(object) = value.as_object_mut() {
            object.insert("unix_s".to_owned(), json!(self.unix_s));
            object.insert("end".to_owned(), of(&self.end, &["rounds", "dropped", "stopped", "results"]));
        }
        value
    }

    /// The verdicts in a line each.
    pub fn text(&self) -> String {
        let results = self.end.get("results").and_then(Value::as_array);
        let line = |result: &Value| {
            let word = |key: &str| result.get(key).and_then(Value::as_str).unwrap_or("unknown").to_owned();
            let primary = result.get("outcomes").and_then(|outcomes| outcomes.get(word("primary")));
            let percent = |key: &str| {
                let value = primary.and_then(|primary| primary.get(key)).and_then(Value::as_f64);
                value.map_or("unknown".to_owned(), |value| format!("{:+.1} %", 100.0 * value))
            };
            format!(
                "policy {}: {}; {} changed by {}, 95 % interval {} to {}\n",
                word("policy"),
                word("verdict").replace('_', " "),
                word("primary"),
                percent("relative"),
                percent("relative_low"),
                percent("relative_high"),
            )
        };
        results.into_iter().flatten().map(line).collect()
    }
}

/// How a trial began, without what names processes or files.
pub fn without_names(start: &Value) -> Value {
    of(start, &["policies", "rounds", "period_s", "wash_out_s", "window_s", "seed", "primary", "nodes"])
}

fn of(value: &Value, keys: &[&str]) -> Value {
    keys.iter().filter_map(|key| Some(((*key).to_owned(), value.get(key)?.clone()))).collect()
}

/// The last trial that used this state directory; or why there is none.
pub fn read(state_dir: &Path) -> Result<Last, String> {
    let path = state_dir.join(FILE);
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|_| format!("{FILE} is not of this version")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err("there was none since this machine started: `sudo homenode trial`".to_owned())
        }
        Err(error) => Err(crate::exit::errno_names(&format!("{FILE} cannot be read: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_told_without_names() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap_err().contains("there was none"));
        let start = json!({"policies": ["nthread"], "rounds": 15, "recovered": {"notes": ["secret"]}});
        let outcome = json!({"relative": 0.123, "relative_low": 0.1, "relative_high": null});
        let results = json!([{"policy": "nthread", "verdict": "no_difference_seen", "primary": "read_bytes_per_cpu_s",
            "outcomes": {"read_bytes_per_cpu_s": outcome}}]);
        Last::new(start, json!({"rounds": 15, "results": results, "put_back": "secret"})).save(dir.path()).unwrap();
        let last = read(dir.path()).unwrap();
        assert_eq!(
            last.text(),
            "policy nthread: no difference seen; read_bytes_per_cpu_s changed by +12.3 %, 95 % interval +10.0 % to unknown\n"
        );
        let value = last.value();
        assert_eq!((&value["rounds"], &value["end"]["results"][0]["policy"]), (&json!(15), &json!("nthread")));
        assert!(!value.to_string().contains("secret"), "{value}");
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
