//! The schemas and the worked example in `docs/`: generated from the types, and valid for
//! everything read and written.
//!
//! After a change of a type, run `HOMENODE_BLESS=1 cargo test -p homenode-placement --test schema`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use std::path::PathBuf;

use common::{Case, Size, VARIANTS, case, decide_with};
use placement::nthread::Settings;
use placement::{Plan, Snapshot};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde_json::Value;

fn docs(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(name)
}

fn schema_of<T: JsonSchema>() -> Value {
    schemars::SchemaGenerator::default().into_root_schema_for::<T>().to_value()
}

fn is_in_docs<T: JsonSchema>(name: &str) {
    let generated = schema_of::<T>();
    if std::env::var_os("HOMENODE_BLESS").is_some() {
        std::fs::write(docs(name), serde_json::to_string_pretty(&generated).unwrap() + "\n").unwrap();
    }
    let written = std::fs::read_to_string(docs(name)).unwrap_or_default();
    // As values: the order of keys depends on what else is built with serde_json.
    assert!(
        serde_json::from_str::<Value>(&written).is_ok_and(|written| written == generated),
        "docs/{name} does not match the types; run: HOMENODE_BLESS=1 cargo test -p homenode-placement --test schema"
    );
}

fn assert_valid<T: JsonSchema>(value: &Value) {
    let validator = jsonschema::validator_for(&schema_of::<T>()).unwrap();
    let errors: Vec<_> = validator.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn the_snapshot_schema_in_docs_matches_the_types() {
    is_in_docs::<Snapshot>("snapshot.schema.json");
}

#[test]
fn the_plan_schema_in_docs_matches_the_types() {
    is_in_docs::<Plan>("plan.schema.json");
}

#[test]
fn the_schema_of_measured_nodes_in_docs_matches_the_types() {
    is_in_docs::<topology::measured::Measured>("nodes.schema.json");
}

/// The JSON blocks of a Markdown file.
fn json_blocks(text: &str) -> Vec<&str> {
    text.split("```json\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

#[test]
fn the_worked_example_in_the_docs_works() {
    let text = std::fs::read_to_string(docs("snapshot.md")).unwrap();
    let blocks = json_blocks(&text);
    let [snapshot, plan] = blocks.as_slice() else {
        panic!("docs/snapshot.md: a snapshot, then its plan, as ```json blocks")
    };
    let expected: Value = serde_json::from_str(plan).unwrap();
    assert_valid::<Snapshot>(&serde_json::from_str(snapshot).unwrap());
    assert_valid::<Plan>(&expected);
    let window = Snapshot::from_json(snapshot).unwrap();
    let plan = decide_with("nthread", &Settings::default(), &window.topology(), &window);
    let plan: Value = serde_json::from_str(&plan.to_json().unwrap()).unwrap();
    assert_eq!(rounded(plan.clone()), expected, "\n{}", serde_json::to_string_pretty(&rounded(plan)).unwrap());
}

/// Fractions with three decimals, as the documentation shows them.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(n) if n.is_f64() => ((n.as_f64().unwrap() * 1000.0).round() / 1000.0).into(),
        Value::Array(items) => items.into_iter().map(rounded).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, rounded(value))).collect(),
        other => other,
    }
}

#[test]
fn the_schema_rejects_invalid_snapshots() {
    let validator = jsonschema::validator_for(&schema_of::<Snapshot>()).unwrap();
    let valid =
        serde_json::json!({"version": 2, "window_s": 1, "nodes": [{"id": 0, "cpus": [0], "distance": {"0": 10}}]});
    assert!(validator.is_valid(&valid));
    for (pointer, value) in
        [("/nodes/0/id", "-1"), ("/nodes/0/distance", "{\"x\":10}"), ("/window_s", "\"1\""), ("/nodes", "{}")]
    {
        let mut wrong = valid.clone();
        *wrong.pointer_mut(pointer).unwrap() = serde_json::from_str(value).unwrap();
        assert!(!validator.is_valid(&wrong), "{wrong}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_snapshots_and_plans_are_valid(
        Case { topology, snapshot } in case(Size { nodes: 4, threads: 6, odd_nodes: true }),
        name in prop::sample::select(&VARIANTS),
    ) {
        let plan = decide_with(name, &Settings::default(), &topology, &snapshot);
        assert_valid::<Snapshot>(&serde_json::from_str(&snapshot.to_json().unwrap()).unwrap());
        let plan = plan.to_json().unwrap();
        assert_valid::<Plan>(&serde_json::from_str(&plan).unwrap());
        prop_assert!(serde_json::from_str::<Plan>(&plan).is_ok());
    }
}
