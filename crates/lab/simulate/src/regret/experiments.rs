//! The scenarios of the papers, as scenario files.
//!
//! **Problem.** Regret on random scenarios says nothing of the loads that the policies were
//! published with.
//!
//! **Approach.** The published machines (NThread V-A and V-F, Dragonfly Table I, N-Policy 3, thesis
//! 5.1) with the published loads, on the file systems that each paper's own system runs on. The
//! `nthread` settings of NThread's experiments are those with which its figures come out at all:
//! with a margin of 200 MB/s no thread of Fig. 6 could have a target.
//!
//! **Limits.** The ablations that are about a setting (NThread Fig. 8 and 9, Dragonfly Fig. 6(c))
//! are left out: they compare no policies.

/// A scenario file of a paper: its name and its text.
pub struct Experiment {
    /// Paper, figure, point.
    pub name: String,
    /// Text of the scenario file.
    pub text: String,
}

/// NThread V-C: two Xeon Gold 5215 with four cores each online, one Optane module each.
const NTHREAD_4: &str = "nodes = 2\ncpus = 4\nmemory = \"128 GB\"\noptane_modules = 1\ninterconnect = \"41.6 GB/s\"";
/// NThread V-A: all ten cores.
const NTHREAD_10: &str = "nodes = 2\ncpus = 10\nmemory = \"128 GB\"\noptane_modules = 1\ninterconnect = \"41.6 GB/s\"";
/// NThread V-F: four sockets in a ring, DRAM in place of Optane.
const NTHREAD_RING: &str = "nodes = 4\ncpus = 10\nmemory = \"16 GB\"\nread_bw = \"20 GB/s\"\nwrite_bw = \"15 GB/s\"\n\
           interconnect = \"41.6 GB/s\"\n\
           distance = [[10, 21, 31, 21], [21, 10, 21, 31], [31, 21, 10, 21], [21, 31, 21, 10]]";
/// Dragonfly Table I: two Xeon Platinum 8280M, six modules each.
const DRAGONFLY: &str = "nodes = 2\ncpus = 28\nmemory = \"768 GB\"\noptane_modules = 6\ninterconnect = \"62.4 GB/s\"";
/// N-Policy 3: two Xeon Gold 6240M.
const NPOLICY: &str = "nodes = 2\ncpus = 36\nmemory = \"512 GB\"\noptane_modules = 4\ninterconnect = \"62.4 GB/s\"";
/// Thesis 5.1: two Xeon X5570, with the bandwidths that its author measured (4.1).
const THESIS: &str = "nodes = 2\ncpus = 8\nmemory = \"24 GB\"\nread_bw = \"18.4 GB/s\"\nwrite_bw = \"18.4 GB/s\"\n\
           interconnect = \"9.28 GB/s\"";

/// Settings of NThread under which its figures can come out; see the module.
const SETTINGS: &str = "[nthread]\nlocality_margin = 4194304.0\ncpu_limit = 1.01\n";

/// Every scenario of the papers.
pub fn all() -> Vec<Experiment> {
    let mut all = Vec::new();
    nthread(&mut all);
    dragonfly(&mut all);
    npolicy(&mut all);
    thesis(&mut all);
    all
}

/// A minute of which the first ten seconds are not measured.
fn experiment(name: String, machine: &str, settings: &str, workloads: &[String]) -> Experiment {
    let text = format!(
        "name = \"{name}\"\nduration_s = 60\nwarmup_s = 10\npolicy = \"auto\"\n{settings}[machine]\n{}\n{}",
        machine,
        workloads.concat()
    );
    Experiment { name, text }
}

fn workload(kind: &str, place: &str, rest: &str) -> String {
    format!("[[workload]]\nkind = \"{kind}\"\n{place}\n{rest}\n")
}

/// Data of a file system over all nodes.
fn homenode(data: u32) -> String {
    format!("fs = \"homenode\"\ndata = {data}")
}

fn nthread(all: &mut Vec<Experiment>) {
    for (figure, threads) in [("5a", 4), ("5b", 8)] {
        for (point, read) in
            [("read-only", 1.0), ("rw80", 0.8), ("rw60", 0.6), ("rw40", 0.4), ("rw20", 0.2), ("write-only", 0.0)]
        {
            let rest = format!("threads = {threads}\nblock = \"4 KiB\"\nread = {read:.1}\nfile_size = \"4 GB\"");
            let load = [workload("fio", &homenode(0), &rest)];
            all.push(experiment(format!("NThread {figure} {point}"), NTHREAD_4, SETTINGS, &load));
        }
    }
    // Table III.
    for (kind, rest) in [
        ("fileserver", "threads = 50\nfiles = 100000\nfile_size = \"128 KiB\""),
        ("webserver", "threads = 100\nfiles = 100000\nfile_size = \"16 KiB\""),
        ("webproxy", "threads = 100\nfiles = 100000\nfile_size = \"16 KiB\"\nio_size = \"16 KiB\""),
        ("varmail", "threads = 16\nfiles = 100000\nfile_size = \"16 KiB\""),
    ] {
        let of = |node| workload(kind, &homenode(node), rest);
        all.push(experiment(format!("NThread 6a {kind}"), NTHREAD_10, SETTINGS, &[of(0)]));
        all.push(experiment(format!("NThread 6b {kind}"), NTHREAD_10, SETTINGS, &[of(0), of(1)]));
    }
    for kind in ["fillseq", "readrandom", "readwhilewriting"] {
        let rest = "threads = 10\nkeys = 10000000\nvalue = \"4 KiB\"";
        let of = |node| workload(kind, &homenode(node), rest);
        all.push(experiment(format!("NThread 7a {kind}"), NTHREAD_10, SETTINGS, &[of(0)]));
        all.push(experiment(format!("NThread 7b {kind}"), NTHREAD_10, SETTINGS, &[of(0), of(1)]));
        let rest = "threads = 10\nkeys = 1000000\nvalue = \"4 KiB\"";
        let ring: Vec<String> = (0..4).map(|node| workload(kind, &homenode(node), rest)).collect();
        all.push(experiment(format!("NThread 7c {kind}"), NTHREAD_RING, SETTINGS, &ring));
    }
}

