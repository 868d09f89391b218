//! `homenode.toml`: the bandwidth of nodes, which the kernel may not report, and limits on moves.
//!
//! `docs/homenode.toml` is the commented example; a test checks that its values are the defaults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use placement::rules::{Does, Rules};
use serde::Deserialize;
use topology::NodeId;
use topology::config::NodeConfig;

use crate::args::CONFIG_FILE;
use crate::exit::{self, Failure};
use crate::output::units;
use crate::rules::{self, Delegate, Drop, Service};
use crate::source::Source;

/// The whole file. Every section and key is optional; an unknown one is an error.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    #[serde(skip)]
    source: Source,
    /// `measured`: the file of `homenode nodes --measure`, if it is not the usual one.
    pub measured: Option<PathBuf>,
    /// `[node.N]`: the bandwidth of node N's memory, and whether it is for file data.
    pub node: BTreeMap<NodeId, NodeConfig>,
    /// `[nthread]`: thresholds of the nthread policies.
    pub nthread: placement::nthread::Settings,
    /// `[dragonfly]`: when a file moves instead of its readers.
    pub dragonfly: placement::dragonfly::Settings,
    /// `[npolicy]`: which node a process with mapped files belongs on.
    pub npolicy: placement::npolicy::Settings,
    /// `[arc]`: when a process moves to the node that caches its file.
    pub arc: placement::cache_affinity::Settings,
    /// `[promote]`: when parts of files move to faster memory.
    pub promote: placement::promote::Settings,
    /// Of policy auto, which has no section.
    #[serde(skip)]
    pub auto: placement::auto::Settings,
    /// `[engine]`: windows and safety rails.
    pub engine: engine::Settings,
    /// `[moves]`: limits on moves that copy.
    pub moves: engine::settings::Moves,
    /// `[[service]]`: which services may be moved, by which policy; with those of `conf.d`.
    pub service: Vec<Service>,
    /// `[delegate]`: what owners of control groups may choose; its rules are the last of `service`.
    pub delegate: Delegate,
    /// `[guardrail]`: when a service that was moved is put back.
    pub guardrail: engine::settings::Guardrail,
    /// `[history]`: what the daemon keeps of earlier windows.
    pub history: History,
}

/// What the daemon keeps of earlier windows: `[history]` in `homenode.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Whether it keeps any. Default true.
    pub keep: bool,
    /// What they may take on the disk. Default 200 MB: a week of 100 services takes some 150 MB.
    #[serde(deserialize_with = "topology::units::bytes")]
    pub bytes: u64,
}

impl Default for History {
    fn default() -> Self {
        Self { keep: true, bytes: 200_000_000 }
    }
}

impl Config {
    /// Reads the file the user named, or the usual one if it exists.
    pub fn load(named: Option<&Path>) -> Result<Self, Failure> {
        let (config, faults) = Self::gather(named.unwrap_or(Path::new(CONFIG_FILE)), named.is_some());
        faults.into_iter().next().map_or(Ok(config), Err)
    }

    /// Reads a file, which `must` be there, and its `conf.d`, and returns the first fault of each.
    pub fn gather(path: &Path, must: bool) -> (Self, Vec<Failure>) {
        let mut faults = Vec::new();
        // Not to know whether it is there is no reason to be silent.
        let absent = !must && matches!(path.try_exists(), Ok(false));
        let read = if absent { Ok(Self::default()) } else { Source::open(path).and_then(Self::of) };
        let mut config = read.unwrap_or_else(|fault| {
            faults.push(fault);
            Self::default()
        });
        if let Err(fault) = config.add_drops(path, &mut faults) {
            faults.push(fault);
        }
        let settings = engine::Settings { guardrail: config.guardrail.clone(), ..config.engine() };
        if let Err(error) = settings.validate() {
            let why = exit::chain(&error);
            faults.push(config.source.refuse(why.split(' ').next().unwrap_or_default(), why.clone()));
        }
        (config, faults)
    }

