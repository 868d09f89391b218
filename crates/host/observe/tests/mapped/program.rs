//! The program that maps a file (`load`), as the tests drive it, and its files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use testing::Tried;
use topology::Topology;

/// Killed when dropped.
pub struct Program {
    child: Child,
    answers: BufReader<ChildStdout>,
}

/// Pages of one node as the program counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    pub hot: u64,
    pub touched: u64,
    pub all: u64,
}

impl Program {
    pub fn start(file: &Path) -> Tried<Self> {
        let mut child = testing::myself("load").arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Self { child, answers })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command and waits for the answer.
    pub fn tell(&mut self, command: &str) -> Tried<String> {
        let stdin = self.child.stdin.as_mut().ok_or("no stdin")?;
        writeln!(stdin, "{command}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        match answer.trim() {
            "" | "what?" => Err(format!("the program did not answer {command}").into()),
            answer => Ok(answer.to_owned()),
        }
    }

    /// By node; -1 where the kernel does not tell the node.
    pub fn truth(&mut self) -> Tried<BTreeMap<i32, Truth>> {
        let answer = self.tell("truth")?;
        let parse = |word: &str| {
            let mut numbers = word.split(':').map(|n| n.parse::<i64>().ok());
            let mut next = || numbers.next().flatten();
            let (node, hot, touched, all) = (next()?, next()?, next()?, next()?);
            Some((node as i32, Truth { hot: hot as u64, touched: touched as u64, all: all as u64 }))
        };
        answer.split_whitespace().map(|word| parse(word).ok_or_else(|| format!("odd answer {answer}").into())).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file in the page cache, of equal parts on all nodes with CPUs: the kernel puts a page where
/// its writer runs.
pub fn cached_file(path: &Path, bytes: u64) -> Tried {
    let machine = topology::sysfs::read(Path::new("/sys")).unwrap_or_else(|_| Topology::default());
    let nodes: Vec<_> = machine.nodes.iter().filter(|node| !node.cpus.is_empty()).collect();
    let file = File::create(path)?;
    let part = (bytes / nodes.len().max(1) as u64).next_multiple_of(4096);
    let write = |from: u64| -> std::io::Result<()> {
        for at in (from..bytes.min(from + part)).step_by(4096) {
            file.write_all_at(&[1; 4096], at)?;
        }
        Ok(())
    };
    for (i, node) in nodes.iter().enumerate() {
        let pinned = || -> std::io::Result<()> {
            let mut set = rustix::thread::CpuSet::new();
            node.cpus.iter().for_each(|cpu| set.set(cpu as usize));
            rustix::thread::sched_setaffinity(None, &set)?;
            write(i as u64 * part)
        };
        std::thread::scope(|scope| scope.spawn(pinned).join()).map_err(|_| "a writer panicked")??;
    }
    file.sync_all()?;
    Ok(())
}
