//! `homenode warm` and `homenode move --range`: bytes are read in, or moved, where they were asked.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lab::cache;
use rustix::param::page_size;
use serde_json::Value;
use testing::{Case, Skip, cases};

use crate::lab_bench::{Bench, Outcome, homenode};
use crate::promote::Reader;
use crate::{nodes, say};

pub const CASES: &[Case] = cases![[nodes([2])]
    reads_in_where_asked,
    spreads_by_weight,
    refuses_what_does_not_fit,
    goes_to_the_readers_of_each_part,
    a_range_moves_and_no_more,
];

/// Bytes of a test's file.
const BYTES: u64 = 16 << 20;

/// Runs homenode; returns its exit code, the first file of its report, and its error.
fn told(key: &str, args: &[&str], file: &Path) -> Result<(Option<i32>, Value, String)> {
    let output = Command::new(homenode()).arg("--json").args(args).arg(file).output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let json: Value = serde_json::from_slice(&output.stdout).with_context(|| format!("no JSON, but {error}"))?;
    Ok((output.status.code(), json.pointer(&format!("/{key}/0")).context("no file")?.clone(), error))
}

/// Pages of a file on nodes 0 and 1. Only cached ones are touched.
fn on_nodes(path: &Path) -> Result<[usize; 2]> {
    let found = lab::pages::cached(path)?;
    let on = |node: i32| found.iter().filter(|(_, on)| *on == node).count();
    ensure!(on(0) + on(1) == found.len(), "pages on other nodes: {found:?}");
    Ok([on(0), on(1)])
}

fn reads_in_where_asked() -> Outcome {
    let bench = Bench::new()?;
    let file = bench.dir().join("file");
    cache::put(&file, BYTES, 0)?;
    let pages = BYTES as usize / page_size();

    let (code, said, _) = told("warmed", &["warm", "--to", "1"], &file)?;
    ensure!(code == Some(1) && on_nodes(&file)? == [pages, 0], "cached pages moved: {said}");
    ensure!(said["why"].as_str().is_some_and(|why| why.contains("other nodes (cached before")), "{said}");

    let (code, said, _) = told("warmed", &["warm", "--to", "1", "--drop-first"], &file)?;
    ensure!(code == Some(0) && on_nodes(&file)? == [0, pages], "{:?}: {said}", on_nodes(&file)?);
    ensure!(said["nodes"]["1"] == BYTES && said["already_bytes"] == 0, "{said}");

    let (code, said, _) = told("warmed", &["warm", "--interleave", "--drop-first"], &file)?;
    let [a, b] = on_nodes(&file)?;
    say!("interleaved: {a} pages on node 0, {b} on node 1");
    ensure!(code == Some(0) && a + b == pages && a.abs_diff(b) <= pages / 8, "{said}");

    // One MiB, and nothing else, on the other node.
    let (code, said, _) = told("warmed", &["warm", "--to", "0", "--drop-first", "--range", "0+1GiB"], &file)?;
    ensure!(code == Some(0) && on_nodes(&file)? == [pages, 0], "{said}");
    let (code, said, _) = told("warmed", &["warm", "--to", "1", "--drop-first", "--range", "4MiB+1MiB"], &file)?;
    let moved = (1 << 20) / page_size();
    ensure!(code == Some(0) && on_nodes(&file)? == [pages - moved, moved], "{:?}: {said}", on_nodes(&file)?);

    // What nobody has written back is kept.
    let dirty = bench.dir().join("dirty");
    File::create(&dirty)?.write_all(&vec![7; 1 << 20])?;
    let _ = told("warmed", &["warm", "--to", "1", "--drop-first"], &dirty)?;
    ensure!(fs::read(&dirty)?.iter().all(|byte| *byte == 7), "what was dirty is lost");
    Ok(())
}