/// Table II; the files of all programs are on node 0, the programs half on each node.
fn dragonfly(all: &mut Vec<Experiment>) {
    let group = |kind: &str, rest: &str, on: &[u32]| -> Vec<String> {
        on.iter().map(|node| workload(kind, &format!("{}\nstart = {node}", homenode(0)), rest)).collect()
    };
    let light = "threads = 7\nfiles = 10000\nfile_size = \"16 KiB\"";
    for (case, on) in [("normal", &[0, 1][..]), ("case A", &[0, 1, 0, 0, 0]), ("case B", &[0, 1, 1, 1, 1])] {
        let load = group("webserver", light, on);
        all.push(experiment(format!("Dragonfly 2 {case}"), DRAGONFLY, SETTINGS, &load));
    }
    let four = [0, 0, 1, 1];
    let two = [0, 1];
    for (figure, kind, rest, on) in [
        ("6a", "webserver", "threads = 14\nfiles = 10000\nfile_size = \"160 KiB\"", &four[..]),
        ("6a", "webproxy", "threads = 14\nfiles = 100000\nfile_size = \"160 KiB\"", &four),
        ("6a", "videoserver", "threads = 28\nfiles = 50\nfile_size = \"2 GB\"", &two),
        ("6a", "fileserver", "threads = 14\nfiles = 10000\nfile_size = \"128 KiB\"", &four),
        ("6b", "webserver", light, &four),
        ("6b", "webproxy", "threads = 7\nfiles = 10000\nfile_size = \"64 KiB\"", &four),
        ("6b", "videoserver", "threads = 14\nfiles = 50\nfile_size = \"1 GB\"", &two),
        ("6b", "fileserver", "threads = 7\nfiles = 1000\nfile_size = \"128 KiB\"", &four),
    ] {
        let load = group(kind, rest, on);
        all.push(experiment(format!("Dragonfly {figure} {kind}"), DRAGONFLY, SETTINGS, &load));
    }
}

/// Fig. 3: fio's libpmem engine on the node away from its data.
fn npolicy(all: &mut Vec<Experiment>) {
    for (point, block, read) in [
        ("4 KiB read", "4 KiB", 1.0),
        ("2 MiB read", "2 MiB", 1.0),
        ("4 KiB write", "4 KiB", 0.0),
        ("2 MiB write", "2 MiB", 0.0),
    ] {
        let rest = format!("threads = 1\nblock = \"{block}\"\nread = {read:.1}\nfile_size = \"8 GB\"");
        let load = [workload("fio", "fs = \"mapped\"\ndevice = 0\nstart = 1", &rest)];
        all.push(experiment(format!("N-Policy 3 {point}"), NPOLICY, "", &load));
    }
}

/// Fig. 8.1, 8.5 and 8.6: one process of a given size reads one file once, from the other node. Run
/// times count, so nothing is left out as warm-up.
fn thesis(all: &mut Vec<Experiment>) {
    let mut read = |point: String, file: u32, process: &str, size: &str| {
        let rest = format!("file_size = \"{file} GB\"\nread_size = \"{size}\"\nprocess_size = \"{process}\"");
        let load = workload("simpleread", "fs = \"zfs\"\ndata = 0\nstart = 1", &rest);
        let name = format!("Adams {point}");
        let text = format!(
            "name = \"{name}\"\nduration_s = 120\npolicy = \"auto\"\n[engine]\nwindow_s = 0.05\n[machine]\n{}\n{load}",
            THESIS
        );
        all.push(Experiment { name, text });
    };
    for file in [1, 4, 16] {
        read(format!("8.1 {file} GB"), file, "1 MB", "1 MB");
        read(format!("8.5 {file} GB"), file, "1 GB", "1 MB");
    }
    for size in ["64 KiB", "128 KiB", "1 MiB"] {
        read(format!("8.6 {size}"), 16, "1 MB", size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_scenario_of_its_own_name() {
        let mut names = std::collections::BTreeSet::new();
        for Experiment { name, text } in all() {
            let file = crate::ScenarioFile::parse(&text, std::path::Path::new(&name));
            let file = file.unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(file.scenario.name, name);
            assert!(names.insert(name));
        }
        assert_eq!(names.len(), 12 + 8 + 9 + 3 + 8 + 4 + 9);
    }
}
