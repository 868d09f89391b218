//! Metrics as text. docs/metrics.md lists them.

use std::fmt::{Display, Write};

use placement::flow::{Pair, Sums};
use session::totals::{Found, Told};

/// Prometheus' text form.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub fn metrics(found: &Found) -> String {
    let mut text = Text { text: String::new() };
    let up = matches!(found, Found::Now(_));
    text.gauge("homenode_up", "Whether a daemon (homenode run) is observing: 1, or 0", u8::from(up));
    match found {
        Found::Now(told) => counters(&mut text, told),
        // Counters that stand still would look like a machine on which nothing is read.
        Found::Stale(_, Some(unix_s)) => text.window(*unix_s),
        Found::Stale(_, None) => {}
    }
    text.text
}

/// Name of a counter, its help, and its value in `T`.
type Counter<T> = (&'static str, &'static str, fn(&T) -> u64);

fn counters(text: &mut Text, told: &Told) {
    text.head("homenode_build_info", "gauge", "Version of the daemon");
    text.sample("homenode_build_info", &[("version", &told.program)], 1);
    text.window(told.unix_s);
    text.gauge("homenode_window_seconds", "Length of the last window", told.window_s);
    text.head("homenode_windows_total", "counter", "Windows since the daemon began");
    text.sample("homenode_windows_total", &[], told.windows);

    let bytes: [Counter<Pair>; 2] = [
        ("homenode_file_read_bytes_total", "File bytes that threads on cpu_node read from data_node", |p| p.read_bytes),
        ("homenode_file_written_bytes_total", "File bytes that threads on cpu_node wrote to data_node", |p| {
            p.write_bytes
        }),
    ];
    for (name, help, of) in bytes {
        text.head(name, "counter", help);
        for row in &told.rows {
            for pair in &row.bytes.pairs {
                let (cpu, data) = (pair.cpu_node.to_string(), pair.data_node.to_string());
                text.sample(name, &[("cpu_node", &cpu), ("data_node", &data), ("service", &row.service)], of(pair));
            }
        }
    }
    let shares: [Counter<Sums>; 2] = [
        (
            "homenode_file_remote_read_bytes_total",
            "File bytes that threads read from another node than their own",
            |b| b.remote_bytes,
        ),
        (
            "homenode_file_could_be_local_bytes_total",
            "Remote file bytes that would be local if each thread ran at its home node",
            |b| b.could_be_local_bytes,
        ),
    ];
    for (name, help, of) in shares {
        text.head(name, "counter", help);
        for row in told.rows.iter().filter(|row| !row.bytes.pairs.is_empty()) {
            text.sample(name, &[("service", &row.service)], of(&row.bytes));
        }
    }
    let name = "homenode_service_rule_info";
    text.head(name, "gauge", "1: this rule applies to threads of the service");
    for row in &told.rows {
        for rule in &row.rules {
            text.sample(name, &[("rule", rule), ("service", &row.service)], 1);
        }
    }
    let name = "homenode_unlisted_read_bytes_total";
    text.head(
        name,
        "counter",
        "File bytes read from data_node by threads that are out of scope, or ended with no known service",
    );
    for (node, bytes) in told.unlisted_read_bytes.iter() {
        text.sample(name, &[("data_node", &node.to_string())], bytes);
    }
    text.head("homenode_moves_total", "counter", "Moves of threads, processes and files, by what became of them");
    for moves in &told.moves {
        let labels = [("kind", moves.kind.as_str()), ("policy", &told.policy), ("result", &moves.result)];
        text.sample("homenode_moves_total", &labels, moves.count);
    }
    text.gauge("homenode_threads", "Threads that used file bytes in the last window", told.threads);
    text.gauge("homenode_bound_threads", "Threads whose affinity is homenode's", told.bound_threads);
    text.gauge("homenode_stuck_copies", "Copies that the kernel does not return from", told.stuck_copies);
    text.gauge(
        "homenode_services",
        "Services that the daemon remembers, those without a label of their own too",
        told.services,
    );
    if let Some(cpu_s) = told.observer_cpu_s {
        text.head("homenode_observer_cpu_seconds_total", "counter", "CPU time of the daemon, without that of copies");
        text.sample("homenode_observer_cpu_seconds_total", &[], cpu_s);
    }
    if let Some(bytes) = told.observer_memory_bytes {
        text.gauge("homenode_observer_memory_bytes", "Memory of the daemon, with its BPF maps", bytes);
    }
}

