//! Each parser of what others wrote, with inputs that are nearly right: none may panic.
//!
//! An ordinary run takes every file of `corpus/`, and some hundred mutations of each parser's
//! inputs, always the same. `make fuzz SECONDS=60` goes on for so long, and writes an input that
//! panics to `corpus/PARSER/`, where it stays a test.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::cell::RefCell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use command::config::Config;
use engine::journal;
use engine::state::records;
use placement::{POLICIES, Snapshot, policy_with};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

/// Mutations of an ordinary run.
const FEW: u32 = 300;
/// Longest input, bytes: what grows without end finds nothing more.
const LONGEST: usize = 64 << 10;

/// What a parser stumbles over.
const WORDS: [&str; 22] = [
    "null",
    "-1",
    "0",
    "1e400",
    "-0.0",
    "NaN",
    "inf",
    "18446744073709551615",
    "18446744073709551616",
    "4294967295",
    "0-4294967295",
    "0x",
    "\u{202e}",
    "\"\"",
    "{}",
    "[]",
    "[[[[[[[[",
    "\n",
    "\\",
    "\u{0}",
    "true",
    "kB",
];

/// The name of a parser, inputs that it takes, and the parser with what is made of its result.
type Target = (&'static str, fn() -> Vec<Vec<u8>>, fn(&[u8]));

#[test]
fn snapshots() {
    fuzz(("snapshot", || vec![here("inputs/two-nodes.json"), here("inputs/quiet.json")], snapshot));
}

#[test]
fn configuration() {
    fuzz(("config", || vec![config_of_docs()], config));
}

#[test]
fn journals() {
    fuzz(("journal", Vec::new, journal));
}

#[test]
fn state_files() {
    fuzz(("state", Vec::new, |bytes| _ = records::replay(bytes)));
}

#[test]
fn histories() {
    fuzz(("history", Vec::new, history));
}

#[test]
fn records_of_the_observer() {
    // A mebibyte of small numbers is a long pass.
    let seeds = || vec![vec![0; 512], (0..4096u32).flat_map(|n| (n % 7).to_ne_bytes()).collect()];
    fuzz(("records", seeds, observe::decode_any));
}

#[test]
fn sysfs_trees() {
    fuzz(("sysfs", machines, sysfs));
}

fn snapshot(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(snapshot) = Snapshot::from_json(text) else { return };
    let topology = snapshot.topology();
    for (name, _) in POLICIES {
        let mut policy = policy_with(name, &placement::Settings::default()).unwrap();
        policy.decide(&topology, &snapshot);
    }
}

fn config(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(config) = Config::parse(text, Path::new("x.toml")) else { return };
    let _ = config.engine().validate();
    let _ = topology::sysfs::read(&fixtures().join("two-sockets")).unwrap().configure(&config.node);
}

thread_local! {
    static DIR: tempfile::TempDir = tempfile::tempdir().unwrap();
}

fn journal(bytes: &[u8]) {
    DIR.with(|dir| {
        let file = dir.path().join("journal");
        fs::write(&file, bytes).unwrap();
        journal::history(journal::read(&file).unwrap());
    });
}

fn history(bytes: &[u8]) {
    let mut map = session::map::Map::default();
    for summary in session::history::decode_any(bytes) {
        map.add_summary(&summary);
        summary.window(String::new());
    }
    map.report(10);
}

/// A tree is packed: names and texts of files in turn, each with a byte after it that no text has.
const NEXT: u8 = 0x1c;

fn sysfs(bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let mut parts = bytes.split(|byte| *byte == NEXT);
    while let (Some(name), Some(text)) = (parts.next(), parts.next()) {
        let name = String::from_utf8_lossy(name).replace(['\0', '\n'], "_");
        let path = Path::new(&name);
        if !path.components().all(|part| matches!(part, std::path::Component::Normal(_))) {
            continue;
        }
        let path = dir.path().join(path);
        // A name may be too long, or be that of a directory.
        let _ = fs::create_dir_all(path.parent().unwrap()).and_then(|()| fs::write(&path, text));
    }
    if let Ok(machine) = topology::sysfs::read(dir.path()) {
        assert!(!machine.nodes.is_empty() && !machine.cpus().is_empty(), "a machine without nodes or CPUs");
        topology::sysfs::free_memory(dir.path(), &machine);
    }
}

fn machines() -> Vec<Vec<u8>> {
    fs::read_dir(fixtures()).unwrap().map(|machine| packed(&machine.unwrap().path())).collect()
}

fn packed(root: &Path) -> Vec<u8> {
    let (mut all, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(at) = left.pop() {
        match at.is_dir() && !at.is_symlink() {
            true => left.extend(fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path())),
            false => {
                all.extend(at.strip_prefix(root).unwrap().to_str().unwrap().as_bytes());
                all.push(NEXT);
                all.extend(fs::read(&at).unwrap_or_default());
                all.push(NEXT);
            }
        }
    }
    all
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ground/topology/tests/fixtures")
}

fn here(file: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file)).unwrap()
}

