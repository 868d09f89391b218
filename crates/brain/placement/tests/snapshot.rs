//! Reading snapshots: the documented example, derived values, and wrong snapshots.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{Case, MB, Size, bytes, case, decide, moves, snapshot, thread};
use placement::{MeasuredLoad, NodeLoad, Reason, Snapshot, SnapshotError, Thread};
use proptest::prelude::*;
use topology::{MemoryKind, NodeId};

/// The example of the design document. Only node 0's distance table mentions node 1.
const DESIGN: &str = r#"{"version":2,"window_s":1.0,
 "nodes":[{"id":0,"cpus":[0,1,2,3],"distance":{"0":10,"1":21},
           "read_bw_max":6.8e9,"write_bw_max":1.85e9,
           "read_bytes":300000000,"write_bytes":0,"memory_free":8000000000}],
 "threads":[{"tid":101,"pid":100,"node":1,"allowed_nodes":[0,1],"cpu_s":0.8,
             "read_bytes":{"0":300000000},"write_bytes":{"1":0},
             "files":[{"file":"8:1:1234","read_bytes":{"0":300000000},"write_bytes":{}}],"shares_file":false}],
 "files":[{"file":"8:1:1234","bytes":{"0":4294967296},"readers":[101]}],
 "processes":[{"pid":100,"resident":{"0":0,"1":12000000},"mapped":[{"node":0,"hot_bytes":0,"cold_bytes":0}]}]}"#;

#[test]
fn the_example_of_the_design_gives_the_plan_of_the_design() {
    let window = Snapshot::from_json(DESIGN).unwrap();
    let plan = decide("nthread", &window);
    let json: serde_json::Value = serde_json::from_str(&plan.to_json().unwrap()).unwrap();
    assert_eq!((&json["version"], &json["policy"]), (&2.into(), &"nthread".into()));
    let expected = serde_json::json!([{"kind": "thread", "tid": 101, "pid": 100, "from": 1, "to": 0,
        "reason": "read_locality", "why": "300.0 MB of 300.0 MB read from node 0"}]);
    assert_eq!(json["moves"], expected);
    assert_eq!(json["predicted"]["remote_share_before"], 1.0);
    assert_eq!(json["predicted"]["remote_share_after"], 0.0);
    assert!(plan.notes.iter().any(|n| n.starts_with("node 1: not described in this snapshot")), "{:?}", plan.notes);
}

#[test]
fn a_topology_includes_mentioned_nodes() {
    let topology = Snapshot::from_json(DESIGN).unwrap().topology();
    let [zero, one] = topology.nodes.as_slice() else { panic!("{topology:?}") };
    assert_eq!((zero.id, zero.cpus.to_string(), zero.memory), (NodeId(0), "0-3".into(), MemoryKind::Dram));
    assert_eq!((zero.read_bw_max, zero.write_bw_max), (Some(6.8e9), Some(1.85e9)));
    assert_eq!((one.id, one.cpus.is_empty(), one.read_bw_max), (NodeId(1), true, None));
    // The table is assumed to be symmetric.
    assert_eq!(topology.distance(NodeId(1), NodeId(0)), Some(21));
}

#[test]
fn remote_bytes_and_home() {
    let t = thread(1, 0, &[(0, 100), (1, 300)], 0);
    assert_eq!((t.remote_bytes(), t.home(), t.file_bytes()), (300 * MB, Some(NodeId(1)), 400 * MB));
    // As observed, but never more than the total.
    assert_eq!(Thread { remote_read_bytes: Some(5), ..t.clone() }.remote_bytes(), 5);
    assert_eq!(Thread { remote_read_bytes: Some(u64::MAX), ..t.clone() }.remote_bytes(), 400 * MB);
    // In a tie: the node where it runs, otherwise the lowest id.
    let equal = Thread { read_bytes: bytes(&[(0, 7), (1, 7), (2, 7)]), ..t.clone() };
    assert_eq!(Thread { node: NodeId(1), ..equal.clone() }.home(), Some(NodeId(1)));
    assert_eq!(Thread { node: NodeId(3), ..equal }.home(), Some(NodeId(0)));
    assert_eq!(Thread { read_bytes: bytes(&[(0, 0)]), ..t }.home(), None);
}

