//! Manual pages of a program.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Has a program write its manual pages, and returns their texts by file name. There is one for the
/// program and one for each sub-command; each page that a page refers to is there, and `man` alone
/// prints the program's own.
pub fn manual_pages(program: &str, sub_commands: &[String]) -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("man1");
    let said = Command::new(program).arg("man").arg(&man).output().unwrap();
    assert!(said.status.success() && said.stdout.is_empty() && said.stderr.is_empty(), "{said:?}");
    let read = |file: fs::DirEntry| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap());
    let pages: BTreeMap<_, _> = fs::read_dir(&man).unwrap().map(|file| read(file.unwrap())).collect();
    let name = Path::new(program).file_name().unwrap().to_str().unwrap();
    let mut expected: Vec<_> = sub_commands.iter().map(|sub| format!("{name}-{sub}.1")).collect();
    expected.push(format!("{name}.1"));
    expected.sort();
    assert!(pages.keys().eq(&expected), "{:?}, not {expected:?}", pages.keys());
    let mut references = 0;
    for (page, text) in &pages {
        let text = text.replace("\\-", "-");
        for word in text.split_whitespace().filter(|word| word.starts_with("homenode-") && word.ends_with("(1)")) {
            references += 1;
            assert!(pages.contains_key(&word.replace("(1)", ".1")), "{page}: {word}");
        }
    }
    assert!(references >= sub_commands.len(), "{references}");
    let own = Command::new(program).arg("man").output().unwrap();
    assert_eq!(String::from_utf8(own.stdout).unwrap(), pages[&format!("{name}.1")]);
    pages
}
