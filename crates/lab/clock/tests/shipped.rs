//! No clock of the laboratory is in what is shipped.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toml::Table;

fn read(path: &Path) -> Table {
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

/// Manifests of the workspace by the names of their packages, and what each package of a registry
/// depends on.
struct Packages {
    own: BTreeMap<String, Table>,
    others: BTreeMap<String, BTreeSet<String>>,
    workspace: Table,
}

impl Packages {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let workspace = read(&root.join("Cargo.toml"));
        let mut own = BTreeMap::new();
        for member in workspace["workspace"]["members"].as_array().unwrap() {
            let member = member.as_str().unwrap();
            let dirs: Vec<PathBuf> = match member.strip_suffix("/*") {
                Some(all) => std::fs::read_dir(root.join(all)).unwrap().map(|dir| dir.unwrap().path()).collect(),
                None => vec![root.join(member)],
            };
            for manifest in dirs.into_iter().map(|dir| dir.join("Cargo.toml")).filter(|path| path.exists()) {
                let manifest = read(&manifest);
                own.insert(manifest["package"]["name"].as_str().unwrap().to_owned(), manifest);
            }
        }
        let mut others: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for package in read(&root.join("Cargo.lock"))["package"].as_array().unwrap() {
            let name = |of: &str| of.split(' ').next().unwrap().to_owned();
            let depends = package.get("dependencies").and_then(|list| list.as_array()).into_iter().flatten();
            let depends = depends.map(|on| name(on.as_str().unwrap()));
            others.entry(name(package["name"].as_str().unwrap())).or_default().extend(depends);
        }
        Self { own, others, workspace }
    }

    /// What a package links or builds with: of ours without what only tests need.
    fn depends(&self, package: &str) -> BTreeSet<String> {
        let Some(manifest) = self.own.get(package) else { return self.others[package].clone() };
        let tables = ["dependencies", "build-dependencies"].into_iter().filter_map(|table| manifest.get(table));
        let name = |(key, of): (&String, &toml::Value)| {
            let of = match of.get("workspace") {
                Some(_) => &self.workspace["workspace"]["dependencies"][key],
                None => of,
            };
            of.get("package").and_then(|name| name.as_str()).unwrap_or(key).to_owned()
        };
        tables.flat_map(|table| table.as_table().unwrap()).map(name).collect()
    }

    fn linked(&self, package: &str) -> BTreeSet<String> {
        let (mut all, mut new) = (BTreeSet::new(), vec![package.to_owned()]);
        while let Some(package) = new.pop() {
            new.extend(self.depends(&package).into_iter().filter(|on| all.insert(on.clone())));
        }
        all
    }
}

#[test]
fn shipped_programs_link_no_scheduler_of_tasks() {
    let packages = Packages::new();
    let of_laboratory = |linked: &BTreeSet<String>| -> Vec<String> {
        let is = |name: &&String| {
            name.starts_with("shuttle") || name.starts_with("homenode-virtual") || {
                ["corosensei", "homenode-clock", "homenode-laboratory"].contains(&name.as_str())
            }
        };
        linked.iter().filter(is).cloned().collect()
    };
    for package in ["homenode", "homenode-fs-command", "homenode-fs", "homenode-mount"] {
        let linked = packages.linked(package);
        assert!(linked.contains("homenode-topology") && linked.contains("libc"), "{package}: {linked:?}");
        assert_eq!(of_laboratory(&linked), [""; 0], "{package}");
    }
    assert_eq!(of_laboratory(&packages.linked("homenode-virtual-fs")), ["corosensei", "homenode-clock"]);
}
