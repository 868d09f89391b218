//! From the file's form to a scenario, with every value checked.

use std::path::Path;

use toml::Spanned;

use super::amount::shown;
use super::raw::{Raw, RawWorkload};
use super::{ScenarioError, ScenarioFile};
use crate::machine::Machine;
use crate::run::Scenario;
use crate::world::Launch;

pub(super) struct Checker<'a> {
    pub text: &'a str,
    pub path: &'a Path,
    /// Nodes to use instead of the file's.
    pub topology: Option<topology::Topology>,
}

/// Longest run.
const LONGEST_S: f64 = 1e6;
/// Most threads of a scenario.
const MOST_THREADS: u32 = 1_000_000;

/// Segment that `Spanned` adds to the path of a key.
const SPANNED: &str = ".$__serde_spanned_private_value";

impl Checker<'_> {
    /// The file's form: keys that are known, with values of the right type.
    pub fn raw(&self) -> Result<Raw, ScenarioError> {
        let syntax = |e: &toml::de::Error, key: &str| {
            // A parser without a position stopped at the end.
            let at = e.span().map_or(self.text.len(), |span| span.start);
            let why = e.message().replace('\n', ", ");
            match key.is_empty() {
                true => ScenarioError::Syntax { path: self.path.to_owned(), line: self.line(at), why },
                false => self.error_at(at..at, key.to_owned(), why),
            }
        };
        let parsed = toml::Deserializer::parse(self.text).map_err(|e| syntax(&e, ""))?;
        serde_path_to_error::deserialize(parsed).map_err(|e| {
            // `Spanned`'s private key is not a key of the file.
            let key = e.path().to_string().replace(SPANNED, "");
            let key = key.trim_start_matches('.');
            syntax(e.inner(), key)
        })
    }

    pub fn file(&self, raw: Raw) -> Result<ScenarioFile, ScenarioError> {
        let duration_s = self.within(&raw.duration_s, "duration_s", f64::MIN_POSITIVE, LONGEST_S)?;
        let warmup_s = match &raw.warmup_s {
            Some(warmup) => self.within(warmup, "warmup_s", 0.0, duration_s)?,
            None => 0.0,
        };
        let engine = match &raw.engine {
            Some(engine) => {
                let settings = engine.get_ref();
                settings.validate().map_err(|e| self.error(engine, "engine", e.to_string()))?;
                settings.clone()
            }
            None => engine::Settings::default(),
        };
        let policy = match raw.policy {
            Some(policy) => {
                let name = policy.get_ref();
                if name != "none" && placement::policy(name, &raw.nthread).is_none() {
                    let known: Vec<&str> = placement::POLICIES.iter().map(|p| p.0).collect();
                    let why = format!("`{name}` is not a policy: none, {}", known.join(", "));
                    return Err(self.error(&policy, "policy", why));
                }
                policy.into_inner()
            }
            None => "nthread".to_owned(),
        };
        let machine = self.machine(&raw.machine)?;
        let mut launches = Vec::new();
        if raw.workload.is_empty() {
            let why = "there is no [[workload]]: nothing would run".to_owned();
            return Err(self.error(&raw.machine, "workload", why));
        }
        for (i, workload) in raw.workload.iter().enumerate() {
            let launch = self.workload(&machine, workload, i)?;
            // Results are told apart by it.
            if let Some(other) = launches.iter().position(|l: &Launch| l.job.name == launch.job.name) {
                let why = format!("workload[{other}] is named `{}` already", launch.job.name);
                return Err(self.error(workload, &format!("workload[{i}].name"), why));
            }
            launches.push(launch);
        }
        self.fits(&machine, &launches, &raw.workload)?;
        let name = raw.name.unwrap_or_else(|| {
            self.path.file_stem().map_or_else(|| "scenario".to_owned(), |s| s.to_string_lossy().into_owned())
        });
        Ok(ScenarioFile {
            scenario: Scenario {
                name,
                machine,
                launches,
                duration_s,
                warmup_s,
                autonuma: raw.autonuma.unwrap_or(false),
                engine,
            },
            policy,
            seed: raw.seed.unwrap_or(1),
            nthread: raw.nthread,
        })
    }

    /// Everything has to fit into memory.
    fn fits(&self, machine: &Machine, launches: &[Launch], raw: &[Spanned<RawWorkload>]) -> Result<(), ScenarioError> {
        let all: f64 = machine.nodes().iter().map(|n| n.capacity).sum();
        let threads: u32 = launches.iter().fold(0, |sum, l| sum.saturating_add(l.job.threads()));
        let mut used = 0.0;
        for (i, (launch, raw)) in launches.iter().zip(raw).enumerate() {
            let bytes = launch.job.file_bytes();
            used += bytes + launch.job.process_bytes;
            let RawWorkload { file_size, files, keys, .. } = raw.get_ref();
            let at = |key: &str, place: std::ops::Range<usize>| (format!("workload[{i}].{key}"), place);
            if threads > MOST_THREADS {
                let (key, span) = match &raw.get_ref().threads {
                    Some(threads) => at("threads", threads.span()),
                    None => at("kind", raw.get_ref().kind.span()),
                };
                return Err(self.error_at(span, key, format!("{threads} threads in all, at most {MOST_THREADS}")));
            }
            let (key, span) = match (file_size, files, keys) {
                (Some(size), ..) => at("file_size", size.span()),
                (_, Some(files), _) => at("files", files.span()),
                (.., Some(keys)) => at("keys", keys.span()),
                _ => at("kind", raw.get_ref().kind.span()),
            };
            if used > all {
                let why = match bytes > all {
                    true => format!("its files are {}, all memory of the machine is {}", gib(bytes), gib(all)),
                    false => {
                        format!("with it all workloads need {}, all memory of the machine is {}", gib(used), gib(all))
                    }
                };
                return Err(self.error_at(span, key, why));
            }
        }
        Ok(())
    }

    /// A number within limits.
    pub fn within(&self, value: &Spanned<f64>, key: &str, least: f64, most: f64) -> Result<f64, ScenarioError> {
        let v = *value.get_ref();
        let shown = shown(v);
        match v >= least && v <= most {
            true => Ok(v),
            false if least == f64::MIN_POSITIVE => {
                Err(self.error(value, key, format!("{shown} is not a number above 0, at most {most}")))
            }
            false => Err(self.error(value, key, format!("{shown} is not a number from {least} to {most}"))),
        }
    }

    /// A complaint about a value.
    pub fn error<T>(&self, value: &Spanned<T>, key: &str, why: String) -> ScenarioError {
        self.error_at(value.span(), key.to_owned(), why)
    }

    /// A complaint about a place in the file.
    pub fn error_at(&self, span: std::ops::Range<usize>, key: String, why: String) -> ScenarioError {
        ScenarioError::Value { path: self.path.to_owned(), line: self.line(span.start), key, why }
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count()
    }
}

fn gib(bytes: f64) -> String {
    format!("{:.1} GiB", bytes / (1u64 << 30) as f64)
}