    /// The settings of the loop, with the limits on moves that copy. The guardrail is off: only who
    /// moves the load that it observes has one.
    pub fn engine(&self) -> engine::Settings {
        engine::Settings { moves: self.moves.clone(), ..self.engine.clone() }
    }

    /// The same for memory so many times as slow as any real one, and programs on it: what is
    /// bytes, or bytes per second, is as many times as small, and what a byte takes as many times
    /// as long. Other times stay: a policy's windows are those of a clock.
    #[must_use]
    pub fn slower(mut self, times: f64) -> Self {
        self.nthread.min_bytes = (self.nthread.min_bytes as f64 / times) as u64;
        let (dragonfly, moves) = (&mut self.dragonfly, &mut self.moves);
        for bytes in [
            &mut self.nthread.locality_margin,
            &mut dragonfly.migration_bw,
            &mut self.auto.file_copy_bw,
            &mut self.promote.reserve_bytes,
            &mut self.promote.rate,
            &mut moves.rate,
            &mut moves.bytes_per_day,
            &mut self.engine.busy_bytes_s,
        ] {
            *bytes /= times;
        }
        // At the scales of `cxl` and `dram` a mount with a policy did not start.
        moves.rate = moves.rate.max(engine::settings::LEAST_RATE.min(moves.rate * times));
        let auto = &mut self.auto;
        for seconds_per_byte in [&mut auto.nvm_read_s, &mut auto.nvm_write_s, &mut auto.dram_s] {
            *seconds_per_byte *= times;
        }
        self
    }

    /// The file of the values, and the line of a key of theirs, for messages.
    pub fn place(&self, key: &str) -> String {
        match self.source.path.as_os_str().is_empty() {
            true => "configuration".to_owned(),
            false => self.source.place(key),
        }
    }

