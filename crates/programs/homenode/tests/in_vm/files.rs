//! `homenode move FILE…`: pages arrive, users see no error, and what cannot be moved is refused or
//! counted.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{cache, pages};
use rustix::param::page_size;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::{Case, Skip, cases};

use crate::file_users::{Expected, User};
use crate::lab_bench::{Bench, NoBalancing, Outcome, homenode};
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[nodes([2])]
    ext4_under_load = || under_load(ext4),
    xfs_under_load = || under_load(xfs),
    btrfs_under_load = || under_load(btrfs),
    tmpfs_under_load = || under_load(tmpfs),
    overlay_under_load = || under_load(overlay),
    changed_during_the_move,
    ctrl_c_stops_the_move,
    refused,
];

/// Bytes of a file, two windows of the mover.
const BYTES: u64 = 32 << 20;

/// A file system, unmounted at the end.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn done(command: &mut Command) -> Outcome {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Makes sure that the kernel has a file system.
fn need(filesystem: &str) -> Outcome {
    // Built into the kernel, it needs no module.
    let _ = Command::new("modprobe").args(["-a", "-q", "loop", filesystem]).status();
    let known = fs::read_to_string("/proc/filesystems")?;
    if known.lines().all(|line| line.split_whitespace().next_back() != Some(filesystem)) {
        return Err(Skip(format!("this kernel has no {filesystem}")).into());
    }
    Ok(())
}

fn mounted(at: PathBuf, arguments: &[&str], source: &Path) -> Result<Mounted> {
    fs::create_dir_all(&at)?;
    done(Command::new("mount").args(arguments).arg(source).arg(&at))?;
    Ok(Mounted(at))
}

/// Makes a file system in a file and mounts it.
fn in_a_file(dir: &Path, filesystem: &str) -> Result<Option<Mounted>> {
    need(filesystem)?;
    let image = dir.join("image");
    // XFS takes no less than 300 MiB.
    File::create(&image)?.set_len(400 << 20)?;
    let program = format!("mkfs.{filesystem}");
    // A newer xfsprogs than the system's may be here (tools/setup xfs).
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/vm/xfs/bin");
    let path = format!("{}:{}", std::env::var("PATH").unwrap_or_default(), own.display());
    match Command::new(&program).env("PATH", path).arg("-q").arg(&image).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => anyhow::bail!("{program}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(e) => return Err(Skip(format!("needs {program}: {e}")).into()),
    }
    mounted(dir.join("mounted"), &["-o", "loop", "-t", filesystem], &image).map(Some)
}

fn ext4(_: &Path) -> Result<Option<Mounted>> {
    Ok(None)
}

fn xfs(dir: &Path) -> Result<Option<Mounted>> {
    in_a_file(dir, "xfs")
}

fn btrfs(dir: &Path) -> Result<Option<Mounted>> {
    in_a_file(dir, "btrfs")
}

fn tmpfs(dir: &Path) -> Result<Option<Mounted>> {
    mounted(dir.join("mounted"), &["-t", "tmpfs"], Path::new("none")).map(Some)
}

fn overlay(dir: &Path) -> Result<Option<Mounted>> {
    need("overlay")?;
    for part in ["lower", "upper", "work"] {
        fs::create_dir(dir.join(part))?;
    }
    let of = |part: &str| dir.join(part).display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", of("lower"), of("upper"), of("work"));
    mounted(dir.join("mounted"), &["-t", "overlay", "-o", &options], Path::new("none")).map(Some)
}

