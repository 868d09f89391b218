//! `homenode where`: shows which node holds each file's cached data, or its blocks if it is on DAX
//! or on a volume.

use clap::Args;
use command::args::Global;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::mounted;
use indicatif::ProgressBar;
use linux::residency::open::Opened;
use linux::residency::{self, Residency, cached};
use linux::volume::Place;
use serde_json::{Value, json};
use topology::NodeId;

use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine;
use crate::output::table::Table;
use crate::output::units::{percent, size};
use crate::output::{self, escape, progress};

/// `homenode where`.
#[derive(Debug, Args)]
pub struct WhereArgs {
    /// Files to look at
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Smaller files finish before a progress bar could be read.
const LARGE: u64 = 256 << 20;

/// Prints the nodes of each file. A file that fails does not stop the others.
pub fn run(global: &Global, args: &WhereArgs) -> Result<Exit, Failure> {
    let mut found = Vec::new();
    let mut exit = Exit::Done;
    for path in &args.files {
        match look(path, global.json) {
            Ok(residency) => found.push(residency),
            Err(failure) => {
                failure.report(global.json);
                exit = Exit::Partly;
            }
        }
    }
    if global.json {
        output::print_json(&json!({"files": found.iter().map(file_json).collect::<Vec<_>>()}))?;
    } else if !found.is_empty() {
        // A machine whose sysfs is unreadable still has the nodes that the files are on.
        let known = machine::read(Path::new(machine::SYS), &Config::default()).map(|t| t.nodes).unwrap_or_default();
        let known = known.iter().filter(|n| n.memory_bytes > 0).map(|n| n.id);
        output::print(&text(&found, known.collect()))?;
    }
    Ok(exit)
}

fn look(path: &Path, json: bool) -> Result<Residency, Failure> {
    let failure = |e| Failure::from_error(Exit::Partly, "where", &e);
    let file = match mounted::open(path).map_err(failure)? {
        (file, Some(place)) => return Ok(on_volume(&file, place)),
        (file, None) => file,
    };
    let bar = match path.metadata() {
        Ok(meta) if meta.len() >= LARGE => {
            let bar = progress::bar(json, meta.len(), "{msg} {wide_bar} {percent} %  {eta} left");
            bar.with_message(escape(&path.display().to_string()))
        }
        _ => ProgressBar::hidden(),
    };
    let residency = residency::of_opened(&file, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    residency.map_err(failure)
}

/// A file of a mounted volume. What the kernel has in its cache, too, a note says.
fn on_volume(file: &Opened, place: Place) -> Residency {
    let mut notes = Vec::new();
    if place.unknown > 0 {
        notes.push(format!("{} are in regions without a node", size(place.unknown)));
    }
    let page = rustix::param::page_size() as u64;
    if let Some(pages @ 1..) = cached::count(&file.fd, 0, file.size.max(1)) {
        notes.push(format!("{} are in the kernel's cache, too, on the nodes of their readers", size(pages * page)));
    }
    Residency {
        path: file.path.clone(),
        size: file.size,
        resident: place.nodes.total() + place.unknown,
        nodes: place.nodes,
        dax: false,
        hidden: None,
        notes,
    }
}

/// One file; bytes are bytes. Where residency is hidden nothing is said about it.
fn file_json(file: &Residency) -> Value {
    let shown = file.hidden.is_none();
    json!({
        "path": linux::shown(file.path.as_os_str()),
        "size": file.size,
        "resident": shown.then_some(file.resident),
        "nodes": shown.then_some(&file.nodes),
        "dax": file.dax,
        "hidden": file.hidden,
        "notes": file.notes,
    })
}

fn text(files: &[Residency], mut nodes: BTreeSet<NodeId>) -> String {
    nodes.extend(files.iter().flat_map(|f| f.nodes.iter().map(|(node, _)| node)));
    let mut heads = vec!["file".to_owned(), ">size".to_owned(), ">resident".to_owned()];
    heads.extend(nodes.iter().map(|node| format!(">node {node}")));
    let mut table = Table::new(&heads);
    let mut notes = String::new();
    for file in files {
        let path = file.path.display().to_string();
        let mut row = vec![path.clone(), size(file.size)];
        match &file.hidden {
            Some(why) => {
                row.push("hidden".to_owned());
                row.extend(nodes.iter().map(|_| "-".to_owned()));
                notes.push_str(&format!("{}: {}\n", escape(&path), escape(why)));
            }
            None => {
                row.push(size(file.resident));
                let placed = file.nodes.total();
                row.extend(nodes.iter().map(|node| match placed {
                    0 => "-".to_owned(),
                    placed => percent(file.nodes.get(*node) as f64 / placed as f64),
                }));
            }
        }
        for note in &file.notes {
            notes.push_str(&format!("{}: {}\n", escape(&path), escape(note)));
        }
        table.row(row);
    }
    table.render() + &notes
}

#[cfg(test)]
mod tests {
    use placement::NodeBytes;

    use super::*;

    fn file(path: &str, size: u64, nodes: &[(u32, u64)]) -> Residency {
        let nodes: NodeBytes = nodes.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect();
        Residency {
            path: path.into(),
            size,
            resident: nodes.total(),
            nodes,
            dax: false,
            hidden: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_table_of_the_design() {
        let files = [
            file("/var/lib/pg/base/16384/2619", 1 << 30, &[(0, 1_052_266_987), (1, 21_474_837)]),
            file("/data/kv/000123.sst", 64 << 20, &[(1, 12 << 20)]),
        ];
        let text = text(&files, [NodeId(0), NodeId(1)].into());
        assert_eq!(
            text,
            "\
file                             size  resident  node 0  node 1
/var/lib/pg/base/16384/2619   1.0 GiB   1.0 GiB    98 %     2 %
/data/kv/000123.sst          64.0 MiB  12.0 MiB     0 %   100 %
"
        );
    }

    #[test]
    fn what_the_kernel_hides_is_not_shown_as_nothing() {
        let hidden = Residency { hidden: Some("belongs to another user".into()), ..file("/etc/shadow", 1000, &[]) };
        let text = text(&[hidden, file("/empty", 0, &[])], [NodeId(0)].into());
        assert!(text.contains("hidden") && text.contains("/etc/shadow: belongs to another user"), "{text}");
        assert!(text.contains("/empty          0 B       0 B       -"), "{text}");
    }
}