fn spreads_by_weight() -> Outcome {
    let weight = Path::new("/sys/kernel/mm/mempolicy/weighted_interleave/node0");
    if !weight.exists() {
        return Err(Skip("this kernel has no weighted interleave (Linux 6.9)".to_owned()).into());
    }
    let bench = Bench::new()?;
    let file = bench.dir().join("file");
    cache::put(&file, BYTES, 0)?;
    let before = fs::read_to_string(weight)?;
    fs::write(weight, "3")?;
    let told = told("warmed", &["warm", "--weighted", "--drop-first"], &file);
    fs::write(weight, before.trim())?;
    let (code, said, _) = told?;
    let [a, b] = on_nodes(&file)?;
    say!("weights 3 and 1: {a} pages on node 0, {b} on node 1");
    // Readahead allocates folios of several sizes, and a weight counts folios.
    ensure!(code == Some(0) && a > 2 * b && b > 0, "{said}");
    Ok(())
}

fn refuses_what_does_not_fit() -> Outcome {
    let bench = Bench::new()?;
    let file = bench.dir().join("file");
    File::create(&file)?.set_len(8 << 30)?;
    let (code, said, error) = told("warmed", &["warm", "--to", "1"], &file)?;
    ensure!(code == Some(1) && error.contains("of node 1, it takes 8192 MiB"), "{error}: {said}");
    ensure!(on_nodes(&file)? == [0, 0], "it was read in all the same");
    let (code, said, _) = told("warmed", &["warm", "--to", "1", "--range", "4GiB+1MiB"], &file)?;
    ensure!(code == Some(0) && on_nodes(&file)? == [0, (1 << 20) / page_size()], "{said}");
    Ok(())
}

fn goes_to_the_readers_of_each_part() -> Outcome {
    const RANGE: usize = 2 << 20;
    let bench = Bench::new()?;
    let (file, other) = (bench.dir().join("file"), bench.dir().join("other"));
    cache::put(&file, BYTES, 0)?;
    cache::put(&other, BYTES, 0)?;
    let lower = Reader::start(&bench, 0, &file, 0..2)?;
    let upper = Reader::start(&bench, 1, &file, 4..8)?;
    let (code, said, error) = told("warmed", &["warm", "--to-readers", "--seconds", "3", "--drop-first"], &file)?;
    drop((lower, upper));
    let mut on = vec![[0usize; 2]; BYTES as usize / RANGE];
    for (page, node) in lab::pages::cached(&file)? {
        let range = on.get_mut(page as usize * page_size() / RANGE).context("a page beyond the file")?;
        *range.get_mut(usize::try_from(node)?).context("an odd node")? += 1;
    }
    let pages = RANGE / page_size();
    say!("read by node 0: parts 0 and 1, by node 1: 4 to 7; pages by part: {on:?}");
    // What is mapped or read just then stays where it is, so a few pages may.
    let near = |parts: std::ops::Range<usize>, node: usize| on[parts].iter().all(|part| part[node] >= pages * 9 / 10);
    ensure!(near(0..2, 0) && near(4..8, 1), "{error}: {said}: {on:?}");
    ensure!(code.is_some() && said["policy"] == "readers", "{said}");
    let (code, said, error) = told("warmed", &["warm", "--to-readers", "--seconds", "1"], &other)?;
    ensure!(code == Some(1) && error.contains("nobody has read it in 1 s"), "{error}: {said}");
    Ok(())
}

fn a_range_moves_and_no_more() -> Outcome {
    let bench = Bench::new()?;
    let file = bench.dir().join("file");
    cache::put(&file, BYTES, 0)?;
    let (code, said, _) = told("moved", &["move", "--to", "1", "--range", "3MiB+5MiB"], &file)?;
    let [_, moved] = on_nodes(&file)?;
    ensure!(code == Some(0) && said["moved_bytes"] == 5 << 20 && said["bytes"] == 5 << 20, "{said}");
    ensure!(moved == (5 << 20) / page_size(), "{moved} pages moved");
    let all = lab::pages::cached(&file)?;
    let there = |at: u64| all.iter().find(|(page, _)| *page == at / page_size() as u64).map(|(_, node)| *node);
    let nodes = [(3 << 20) - 1, 3 << 20, (8 << 20) - 1, 8 << 20].map(there);
    ensure!(nodes == [Some(0), Some(1), Some(1), Some(0)], "{nodes:?}");
    Ok(())
}