struct Text {
    text: String,
}

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn window(&mut self, unix_s: f64) {
        self.gauge("homenode_window_timestamp_seconds", "When the last window ended, in seconds since 1970", unix_s);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (i, (label, value)) in labels.iter().enumerate() {
            self.text.push_str(if i == 0 { "{" } else { "," });
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(value, &mut self.text);
            self.text.push('"');
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

/// A label's value. The form escapes these three; what a terminal might take for a command, or a
/// reader cannot see, is shown as its code.
fn escape(value: &str, to: &mut String) {
    for c in crate::output::escape(value).chars() {
        match c {
            '\\' => to.push_str("\\\\"),
            '"' => to.push_str("\\\""),
            '\n' => to.push_str("\\n"),
            c => to.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use placement::flow::Flow;
    use session::totals::{Moves, Row};
    use topology::NodeId;

    use super::*;

    fn told() -> Told {
        let pair = Pair { cpu_node: NodeId(0), data_node: NodeId(1), read_bytes: 7, write_bytes: 2, ..Pair::default() };
        let sums = Sums { remote_bytes: 6, could_be_local_bytes: 5, ..Sums::default() };
        let bytes = Flow { sums, pairs: vec![pair] };
        Told {
            program: "0.1.0".to_owned(),
            policy: "nthread".to_owned(),
            window_s: 1.0,
            windows: 3,
            unix_s: 1.5,
            observer_cpu_s: Some(0.25),
            moves: vec![Moves { kind: "thread".to_owned(), result: "made".to_owned(), count: 4 }],
            rows: vec![Row { service: "db.service".to_owned(), rules: vec!["db".into()], bytes }],
            ..Told::default()
        }
    }

    #[test]
    fn all_that_is_counted_is_told() {
        let text = metrics(&Found::Now(Box::new(told())));
        for line in [
            "homenode_up 1",
            "homenode_build_info{version=\"0.1.0\"} 1",
            "homenode_file_read_bytes_total{cpu_node=\"0\",data_node=\"1\",service=\"db.service\"} 7",
            "homenode_file_written_bytes_total{cpu_node=\"0\",data_node=\"1\",service=\"db.service\"} 2",
            "homenode_file_remote_read_bytes_total{service=\"db.service\"} 6",
            "homenode_file_could_be_local_bytes_total{service=\"db.service\"} 5",
            "homenode_service_rule_info{rule=\"db\",service=\"db.service\"} 1",
            "homenode_moves_total{kind=\"thread\",policy=\"nthread\",result=\"made\"} 4",
            "homenode_observer_cpu_seconds_total 0.25",
            "homenode_window_timestamp_seconds 1.5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in:\n{text}");
        }
        assert!(text.contains("# TYPE homenode_moves_total counter\n"), "{text}");
    }

    #[test]
    fn a_daemon_that_is_gone_has_no_counters() {
        for (found, lines) in [
            (Found::Stale("gone".to_owned(), None), vec!["homenode_up 0"]),
            (
                Found::Stale("gone".to_owned(), Some(2.5)),
                vec!["homenode_up 0", "homenode_window_timestamp_seconds 2.5"],
            ),
        ] {
            let text = metrics(&found);
            assert_eq!(text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>(), lines);
        }
    }

    /// Users choose the names of their groups.
    #[test]
    fn an_odd_name_stays_within_its_quotes() {
        let mut told = told();
        told.rows[0].service = "/x\"} 1\nhomenode_up 0\\\u{1b}[31m\u{202e}é".to_owned();
        let text = metrics(&Found::Now(Box::new(told)));
        let line = text.lines().find(|line| line.starts_with("homenode_file_read_bytes_total")).unwrap();
        assert_eq!(
            line,
            r#"homenode_file_read_bytes_total{cpu_node="0",data_node="1",service="/x\"} 1\\nhomenode_up 0\\\\u{1b}[31m\\u{202e}é"} 7"#
        );
        assert!(!text.lines().any(|line| line == "homenode_up 0"), "{text}");
    }

    /// Every metric is documented with its kind, and every documented metric is there.
    #[test]
    fn the_documentation_lists_these_metrics() {
        let unlisted_read_bytes = [(NodeId(0), 1)].into_iter().collect();
        let full = Told { unlisted_read_bytes, observer_memory_bytes: Some(1), ..told() };
        let text = metrics(&Found::Now(Box::new(full)));
        let written: BTreeSet<(&str, &str)> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        let documented = include_str!("../../../../../../docs/metrics.md");
        let row = |line: &'static str| {
            let (name, rest) = line.strip_prefix("| `homenode_")?.split_once("` | ")?;
            Some((name.split('{').next()?, rest.split_once(' ')?.0))
        };
        let documented: BTreeSet<(&str, &str)> = documented.lines().filter_map(row).collect();
        let written = written.into_iter().filter_map(|(name, kind)| Some((name.strip_prefix("homenode_")?, kind)));
        assert_eq!(written.collect::<BTreeSet<_>>(), documented);
    }
}