/// The example, with the keys that it shows in comments.
fn config_of_docs() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/homenode.toml");
    fs::read_to_string(path).unwrap().replace("#: ", "").into_bytes()
}

fn fuzz((name, seeds, run): Target) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut inputs = seeds();
    for file in files {
        let input = fs::read(&file).unwrap();
        assert!(passes(run, &input), "{} panics again", file.display());
        inputs.push(input);
    }
    assert!(!inputs.is_empty(), "{name} has no input to begin with");
    let seconds = std::env::var("HOMENODE_FUZZ_SECONDS").ok().map(|seconds| seconds.parse::<f64>().unwrap());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let seed = if end.is_some() { u64::from(std::process::id()) } else { 1 };
    let mut chance = ChaCha12Rng::seed_from_u64(seed);
    let mut tries = 0;
    while end.map_or(tries < FEW, |end| Instant::now() < end) {
        let input = mutated(&inputs, &mut chance);
        if !passes(run, &input) {
            let hash = input.iter().fold(0u64, |hash, byte| hash.rotate_left(5) ^ u64::from(*byte));
            let file = dir.join(format!("panic-{hash:016x}"));
            fs::write(&file, &input).unwrap();
            panic!("{name} panics with {}", file.display());
        }
        tries += 1;
    }
    println!("{name}: {tries} inputs (seed {seed})");
}

fn passes(run: fn(&[u8]), input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| run(input))).is_ok()
}

/// One of the inputs, changed in one to eight places.
fn mutated(inputs: &[Vec<u8>], chance: &mut ChaCha12Rng) -> Vec<u8> {
    let chance = RefCell::new(chance);
    let below = |n: usize| if n == 0 { 0 } else { chance.borrow_mut().random_range(0..n) };
    let mut input = inputs[below(inputs.len())].clone();
    for _ in 0..=below(8) {
        let at = below(input.len() + 1);
        let end = (at + 1 + below(1 << below(8))).min(input.len());
        match below(8) {
            0 if at < input.len() => input[at] ^= 1 << below(8),
            1 if at < input.len() => input[at] = below(256) as u8,
            2 => _ = input.drain(at..end),
            3 => {
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            4 => {
                let other = &inputs[below(inputs.len())];
                let from = below(other.len() + 1);
                let part = other[from..(from + below(200)).min(other.len())].to_vec();
                input.splice(at..end, part);
            }
            5 => input.truncate(at.max(1)),
            // A number, or a word.
            _ => {
                let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-+.".contains(byte);
                let from = at + input[at..].iter().position(token).unwrap_or(input.len() - at);
                let to = from + input[from..].iter().take_while(|byte| token(byte)).count();
                input.splice(from..to, WORDS[below(WORDS.len())].bytes());
            }
        }
    }
    input.truncate(LONGEST);
    input
}
