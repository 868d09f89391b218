//! The files that `reproduce` writes.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::path::Path;

use simulate::papers::Paper;
use simulate::reproduce::{Bench, Figure, figures, prepare, reproduce, write};

/// The paper with the fastest experiments.
const CHEAP: [Paper; 1] = [Paper::NPolicy];

fn run() -> Vec<Figure> {
    reproduce(&CHEAP, &Bench::new(2, &|_, _| {})).unwrap()
}

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

#[test]
fn the_same_seeds_give_the_same_bytes() {
    let [one, two] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    // Threads that the seed places, locks, files that move.
    let papers = [Paper::NPolicy, Paper::Dragonfly];
    for dir in [&one, &two] {
        let figures = reproduce(&papers, &Bench::new(1, &|_, _| {})).unwrap();
        write(dir.path(), &figures, 1, None).unwrap();
    }
    let (one, two) = (contents(one.path()), contents(two.path()));
    assert!(one == two, "{:?}", one.keys().filter(|k| one.get(*k) != two.get(*k)).collect::<Vec<_>>());
    assert_eq!(
        one.len(),
        figures(&papers) + 3,
        "a plot per figure, the overview, the report and the table: {:?}",
        one.keys()
    );
}

#[test]
fn the_report_contains_every_plot() {
    use base64::Engine as _;
    let dir = tempfile::tempdir().unwrap();
    let figures = run();
    let written = write(dir.path(), &figures, 2, None).unwrap();
    assert!(written.iter().all(|p| p.exists()));
    let html = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    for figure in &figures {
        let bytes = std::fs::read(dir.path().join(figure.png_name())).unwrap();
        let mut reader = png::Decoder::new(bytes.as_slice()).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size()];
        reader.next_frame(&mut pixels).unwrap();
        // White paper, and something on it.
        let ink = pixels.chunks(3).filter(|p| *p != [255, 255, 255]).count();
        assert!(ink > 5_000 && ink < pixels.len() / 6, "{}: {ink} pixels of ink", figure.png_name());
        assert!(html.contains(&base64::engine::general_purpose::STANDARD.encode(&bytes)), "{}", figure.png_name());
    }
}

#[test]
fn old_files_are_replaced_and_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("results.csv"), "old").unwrap();
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let figures = run();
    write(dir.path(), &figures, 2, None).unwrap();
    let files = contents(dir.path());
    assert!(files["results.csv"].starts_with(b"paper,figure,"));
    assert_eq!(files["notes.txt"], b"mine");
    assert!(files.keys().all(|name| !name.starts_with('.')), "{:?}", files.keys());
}

#[test]
fn a_place_that_cannot_be_written_to_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    for bad in [file.clone(), file.join("below")] {
        let error = prepare(&bad).unwrap_err().to_string();
        assert!(error.contains(&bad.display().to_string()), "{error}");
    }
    assert!(write(&dir.path().join("not there"), &[], 1, None).is_err());
    assert_eq!(contents(dir.path()), BTreeMap::from([("file".to_owned(), b"mine".to_vec())]));
}

#[test]
fn a_directory_is_made_where_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("a/b");
    prepare(&below).unwrap();
    assert!(below.is_dir() && contents(&below).is_empty());
}
