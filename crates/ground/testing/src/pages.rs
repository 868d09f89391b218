//! Manual pages of a program.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The date of all pages: 9 September 2001.
const EPOCH: (&str, &str) = ("SOURCE_DATE_EPOCH", "1000000000");

/// Has a program write its manual pages, and returns their texts by file name. There is one for the
/// program, one for each sub-command and those `beside` them, all dated, with the parts that a page
/// has; mandoc has nothing to say of any. Each page that a page refers to is there, and `man` alone
/// prints the program's own.
pub fn manual_pages(program: &str, sub_commands: &[String], beside: &[&str]) -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("man1");
    let said = Command::new(program).arg("man").arg(&man).env(EPOCH.0, EPOCH.1).output().unwrap();
    assert!(said.status.success() && said.stdout.is_empty() && said.stderr.is_empty(), "{said:?}");
    let read = |file: fs::DirEntry| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap());
    let pages: BTreeMap<_, _> = fs::read_dir(&man).unwrap().map(|file| read(file.unwrap())).collect();
    let name = Path::new(program).file_name().unwrap().to_str().unwrap();
    let mut expected: Vec<_> = sub_commands.iter().map(|sub| format!("{name}-{sub}.1")).collect();
    expected.push(format!("{name}.1"));
    expected.extend(beside.iter().map(|page| (*page).to_owned()));
    expected.sort();
    assert!(pages.keys().eq(&expected), "{:?}, not {expected:?}", pages.keys());
    for (page, text) in &pages {
        let parts = ["NAME", "SYNOPSIS", "DESCRIPTION", "\"SEE ALSO\""];
        let lacks = parts.iter().find(|part| !text.contains(&format!(".SH {part}\n")));
        assert!(lacks.is_none() || text.starts_with(".so "), "{page}: no {lacks:?}\n{text}");
        let dated = text.starts_with(&format!(".TH {}", &page[..page.len() - 2])) && text.contains(" 2001-09-09 ");
        assert!(dated || text.starts_with(".so "), "{page}: {text}");
        let bare = text.lines().find(|line| line.contains('`') && !line.starts_with(' ') && !line.starts_with('#'));
        assert_eq!(bare, None, "{page}");
    }
    // What a page's own formatter warns of. That they are not written in mdoc is style.
    let files = pages.keys().filter(|page| !pages[*page].starts_with(".so ")).map(|page| man.join(page));
    let said = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).args(files).output().unwrap();
    assert!(said.status.success() && said.stdout.is_empty(), "{}", String::from_utf8_lossy(&said.stdout));
    let mut references = 0;
    for (page, text) in &pages {
        let text = text.replace("\\-", "-");
        for word in text.split_whitespace().filter(|word| word.starts_with("homenode-") && word.ends_with("(1)")) {
            references += 1;
            assert!(pages.contains_key(&word.replace("(1)", ".1")), "{page}: {word}");
        }
    }
    assert!(references >= sub_commands.len(), "{references}");
    let own = Command::new(program).arg("man").env(EPOCH.0, EPOCH.1).output().unwrap();
    assert_eq!(String::from_utf8(own.stdout).unwrap(), pages[&format!("{name}.1")]);
    pages
}