    pub fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        Self::of(Source { path: path.to_owned(), text: text.to_owned() })
    }

    fn of(source: Source) -> Result<Self, Failure> {
        let mut config = Self { source: source.clone(), ..source.read()? };
        rules::settle(&mut config.service, &source, &source.text)?;
        Ok(config)
    }

    /// Adds the rules of `conf.d` beside this file. A file that is wrong is left out.
    fn add_drops(&mut self, path: &Path, faults: &mut Vec<Failure>) -> Result<(), Failure> {
        for file in rules::drops(path)? {
            let read = Source::open(&file).and_then(|source| {
                let Drop { mut service } = source.read()?;
                rules::settle(&mut service, &source, &self.source.text)?;
                Ok(service)
            });
            match read {
                Ok(mut service) => self.service.append(&mut service),
                Err(fault) => faults.push(fault),
            }
        }
        rules::number(&mut self.service);
        let delegated = self.delegate.services(&self.source.text);
        self.service.append(&mut delegated.map_err(|why| self.source.refuse("delegate", why))?);
        Ok(())
    }

    /// Values that can be and are hardly meant, with their lines.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let mut doubt = |key: &str, what: String| doubts.push(format!("{}: {key} is {what}", self.place(key)));
        for (id, node) in &self.node {
            for (key, rate) in [("read_bw_max", node.read_bw_max), ("write_bw_max", node.write_bw_max)] {
                if let Some(rate) = rate.filter(|rate| !(1e8..=1e13).contains(rate)) {
                    doubt(&format!("node.{id}.{key}"), format!("{}: memory has some GB/s", units::rate(rate)));
                }
            }
        }
        let Self { nthread, dragonfly, npolicy, arc, promote, moves, .. } = self;
        let budget = &self.engine.budget;
        if budget.cpu > 1.0 {
            doubt("engine.budget.cpu", format!("{} CPUs: 0.03 is three hundredths of one", budget.cpu));
        }
        if budget.memory_bytes < 16 << 20 {
            doubt("engine.budget.memory_bytes", format!("{}: it takes 20 to 40 MB", units::bytes(budget.memory_bytes)));
        }
        for (key, bytes, least) in [
            ("nthread.min_bytes", nthread.min_bytes, 4096),
            ("npolicy.min_bytes", npolicy.min_bytes, 4096),
            ("arc.min_read_size", arc.min_read_size, 512),
            ("arc.min_file", arc.min_file, 4096),
            ("promote.reserve_bytes", promote.reserve_bytes as u64, 1 << 20),
            ("moves.bytes_per_day", moves.bytes_per_day as u64, 1 << 20),
            ("history.bytes", self.history.bytes, 1 << 20),
        ] {
            if (1..least).contains(&bytes) {
                doubt(key, format!("{}: is the unit missing, as in \"{bytes} MB\"?", units::bytes(bytes)));
            }
        }
        for (key, rate) in [
            ("nthread.locality_margin", nthread.locality_margin),
            ("dragonfly.migration_bw", dragonfly.migration_bw),
            ("arc.process_copy_bw", arc.process_copy_bw),
            ("promote.rate", promote.rate),
        ] {
            if rate > 0.0 && rate < 1e6 {
                doubt(key, format!("{}: memory has some GB/s", units::rate(rate)));
            }
        }
        doubts
    }

    /// What `[[service]]` allows; what no rule matches is observed.
    pub fn rules(&self) -> Rules {
        Rules { list: self.service.iter().map(Service::rule).collect(), rest: Does::Observe }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text, Path::new("h.toml")).unwrap_err().to_string()
    }

    /// The engine took threads of emulated volumes for idle: they do a 200th of what real ones do.
    #[test]
    fn slower_memory_has_smaller_thresholds_and_the_same_times() {
        let (config, slow) = (Config::default(), Config::default().slower(200.0));
        let bytes = |c: &Config| {
            let d = &c.dragonfly;
            let promote = &c.promote;
            let policy =
                [c.nthread.locality_margin, d.migration_bw, c.auto.file_copy_bw, promote.reserve_bytes, promote.rate];
            let engine = c.engine();
            (policy, [engine.moves.rate, engine.moves.bytes_per_day, engine.busy_bytes_s])
        };
        let (real, slower) = (bytes(&config), bytes(&slow));
        assert_eq!(slower, (real.0.map(|bytes| bytes / 200.0), real.1.map(|bytes| bytes / 200.0)));
        let byte_s = |c: &Config| [c.auto.nvm_read_s, c.auto.nvm_write_s, c.auto.dram_s];
        assert_eq!(byte_s(&slow), byte_s(&config).map(|s| s * 200.0));
        assert_eq!((config.nthread.min_bytes, slow.nthread.min_bytes), (4 << 20, 20_971));
        // The engine takes no lower rate.
        assert_eq!(Config::default().slower(5000.0).moves.rate, 1e6);
        assert_eq!(slow.slower(1.0 / 200.0).dragonfly.max_window_s, config.dragonfly.max_window_s);
    }

    #[test]
    fn the_example_is_the_default() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/homenode.toml");
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(Config::parse(&text, Path::new(path)).unwrap(), Config::default());
        // What is commented out (values that have no default) must parse too.
        let all: String = text.lines().map(|l| l.strip_prefix("#: ").unwrap_or(l).to_owned() + "\n").collect();
        let all = Config::parse(&all, Path::new(path)).unwrap();
        assert_eq!((all.node.len(), all.service.len()), (2, 2));
    }

    #[test]
    fn a_rule_has_its_own_settings_over_those_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("homenode.toml");
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        fs::write(
            &file,
            "[nthread]\ncpu_limit = 0.5\nmin_bytes = \"1 MB\"\n[[service]]\nname = \"db\"\n\
            unit = [\"postgres*\", \"mysql\"]\npolicy = \"nthread\"\nnthread = { min_bytes = \"2 MB\" }\n",
        )
        .unwrap();
        // Two packages may choose one name.
        let again = "[[service]]\nname = \"db\"\nunit = \"db\"\npolicy = \"arc\"\n";
        fs::write(dir.path().join("conf.d/30-db.toml"), again).unwrap();
        let batch = "[[service]]\nuser = [0, \"root\"]\npolicy = \"dragonfly\"\nbytes_per_day = \"1 GB\"\n\
            [[service]]\ngroup = \"/\"\npolicy = \"ignore\"\n";
        fs::write(dir.path().join("conf.d/20-batch.toml"), batch).unwrap();
        fs::write(dir.path().join("conf.d/10-web.toml"), "[[service]]\npod = \"web/*\"\npolicy = \"observe\"\n")
            .unwrap();
        fs::write(dir.path().join("conf.d/other.txt"), "none of ours").unwrap();
        std::os::unix::fs::symlink("me@here.1", dir.path().join("conf.d/.#10-web.toml")).unwrap();
        let config = Config::load(Some(&file)).unwrap();
        let rules = config.rules();
        let all: Vec<_> = rules.list.iter().map(|rule| (rule.name.to_string(), rule.does)).collect();
        let expected = [
            ("db", Does::Move),
            ("web/*", Does::Observe),
            ("user 0", Does::Move),
            ("/", Does::Ignore),
            ("db (2)", Does::Move),
        ];
        assert_eq!(all, expected.map(|(name, does)| (name.to_owned(), does)));
        let nthread = |at: usize| &config.service[at].settings.nthread;
        assert_eq!((nthread(0).min_bytes, nthread(0).cpu_limit), (2_000_000, 0.5));
        assert_eq!((nthread(2).min_bytes, config.service[2].bytes_per_day), (1_000_000, 1e9));
        assert_eq!(config.service[2].settings.auto.min_bytes, 1_000_000);
        fs::write(dir.path().join("conf.d/10-web.toml"), "[engine]\n").unwrap();
        let error = Config::load(Some(&file)).unwrap_err().to_string();
        assert!(error.contains("10-web.toml:1:") && error.contains("unknown key"), "{error}");
    }

    /// Root's file names what owners may choose; without that they may choose nothing.
    #[test]
    fn policies_that_owners_may_choose_are_the_last_rules() {
        let load = |text: &str| {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("homenode.toml");
            fs::write(&file, text).unwrap();
            Config::load(Some(&file)).map_err(|error| error.to_string())
        };
        assert_eq!(load("[delegate]\nbytes_per_day = \"1 GB\"\n").unwrap().service, []);
        let text = "[nthread]\nmin_bytes = \"1 MB\"\n[delegate]\npolicies = [\"nthread\", \"arc\"]\n\
            [[service]]\nunit = \"db\"\npolicy = \"observe\"\n";
        let config = load(text).unwrap();
        let rules = config.rules().list;
        let all: Vec<_> = rules.iter().map(|rule| (&*rule.name, rule.of.chosen.as_deref(), rule.does)).collect();
        let expected = [
            ("db", None, Does::Observe),
            ("delegated nthread", Some("nthread"), Does::Move),
            ("delegated arc", Some("arc"), Does::Move),
        ];
        assert_eq!(all, expected);
        let nthread = &config.service[1];
        assert_eq!((nthread.settings.nthread.min_bytes, nthread.bytes_per_day), (1_000_000, 0.0));
        let limited = load(&text.replace("\"arc\"]", "\"arc\"]\nbytes_per_day = \"2 GB\"")).unwrap();
        assert_eq!(limited.service[2].bytes_per_day, 2e9);
        for (text, why) in [
            ("[delegate]\npolicies = [\"observe\"]", "no policy is called observe"),
            ("[delegate]\npolicies = [\"exec:/bin/sh\"]", "no policy is called exec:/bin/sh"),
            ("[delegate]\npolicy = \"arc\"", "unknown key `policy`"),
            ("[[service]]\nname = \"delegated arc\"\nunit = \"a\"\npolicy = \"arc\"", "those of [delegate]"),
        ] {
            let error = load(text).unwrap_err();
            assert!(error.contains("homenode.toml") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_rule_that_cannot_be_is_named_with_its_line() {
        for (rule, place, why) in [
            ("unit = \"a\"\npolicy = \"numad\"", "h.toml:3:", "numad: it is none of ignore, observe, nthread"),
            ("unit = \"a\"", "h.toml:1:", "the key `policy` is missing"),
            ("unit = \"***\"\npolicy = \"observe\"", "h.toml:2:", "*** is no pattern"),
            ("unit = [\"a\", \"\"]\npolicy = \"observe\"", "h.toml:2:", "an empty name"),
            ("user = \"nobody-here\"\npolicy = \"observe\"", "h.toml:2:", "no user is called nobody-here"),
            ("user = 1.5\npolicy = \"observe\"", "h.toml:2:", "the name or the id of a user"),
            ("policy = \"observe\"", "h.toml:", "names no unit"),
            ("unit = \"a\"\npolicy = \"observe\"\narc = {}", "h.toml:", "arc is set, and policy observe decides"),
            ("unit = \"a\"\npolicy = \"arc\"\narc = { margins = 1 }", "h.toml:4:", "`margins`"),
            ("unit = \"a\"\npolicy = \"arc\"\nbytes_per_day = \"x\"", "h.toml:4:", "x"),
            ("unit = \"a\"\npolicy = \"observe\"\nbytes_per_day = \"1 GB\"", "h.toml:", "copies nothing"),
            ("group = \"system.slice\"\npolicy = \"observe\"", "h.toml:", "begins with /"),
            ("pod = \"web\"\npolicy = \"observe\"", "h.toml:", "NAMESPACE/NAME"),
            ("command = \"postgres_exporter\"\npolicy = \"observe\"", "h.toml:", "15 bytes"),
        ] {
            let error = error(&format!("[[service]]\n{rule}\n"));
            assert!(error.contains(place) && error.contains(why), "{rule}: {error}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        for (text, place, key) in [
            ("[engine]\nwindow_s = 1.0\nwindows = 3\n", "h.toml:3:", "`windows`"),
            ("\n\n[nthraed]\n", "h.toml:3:", "`nthraed`"),
            ("[node.0]\nread_bandwidth = 3\n", "h.toml:2:", "`read_bandwidth`"),
        ] {
            let error = error(text);
            assert!(error.contains(place) && error.contains("unknown key") && error.contains(key), "{error}");
        }
    }

    /// 90 meant 90 %, and was taken for 90 times the node's CPUs.
    #[test]
    fn a_percentage_is_no_share_and_inf_is_no_limit() {
        for key in ["cpu_limit", "controller_limit"] {
            for value in ["90", "2.1", "0.0", "-inf", "nan"] {
                let error = error(&format!("[nthread]\n{key} = {value}\n"));
                assert!(error.contains("h.toml:2:") && error.contains("is not a share"), "{error}");
            }
        }
        let limit = |text: &str| Config::parse(text, Path::new("h.toml")).unwrap().nthread.cpu_limit;
        assert_eq!((limit("[nthread]\ncpu_limit = inf"), limit("[nthread]\ncpu_limit = 1.01")), (f64::INFINITY, 1.01));
    }

    /// Users were told of f64, u32 and structs, and values that a check refuses had no line.
    #[test]
    fn what_is_wrong_is_said_in_words_and_with_its_line() {
        let rule = "[[service]]\nunit = \"a\"\npolicy = \"arc\"\n";
        for (text, says) in [
            ("[engine\n", "1: "),
            ("[node.zero]\nfile_data = true\n", "1: a node is a whole number"),
            ("[node.0]\n\nread_bw_max = \"fast\"\n", "3: `fast`: expected a number with a unit, such as 200MB/s"),
            ("[node.0]\nread_bw_max = 6.8\n", "2: `6.8`: the unit is missing, as in \"6.8MB/s\""),
            (
                "[node.0]\nread_bw_max = true\n",
                "2: read_bw_max must be text such as \"200MB/s\" or \"4MiB\", and is true",
            ),
            ("[node.0]\nfile_data = 1\n", "2: file_data must be true or false, and is 1"),
            ("node = 3\n", "1: node must be a section, and is 3"),
            ("measured = 3\n", "1: measured must be text in quotes, and is 3"),
            ("\n[engine]\nwindow_s = \"long\"\n", "3: window_s must be a number, and is the text \"long\""),
            ("[engine]\nburst = 1.5\n", "2: burst must be a whole number, not below 0, and is 1.5"),
            ("[engine]\nburst = -1\n", "2: burst must be a whole number, not below 0, and is -1"),
            ("[engine]\ndry_run = \"no\"\n", "2: dry_run must be true or false, and is the text \"no\""),
            ("[engine]\nwindow_s = 1\nwindow_s = 2\n", "3: duplicate key"),
            ("[delegate]\npolicies = \"arc\"\n", "2: policies must be a list in brackets, and is the text \"arc\""),
            ("[delegate]\npolicies = [3]\n", "2: this must be text in quotes, and is 3"),
            ("service = 3\n", "1: service must be a list in brackets, and is 3"),
            ("[engine]\nwindows_s = 1.0\n", "2: unknown key `windows_s`: is `window_s` meant?"),
            ("[moves]\nx = 1.0\n", "2: unknown key `x`: known here are rate, bytes_per_day, at_once, rollback"),
            ("[nthread]\ncpu_limit = 90\n", "2: 90 is not a share: above 0"),
            (&format!("{rule}nthread = {{ min_bytes = [] }}"), "4: min_bytes must be text such as"),
            (&format!("{rule}nthread = 3"), "4: nthread must be a section, and is 3"),
            (&format!("{rule}[[service]]\nname = \"b\"\npolicy = \"arc\""), "4: service b: it names no unit"),
        ] {
            let error = error(text);
            assert!(error.starts_with(&format!("homenode: h.toml:{says}")), "{text}: {error}");
            let rust =
                ["f64", "u32", "struct", "integer", "floating", "boolean", "sequence", " map", "invalid", "field"];
            assert!(!rust.iter().any(|word| error.contains(word)), "{error}");
        }
    }

    fn gathered(text: &str) -> (Vec<String>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("h.toml");
        fs::write(&file, text).unwrap();
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        fs::write(dir.path().join("conf.d/1.toml"), "\n[engine]\n").unwrap();
        fs::write(dir.path().join("conf.d/2.toml"), "[[service]]\nunit = \"b\"\npolicy = \"arc\"").unwrap();
        let (config, faults) = Config::gather(&file, true);
        assert_eq!(config.service.len(), 1);
        let bare = |line: String| line.replace(&format!("{}/", dir.path().display()), "");
        (faults.iter().map(|fault| bare(fault.line())).collect(), config.doubts().into_iter().map(bare).collect())
    }

    #[test]
    fn each_file_has_its_fault_and_what_a_check_refuses_has_its_line() {
        let drop = "conf.d/1.toml:2: unknown key `engine`: known here are service".to_owned();
        let (faults, _) = gathered("[engine]\ndwell_s = 1\n\nwindow_s = -1\n");
        assert_eq!(faults, [drop.clone(), "h.toml:4: engine.window_s is -1, it must be 0.01 to 3600".to_owned()]);
        let (faults, _) = gathered("engine = 3");
        assert_eq!(faults, ["h.toml:1: engine must be a section, and is 3".to_owned(), drop]);
    }

    /// GB/s, MB and per cent were meant.
    #[test]
    fn values_that_are_hardly_meant_are_questioned_and_those_of_the_example_are_not() {
        let (_, doubts) = gathered(
            "[node.0]\nread_bw_max = \"6 B/s\"\n[nthread]\nmin_bytes = 4\n[engine.budget]\ncpu = 300\n\
            [promote]\nrate = \"250 B/s\"\n",
        );
        let expected = [
            "h.toml:2: node.0.read_bw_max is 6 B/s: memory has some GB/s",
            "h.toml:6: engine.budget.cpu is 300 CPUs: 0.03 is three hundredths of one",
            "h.toml:4: nthread.min_bytes is 4 B: is the unit missing, as in \"4 MB\"?",
            "h.toml:8: promote.rate is 250 B/s: memory has some GB/s",
        ];
        assert_eq!(doubts, expected);
        assert_eq!(Config::default().doubts(), <[String; 0]>::default());
    }
}