/// Starts `homenode move FILE --to NODE --json`.
fn moving(file: &Path, to: u32, options: &[&str]) -> Command {
    let mut command = Command::new(homenode());
    command.args(["--json", "move", "--to", &to.to_string()]).args(options).arg(file);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The command's report of its one file.
struct Said {
    code: Option<i32>,
    bytes: u64,
    moved: u64,
    failed: u64,
    why: String,
}

impl Said {
    fn of(output: &Output) -> Result<Self> {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let json: Value = serde_json::from_slice(&output.stdout).with_context(|| format!("no JSON, but {stderr}"))?;
        let one = json.pointer("/moved/0").context("no file")?;
        let number = |key: &str| one.get(key).and_then(Value::as_u64).context(key.to_owned());
        Ok(Self {
            code: output.status.code(),
            bytes: number("bytes")?,
            moved: number("moved_bytes")?,
            failed: number("failed_bytes")?,
            why: one.get("why").and_then(Value::as_str).unwrap_or_default().to_owned(),
        })
    }
}

/// Bytes of a file's pages on a node; the file is cached as a whole.
fn on_node(path: &Path, node: u32) -> Result<u64> {
    let found = pages::nodes_of(path)?.get(&i32::try_from(node)?).copied().unwrap_or(0);
    Ok((found * page_size()) as u64)
}

/// Four processes read the file, one writes it and one has it mapped. Then pages of it are in a
/// pipe.
fn under_load(make: fn(&Path) -> Result<Option<Mounted>>) -> Outcome {
    let bench = Bench::new()?;
    let mounted = make(bench.dir())?;
    let file = mounted.as_ref().map_or(bench.dir(), |m| m.0.as_path()).join("file");
    cache::put(&file, BYTES, 0)?;
    let expected = Expected::of(&File::open(&file)?)?;
    let _fixed = NoBalancing::set()?;

    let roles = ["reader", "reader", "reader", "reader", "writer", "mapper"];
    let users = roles.iter().map(|role| User::start(role, &file)).collect::<Result<Vec<_>>>()?;
    let said = Said::of(&moving(&file, 1, &[]).output()?)?;
    let uses = users.into_iter().map(User::end).collect::<Result<Vec<_>>>()?;
    let there = on_node(&file, 1)?;
    say!("{there} of {BYTES} bytes arrived, {} used {uses:?} times; {}", roles.join(", "), said.why);
    ensure!(uses.iter().all(|uses| *uses > 0), "not all of them used the file: {uses:?}");
    // The kernel takes some pages of the node to make room for larger ones; they come back where
    // they are read next.
    let nearly = |is: u64, all: u64| is.abs_diff(all) <= BYTES / 50;
    ensure!(nearly(there, BYTES), "only {there} bytes arrived");
    ensure!(
        said.bytes <= BYTES && nearly(said.bytes, BYTES) && said.moved + said.failed == said.bytes,
        "{} + {} of {}",
        said.moved,
        said.failed,
        said.bytes
    );
    ensure!(nearly(said.moved, BYTES), "homenode says {}", said.moved);
    ensure!((said.code == Some(0)) == (said.failed == 0) && said.code <= Some(1), "exit code {:?}", said.code);
    let open = File::open(&file)?;
    let mut content = vec![0; page_size()];
    for page in 0..usize::try_from(BYTES)? / page_size() {
        open.read_exact_at(&mut content, (page * page_size()) as u64)?;
        expected.check(page, &content)?;
    }

    // Each page in a pipe has one more reference.
    let (out, into) = rustix::pipe::pipe()?;
    let (mut at, mut held) = (BYTES / 2, 0);
    while held < 16 * page_size() {
        let flags = rustix::pipe::SpliceFlags::empty();
        held += rustix::pipe::splice(&open, Some(&mut at), &into, None, 16 * page_size() - held, flags)?;
    }
    let said = Said::of(&moving(&file, 0, &[]).output()?)?;
    let stayed = on_node(&file, 1)?;
    say!("{stayed} bytes stayed with 65536 in a pipe: {}", said.why);
    // A large folio stays whole; its most is 2 MiB.
    ensure!((65_536..=2 << 20).contains(&stayed), "{stayed} bytes stayed");
    ensure!((said.code, said.failed) == (Some(1), stayed), "{} bytes failed", said.failed);
    ensure!(nearly(said.moved, there - stayed), "{} of {there} moved", said.moved);
    ensure!(said.why.contains("pinned or in use"), "{}", said.why);
    drop((out, into));
    let said = Said::of(&moving(&file, 0, &[]).output()?)?;
    ensure!((said.code, said.moved) == (Some(0), stayed), "{} moved: {}", said.moved, said.why);
    ensure!(nearly(on_node(&file, 0)?, BYTES), "not all is back");
    Ok(())
}

/// A move that takes seconds, and has moved a part when this returns.
fn slowly(bench: &Bench) -> Result<(PathBuf, Child)> {
    let file = bench.files(0, 1)?.pop().context("no file")?;
    let child = moving(&file, 1, &["--rate", "4MB/s"]).spawn()?;
    for _ in 0..1000 {
        if on_node(&file, 1)? >= 2 << 20 {
            return Ok((file, child));
        }
        thread::sleep(Duration::from_millis(10));
    }
    anyhow::bail!("nothing has moved")
}

fn changed_during_the_move() -> Outcome {
    let bench = Bench::new()?;
    let (file, child) = slowly(&bench)?;
    OpenOptions::new().write(true).open(&file)?.set_len(5 << 20)?;
    let said = Said::of(&child.wait_with_output()?)?;
    ensure!(said.code == Some(1) && said.why.contains("left the memory meanwhile"), "{:?} {}", said.code, said.why);
    ensure!(on_node(&file, 1)? == 5 << 20, "not all that was left of it moved");

    let (file, child) = slowly(&bench)?;
    fs::remove_file(&file)?;
    let said = Said::of(&child.wait_with_output()?)?;
    ensure!(said.code == Some(1) && said.why.contains("the file was deleted"), "{:?} {}", said.code, said.why);
    ensure!(said.moved + said.failed == said.bytes, "{} + {} of {}", said.moved, said.failed, said.bytes);
    Ok(())
}

fn ctrl_c_stops_the_move() -> Outcome {
    let bench = Bench::new()?;
    let (file, child) = slowly(&bench)?;
    kill_process(Pid::from_child(&child), Signal::INT)?;
    let said = Said::of(&child.wait_with_output()?)?;
    ensure!(said.code == Some(1) && said.why.contains("stopped by a signal"), "{:?} {}", said.code, said.why);
    ensure!(said.moved < said.bytes, "nothing was left to stop");
    ensure!(said.moved == on_node(&file, 1)?, "homenode says {}", said.moved);
    Ok(())
}

/// Huge pages that take most of a node's memory.
struct Taken(&'static str);

impl Drop for Taken {
    fn drop(&mut self) {
        let _ = fs::write(self.0, "0");
    }
}

fn refused() -> Outcome {
    let bench = Bench::new()?;
    let file = bench.files(0, 1)?.pop().context("no file")?;
    let refused = |command: &mut Command, code: i32, why: &str| -> Outcome {
        let output = command.output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(code) && stderr.contains(why), "{:?}, {stderr}", output.status);
        ensure!(on_node(&file, 1)? == 0, "pages moved all the same");
        Ok(())
    };
    // A stranger, by a copy that every user may run.
    let program = bench.dir().join("homenode");
    fs::copy(homenode(), &program)?;
    fs::set_permissions(bench.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let mut command = Command::new(&program);
    refused(command.args(["move", "--to", "1"]).arg(&file).uid(65_534), 3, "CAP_SYS_NICE")?;
    refused(&mut moving(&file, 7, &[]), 2, "no such node")?;

    let group = Path::new("/sys/fs/cgroup/homenode-move");
    fs::create_dir(group)?;
    fs::write(group.join("cpuset.mems"), "0")?;
    let script = r#"echo $$ >"$1/cgroup.procs" && shift && exec "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(group).arg(homenode()).args(["move", "--to", "1"]).arg(&file);
    let outcome = refused(&mut command, 3, "Mems_allowed");
    fs::remove_dir(group)?;
    outcome?;

    // Cached pages of other files would be room.
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    cache::put(&file, fs::metadata(&file)?.len(), 0)?;
    let taken = Taken("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages");
    fs::write(taken.0, "100000")?;
    // The kernel does not always find all of a node's memory for huge pages.
    let meminfo = fs::read_to_string("/sys/devices/system/node/node1/meminfo")?;
    let free = meminfo.lines().find_map(|line| line.split_once("MemFree:")?.1.trim().strip_suffix(" kB")?.parse().ok());
    let free: u64 = free.context("MemFree")?;
    if free << 10 < fs::metadata(&file)?.len() / 2 {
        refused(&mut moving(&file, 1, &[]), 1, "MiB to spare")?;
    } else {
        say!("huge pages left {} MiB of the node free", free >> 10);
    }
    drop(taken);
    let said = Said::of(&moving(&file, 1, &[]).output()?)?;
    ensure!(said.code == Some(0) && on_node(&file, 1)? == fs::metadata(&file)?.len(), "{}", said.why);
    Ok(())
}
