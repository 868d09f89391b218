//! A volume in memory, its image, and its server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::mounted::Server;
use serde::Deserialize;
use tempfile::TempDir;

/// A line of `homenode mount --json`.
#[derive(Deserialize)]
pub struct Line {
    pub kind: String,
    #[serde(default)]
    pub window_s: f64,
    #[serde(default)]
    pub read_bytes: u64,
    #[serde(default)]
    pub remote_bytes: u64,
    #[serde(default)]
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub moves: Vec<Move>,
}

#[derive(Deserialize)]
pub struct Node {
    pub node: u32,
    pub read_bytes: u64,
    pub write_bytes: u64,
}

#[derive(Deserialize)]
pub struct Move {
    pub kind: String,
    pub from: u32,
    pub to: u32,
}

/// Files of a volume, and where it is mounted; taken away when dropped.
pub struct Place {
    dir: TempDir,
    homenode: PathBuf,
    regions: [PathBuf; 2],
    mount: PathBuf,
}

impl Place {
    pub fn new(data: &Path, homenode: &Path) -> Result<Self> {
        let dir = lab::scratch(data, "homenode-volume-")?;
        let [a, b, mount] = ["a", "b", "mount"].map(|name| dir.path().join(name));
        fs::create_dir_all(&mount).with_context(|| mount.display().to_string())?;
        Ok(Self { regions: [a, b], mount, dir, homenode: homenode.to_owned() })
    }

    /// The directory of application `i`.
    pub fn of(&self, i: u32) -> PathBuf {
        self.mount.join(format!("application{i}"))
    }

    /// A file of this name and content.
    pub fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir.path().join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Makes the volume as it is in the image of this name, which `fill` makes if there is none:
    /// for each application with this placement of new data.
    pub fn restore(
        &self,
        image: &str,
        bytes: f64,
        placements: &[String],
        fill: impl Fn(&Path) -> Result<()>,
    ) -> Result<()> {
        let saved = [0, 1].map(|region| self.dir.path().join(format!("{image}.{region}")));
        if saved[1].exists() {
            return saved.iter().zip(&self.regions).try_for_each(|(from, to)| copy(from, to));
        }
        for region in &self.regions {
            match fs::remove_file(region) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).context("a region"),
                _ => {}
            }
        }
        // What is written anew goes to new blocks before the old ones are free; RocksDB keeps old
        // tables for a while.
        let size = format!("{:.0}", 3.0 * bytes + f64::from(160 << 20));
        let at = |region: usize| format!("{}@{region}", self.regions[region].display());
        // As the papers' file system has none.
        let plain = "--no-data-checksums";
        let made = Command::new(&self.homenode).args(["mkfs", plain, "--size", &size, &at(0), &at(1)]).output()?;
        ensure!(made.status.success(), "mkfs: {}", String::from_utf8_lossy(&made.stderr));
        for (i, placement) in placements.iter().enumerate() {
            let server = self.serve(&["--placement", placement])?;
            fill(&self.of(i as u32))?;
            server.stop()?;
        }
        self.regions.iter().zip(&saved).try_for_each(|(from, to)| copy(from, to))
    }

    /// Mounts the volume.
    pub fn serve(&self, options: &[&str]) -> Result<Serving> {
        let mut command = Command::new(&self.homenode);
        command
            .args(["mount", "--foreground", "--json", "--state-dir"])
            .arg(self.dir.path().join("state"))
            .args(options);
        command.args([&self.regions[0], &self.mount]).stdin(Stdio::null()).stdout(Stdio::piped());
        let (server, out) = Server::start(&mut command, &self.mount, Duration::from_secs(60))?;
        let out = out.context("no standard output")?;
        let lines = std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(std::io::Result::ok);
            lines.filter_map(|line| serde_json::from_str(&line).ok()).collect()
        });
        Ok(Serving { server, lines })
    }
}

/// Copies what is not zero: a region is mostly empty.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let done = Command::new("cp").arg("--sparse=always").args([from, to]).output().context("cp")?;
    ensure!(done.status.success(), "cp: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

/// A mount, and what its server says.
pub struct Serving {
    server: Server,
    lines: JoinHandle<Vec<Line>>,
}

impl Serving {
    /// Unmounts, and returns what was said.
    pub fn stop(mut self) -> Result<Vec<Line>> {
        self.server.stop()?;
        self.server.wait(Duration::MAX)?;
        Ok(self.lines.join().unwrap_or_default())
    }
}