#[test]
fn remote_share_is_of_all_threads_together() {
    let window = snapshot(vec![common::node(0, 1), common::node(1, 1)], vec![]);
    assert_eq!(window.remote_share(), None);
    let threads = vec![thread(1, 0, &[(0, 300)], 0), thread(2, 0, &[(0, 0), (1, 100)], 5)];
    assert_eq!(Snapshot { threads, ..window }.remote_share(), Some(0.25));
}

/// Replaces one piece of text, with ' for ", in the design's example, and returns the resulting
/// message, with ' for ", too.
fn refused(from: &str, to: &str) -> String {
    let text = DESIGN.replacen(&from.replace('\'', "\""), &to.replace('\'', "\""), 1);
    assert_ne!(text, DESIGN, "`{from}` is not in the example");
    Snapshot::from_json(&text).unwrap_err().to_string().replace('"', "'")
}

#[test]
fn wrong_json_names_the_field_the_line_and_the_column() {
    for (from, to, message) in [
        ("'tid':101", "'tid':-1", "threads[0].tid: invalid value: integer `-1`, expected u32 at line 5 column 21"),
        ("'tid':101", "'tid':'a'", "threads[0].tid: invalid type: string 'a', expected u32 at line 5 column 22"),
        (
            "'read_bytes':300000000,",
            "'read_bytes':-300000000,",
            "nodes[0].read_bytes: invalid value: integer `-300000000`",
        ),
        ("'window_s':1.0", "'window_s':1e999", "window_s: number out of range at line 1 column"),
        ("'window_s':1.0", "'window_s':NaN", "window_s: expected value at line 1 column"),
        ("'node':1", "'knot':1", "threads[0].knot: unknown field `knot`, expected one of"),
        ("'cpu_s':0.8,", "", "threads[0]: missing field `cpu_s` at line"),
        (
            "{'0':300000000}",
            "{'x':300000000}",
            "threads[0].read_bytes.?: invalid value: expected key to be a number in quotes",
        ),
        ("{'0':300000000}", "{'0':18446744073709551616}", "threads[0].read_bytes"),
        ("'version':2,", "'version':2,'version':2,", "duplicate field `version`"),
        ("'8:1:1234','read", "'db','read", "threads[0].files[0].file: invalid value: string 'db', expected"),
        ("'8:1:1234','bytes", "'08:1:9','bytes", "expected a file id, `major:minor:inode`"),
    ] {
        let error = refused(from, to);
        assert!(error.starts_with("not a snapshot: ") && error.contains(message), "{from} -> {to}: {error}");
        assert!(error.contains("at line "), "{error}");
    }
    for (text, message) in [
        ("", "not a snapshot: EOF while parsing a value at line 1 column 0"),
        ("[2]", "not a snapshot: "),
        (r#"{"version":2"#, "EOF while parsing"),
        (&format!("{DESIGN} x"), "not a snapshot: trailing characters at line"),
    ] {
        let error = Snapshot::from_json(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
    let deep = "[".repeat(100_000);
    assert!(Snapshot::from_json(&deep).is_err());
}

#[test]
fn a_wrong_version_is_reported_before_any_other_problem() {
    for to in ["'version':3", "'version':3,'zones':[]"] {
        assert_eq!(refused("'version':2", to), "snapshot version 3 is not supported, this build reads version 2");
    }
}

#[test]
fn impossible_values_are_named_with_their_field() {
    for (from, to, message) in [
        ("'window_s':1.0", "'window_s':0", "window_s: 0 is not a positive number of seconds"),
        ("'window_s':1.0", "'window_s':-1.5", "window_s: -1.5 is not a positive number of seconds"),
        ("'window_s':1.0", "'window_s':1e300", "is not a positive number of seconds"),
        ("'window_s':1.0", "'window_s':1,'time_s':-1", "time_s: -1 is not within 0 to"),
        ("'cpu_s':0.8", "'cpu_s':-0.8", "threads[0] (tid 101).cpu_s: -0.8 is not within 0 to"),
        (
            "'cpu_s':0.8",
            "'cpu_s':0.8,'wait_s':1e30",
            "threads[0] (tid 101).wait_s: 1000000000000000000000000000000 is not",
        ),
        ("'node':1", "'node':7", "threads[0] (tid 101).node: node 7 is not among the nodes of this snapshot (0, 1)"),
        ("[0,1],'cpu_s'", "[0,7],'cpu_s'", "threads[0] (tid 101).allowed_nodes[1]: node 7 is not among"),
        (
            "'read_bytes':{'0':300000000},'w",
            "'read_bytes':{'7':3},'w",
            "threads[0] (tid 101).read_bytes: node 7 is not",
        ),
        ("'write_bytes':{'1':0}", "'write_bytes':{'7':0}", "threads[0] (tid 101).write_bytes: node 7 is not among"),
        ("'write_bytes':{}", "'write_bytes':{'7':0}", "threads[0] (tid 101).files[0].write_bytes: node 7 is not among"),
        ("{'0':4294967296}", "{'7':4}", "files[0] (file 8:1:1234).bytes: node 7 is not among"),
        ("{'0':0,'1':12000000}", "{'7':4}", "processes[0] (pid 100).resident: node 7 is not among"),
        ("[{'node':0", "[{'node':7", "processes[0] (pid 100).mapped[0].node: node 7 is not among"),
        ("{'0':10,", "{'0':0,", "nodes[0] (node 0).distance.0: 0 is not within 1 to 255"),
        ("'1':21}", "'1':2100}", "nodes[0] (node 0).distance.1: 2100 is not within 1 to 255"),
        ("6.8e9", "0", "nodes[0] (node 0).read_bw_max: 0 is not a positive number of bytes per second"),
        ("1.85e9", "-1.85e9", "nodes[0] (node 0).write_bw_max: -1850000000 is not a positive number"),
        ("[0,1,2,3]", "[0,1,2,99999]", "nodes[0] (node 0).cpus: 99999 is larger than any CPU number"),
        ("[0,1,2,3]", "[0,1,2,2]", "nodes[0] (node 0).cpus: CPU 2 is already on node 0"),
        ("{'id':0", "{'id':1,'cpus':[3]},{'id':0", "nodes[1] (node 0).cpus: CPU 3 is already on node 1"),
        ("{'id':0", "{'id':0,'cpus':[]},{'id':0", "nodes[1] (node 0): listed twice"),
        (
            "8000000000",
            "9007199254740993",
            "nodes[0] (node 0).memory_free: 9007199254740993 bytes is more than any machine has",
        ),
        (
            "{'1':0}",
            "{'1':18446744073709551615}",
            "threads[0] (tid 101).write_bytes.1: 18446744073709551615 bytes is more",
        ),
        ("'memory_free'", "'cpu_s':-1,'memory_free'", "nodes[0] (node 0).cpu_s: -1 is not within 0 to"),
        (
            "'files':[{'file':'8:1:1234','bytes'",
            "'files':[{'file':'8:1:1234'},{'file':'8:1:1234','bytes'",
            "files[1] (file 8:1:1234): listed twice",
        ),
        (
            "{'0':4294967296}",
            "{'0':4294967296},'sampled':0",
            "files[0] (file 8:1:1234).sampled: 0 is not a share above 0",
        ),
        (
            "{'0':4294967296}",
            "{'0':4294967296},'movable':true,'pinned':'DAX'",
            "files[0] (file 8:1:1234).pinned: given for a file that is not said to be immovable",
        ),
        (
            "'memory_free'",
            "'measured':{'source':'amd_umc','bytes':9,'read_bytes':10},'memory_free'",
            "nodes[0] (node 0).measured.read_bytes: more than the bytes read and written together",
        ),
        ("'processes':[", "'processes':[{'pid':100},", "processes[1] (pid 100): listed twice"),
        (
            "'threads':[",
            "'threads':[{'tid':101,'pid':1,'node':0,'allowed_nodes':[],'cpu_s':0},",
            "threads[1] (tid 101): listed twice",
        ),
    ] {
        let error = refused(from, to);
        assert!(error.contains(message), "{from} -> {to}: {error}");
    }
    let empty = Snapshot::from_json(r#"{"version":2,"window_s":1,"nodes":[]}"#).unwrap_err();
    assert_eq!(empty.to_string(), "nodes: empty: a machine has at least one node");
}

#[test]
fn what_the_controllers_carried_counts_before_file_bytes() {
    let mut node = NodeLoad { read_bytes: 30, write_bytes: 10, ..NodeLoad::default() };
    assert_eq!(node.controller_bytes(), (30, 10));
    let measured = |bytes, read_bytes| Some(MeasuredLoad { source: "uncore_imc".into(), bytes, read_bytes });
    node.measured = measured(100, Some(60));
    assert_eq!(node.controller_bytes(), (60, 40));
    // Three quarters of the file bytes are reads.
    node.measured = measured(100, None);
    assert_eq!(node.controller_bytes(), (75, 25));
    let idle = NodeLoad { measured: measured(100, None), ..NodeLoad::default() };
    assert_eq!(idle.controller_bytes(), (100, 0));
}

#[test]
fn nan_is_rejected_in_memory_too() {
    // JSON has no NaN, but a snapshot built in memory may.
    let mut window = Snapshot::from_json(DESIGN).unwrap();
    window.threads[0].cpu_s = f64::NAN;
    assert!(
        matches!(window.validate(), Err(SnapshotError::Value { field, .. }) if field == "threads[0] (tid 101).cpu_s")
    );
    window.threads[0].cpu_s = 0.0;
    window.nodes[0].read_bw_max = Some(f64::INFINITY);
    assert!(window.validate().is_err());
    window.nodes[0].read_bw_max = None;
    window.window_s = f64::NAN;
    assert!(window.validate().is_err());
}

#[test]
fn more_nodes_than_a_kernel_supports_are_refused() {
    let nodes: Vec<_> = (0..1025).map(|id| serde_json::json!({"id": id, "cpus": []})).collect();
    let text = serde_json::json!({"version": 2, "window_s": 1, "nodes": nodes}).to_string();
    let error = Snapshot::from_json(&text).unwrap_err().to_string();
    assert_eq!(error, "nodes: 1025 entries, more than the kernel's limit of 1024");
}

#[test]
fn the_smallest_snapshot_is_a_version_a_window_and_a_node() {
    let window = Snapshot::from_json(r#"{"version":2,"window_s":1,"nodes":[{"id":3,"cpus":[0]}]}"#).unwrap();
    assert_eq!(moves(&decide("nthread", &window)), []);
    assert_eq!(window.topology().nodes[0].id, NodeId(3));
}

proptest! {
    #[test]
    fn a_snapshot_survives_its_json(Case { snapshot, .. } in case(Size { nodes: 4, threads: 6, odd_nodes: true })) {
        prop_assert_eq!(&Snapshot::from_json(&snapshot.to_json().unwrap()).unwrap(), &snapshot);
    }

    #[test]
    fn damaged_text_is_refused_without_a_panic(at in 0..DESIGN.len(), with in any::<u8>(), cut in any::<bool>()) {
        let mut text = DESIGN.as_bytes().to_vec();
        text[at] = with;
        if cut {
            text.truncate(at);
        }
        if let Ok(window) = Snapshot::from_json(&String::from_utf8_lossy(&text)) {
            let _ = moves_of_any(&window);
        }
    }
}

fn moves_of_any(window: &Snapshot) -> usize {
    let plan = decide("nthread", window);
    plan.moves
        .iter()
        .filter(|m| serde_json::to_value(m).unwrap()["reason"] == serde_json::json!(Reason::ReadLocality))
        .count()
}
