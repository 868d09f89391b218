//! Decides what to attach from what the kernel can do.
//!
//! **Problem.** Kernels differ in what they let us attach to, and two hooks on one path would count
//! its bytes twice.
//!
//! **Approach.** Pure rules turn facts into a set of hooks: the best available source for each
//! path, and for each path without one a sentence with the cause.
//!
//! **Limits.** The rules know file systems only by the hooks that see them.

use std::collections::BTreeSet;

use serde::Serialize;

use super::arc;
use super::fact::Fact;
use super::hooks::{Hook, Kind};
use super::probe::Capabilities;
use super::types::{Hooks, Settings};
use super::weights::at_least;

/// Programs to attach, and limits of what they see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Configuration {
    pub hooks: BTreeSet<Hook>,
    /// Whether the hook on the read path stays attached. Otherwise it is attached for a part of the
    /// time where it costs more than its budget.
    pub steady: bool,
    /// Limits of observation, each with its cause.
    pub notes: Vec<String>,
    /// Why nothing can be observed: the missing capability and the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<(&'static str, String)>,
}

/// The configuration for these facts. Never two hooks that see the same bytes.
pub fn choose(facts: &Capabilities, settings: &Settings) -> Configuration {
    let mut chosen = Configuration { blocked: blocked(facts), ..Configuration::default() };
    if chosen.blocked.is_some() {
        return chosen;
    }
    let offer = Offer { facts, functions: settings.hooks == Hooks::Best };
    reads(&offer, &mut chosen);
    faults(&offer, &mut chosen);
    writes(&offer, &mut chosen);
    memory_file_systems(&offer, &mut chosen);
    open_zfs(&offer, &mut chosen);
    chosen.steady = settings.exact || settings.steady;
    if !chosen.steady && !facts.nohz_full.is_empty() {
        chosen.steady = true;
        chosen.notes.push(format!(
            "reads: the hook stays attached (--steady), as attaching it interrupts all CPUs and CPUs {} run without a \
             timer tick (nohz_full)",
            facts.nohz_full
        ));
    }
    if !chosen.hooks.iter().any(|hook| READS.contains(hook)) {
        let cause = offer.causes(&READS);
        chosen.blocked = Some(("a hook on the page cache's read path", cause));
    }
    chosen
}

/// The hooks on the read path, of which one is attached.
pub(super) const READS: [Hook; 3] = [Hook::ReadFunction, Hook::ReadFunctionIter, Hook::ReadTracepoint];

/// The hooks whose programs follow page tables.
pub(super) const FOLLOW: [Hook; 3] = [Hook::FaultBegins, Hook::ArcCall, Hook::ArcRead];

/// Capabilities without which nothing can be observed.
fn blocked(facts: &Capabilities) -> Option<(&'static str, String)> {
    let needed = [
        ("BTF (/sys/kernel/btf/vmlinux)", &facts.btf),
        ("the right to load BPF programs (root, or CAP_BPF and CAP_PERFMON)", &facts.load),
        ("BPF tracepoints with BTF (tp_btf)", &facts.tracepoints),
        ("the BPF task iterator (iter/task)", &facts.task_pass),
        ("the initial pid namespace", &facts.pid_namespace),
        ("the initial time namespace", &facts.time_namespace),
        ("pages of 4 KiB", &facts.page_size),
    ];
    let layout = || Some(("the place of the node in a page's flags", facts.node_bits.as_ref().err()?.clone()));
    needed.into_iter().find_map(|(what, fact)| Some((what, fact.cause()?.to_owned()))).or_else(layout)
}

struct Offer<'a> {
    facts: &'a Capabilities,
    functions: bool,
}

impl Offer<'_> {
    fn fact(&self, hook: Hook) -> Fact {
        if hook.kind() != Kind::Tracepoint && !self.functions {
            return Fact::missing("function hooks are switched off");
        }
        if hook.kind() == Kind::Function
            && let Some(cause) = self.facts.functions.cause()
        {
            return Fact::missing(cause);
        }
        self.facts.hooks.get(&hook).cloned().unwrap_or_else(|| Fact::missing("not probed"))
    }

    /// The first of these that is available.
    fn first(&self, hooks: &[Hook]) -> Option<Hook> {
        hooks.iter().copied().find(|hook| self.fact(*hook).available())
    }

    fn causes(&self, hooks: &[Hook]) -> String {
        let mut causes: Vec<String> = Vec::new();
        for hook in hooks {
            if let Some(cause) = self.fact(*hook).cause().filter(|cause| !causes.iter().any(|c| c == cause)) {
                causes.push(cause.to_owned());
            }
        }
        causes.join("; ")
    }
}

fn reads(offer: &Offer<'_>, chosen: &mut Configuration) {
    let Some(hook) = offer.first(&READS) else { return };
    chosen.hooks.insert(hook);
    if hook == Hook::ReadTracepoint {
        let cause = offer.causes(&[Hook::ReadFunction]);
        chosen.notes.push(format!(
            "reads: seen by tracepoint ({cause}): parts of pages count as whole pages, except in read and pread"
        ));
    }
}

fn faults(offer: &Offer<'_>, chosen: &mut Configuration) {
    let entries = [Hook::EntriesFunction, Hook::EntryFunction];
    match (offer.first(&entries), offer.first(&[Hook::MapTracepoint])) {
        (Some(hook), _) => {
            chosen.hooks.insert(hook);
            match offer.first(&[Hook::MapFunction]) {
                Some(hook) => _ = chosen.hooks.insert(hook),
                None => chosen.notes.push(unseen_2_mib(&offer.causes(&[Hook::MapFunction]))),
            }
        }
        (None, Some(hook)) => {
            chosen.hooks.insert(hook);
            chosen.notes.push(unseen_2_mib(&offer.causes(&entries)));
            match offer.first(&[Hook::FaultBegins]) {
                Some(hook) => _ = chosen.hooks.insert(hook),
                None => chosen.notes.push(format!(
                    "mapped files: a fault counts all pages around it, also those that were mapped before: {}",
                    offer.causes(&[Hook::FaultBegins])
                )),
            }
        }
        (None, None) => {
            let cause = offer.causes(&[entries.as_slice(), &[Hook::MapTracepoint]].concat());
            chosen.notes.push(format!("mapped files: pages mapped around a fault are not seen: {cause}"));
        }
    }
    let single = [Hook::FaultFunction, Hook::FaultTracepoint];
    match offer.first(&single) {
        Some(hook) => _ = chosen.hooks.insert(hook),
        None => {
            chosen.notes.push(format!("mapped files: faults of single pages are not seen: {}", offer.causes(&single)))
        }
    }
}

fn unseen_2_mib(cause: &str) -> String {
    format!("mapped files: pages mapped 2 MiB at a time are not seen: {cause}")
}

fn writes(offer: &Offer<'_>, chosen: &mut Configuration) {
    let functions = [Hook::WriteGeneric, Hook::WriteIomap];
    let mut missing = Vec::new();
    if functions.iter().all(|hook| offer.fact(*hook).available()) {
        chosen.hooks.extend(functions);
    } else {
        // The tracepoints of a file system that is not loaded are not needed.
        let file_systems: [&[Hook]; 2] =
            [&[Hook::WriteExt4Delayed, Hook::WriteExt4, Hook::WriteExt4Journalled], &[Hook::WriteXfs]];
        for hooks in file_systems {
            if hooks.iter().all(|hook| offer.fact(*hook).available()) {
                chosen.hooks.extend(hooks);
            }
        }
        missing.push(format!("tmpfs writes are not seen: {}", offer.causes(&functions)));
    }
    match offer.first(&[Hook::WriteDirtied]) {
        Some(hook) => {
            chosen.hooks.insert(hook);
            if !chosen.hooks.contains(&Hook::WriteGeneric) {
                missing.push(
                    "writes of file systems other than ext4 and xfs count once per page until it is written back"
                        .to_owned(),
                );
            }
        }
        None => {
            missing.push(format!("writes of some file systems are not seen: {}", offer.causes(&[Hook::WriteDirtied])))
        }
    }
    chosen.notes.extend(missing);
}

fn memory_file_systems(offer: &Offer<'_>, chosen: &mut Configuration) {
    for (hooks, what) in [
        (&[Hook::ShmemRead][..], "tmpfs reads"),
        (&[Hook::ShmemSplice], "sendfile and splice from tmpfs"),
        (&[Hook::DaxRw], "reads and writes of DAX files"),
    ] {
        match offer.first(hooks) {
            Some(hook) => _ = chosen.hooks.insert(hook),
            // Before 6.5 splice read by shmem_file_read_iter.
            None if hooks == [Hook::ShmemSplice]
                && !at_least(&offer.facts.kernel, 6, 5)
                && chosen.hooks.contains(&Hook::ShmemRead) => {}
            None => chosen.notes.push(format!("{what} are not seen: {}", offer.causes(hooks))),
        }
    }
}

/// Nothing is said where there is no OpenZFS.
fn open_zfs(offer: &Offer<'_>, chosen: &mut Configuration) {
    if arc::HOOKS.iter().all(|hook| offer.fact(*hook).available()) {
        chosen.hooks.extend(arc::HOOKS);
    } else if offer.facts.zfs {
        chosen.notes.push(format!("reads of OpenZFS are not seen: {}", offer.causes(&arc::HOOKS)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Capabilities {
        Capabilities::everything()
    }

    fn without(hooks: &[Hook]) -> Capabilities {
        let mut facts = everything();
        for hook in hooks {
            facts.hooks.insert(*hook, Fact::missing(format!("no {}", hook.target())));
        }
        facts
    }

    fn hooks(facts: &Capabilities) -> Vec<Hook> {
        choose(facts, &Settings::default()).hooks.into_iter().collect()
    }

    #[test]
    fn each_path_has_its_best_source_and_no_second() {
        assert_eq!(
            hooks(&everything()),
            [
                Hook::ReadFunction,
                Hook::EntriesFunction,
                Hook::MapFunction,
                Hook::FaultFunction,
                Hook::WriteGeneric,
                Hook::WriteIomap,
                Hook::WriteDirtied,
                Hook::ShmemRead,
                Hook::ShmemSplice,
                Hook::DaxRw,
                Hook::ArcCall,
                Hook::ArcRead,
            ]
        );
        assert_eq!(choose(&everything(), &Settings::default()).notes, Vec::<String>::new());
    }

    #[test]
    fn tracepoints_replace_refused_functions_and_a_note_says_why() {
        let mut facts = everything();
        facts.functions = Fact::missing("fexit refused: EPERM");
        let chosen = choose(&facts, &Settings::default());
        assert_eq!(
            chosen.hooks.into_iter().collect::<Vec<_>>(),
            [
                Hook::ReadTracepoint,
                Hook::FaultBegins,
                Hook::MapTracepoint,
                Hook::FaultTracepoint,
                Hook::WriteExt4Delayed,
                Hook::WriteExt4,
                Hook::WriteExt4Journalled,
                Hook::WriteXfs,
                Hook::WriteDirtied,
                Hook::ArcCall,
                Hook::ArcRead,
            ]
        );
        assert!(
            chosen.notes.contains(&"tmpfs reads are not seen: fexit refused: EPERM".to_owned()),
            "{:?}",
            chosen.notes
        );
        assert!(chosen.notes.iter().any(|n| n.starts_with("reads: seen by tracepoint (fexit refused: EPERM)")));
        assert_eq!(chosen.blocked, None);
    }

    #[test]
    fn the_user_can_ask_for_tracepoints() {
        let settings = Settings { hooks: Hooks::Tracepoints, ..Settings::default() };
        let chosen = choose(&everything(), &settings);
        assert!(chosen.hooks.iter().all(|hook| hook.kind() == crate::hooks::Kind::Tracepoint));
        assert!(chosen.notes.iter().any(|n| n.contains("function hooks are switched off")), "{:?}", chosen.notes);
    }

    #[test]
    fn the_hook_stays_attached_on_request_and_where_cpus_run_without_a_tick() {
        let steady = |exact, steady, nohz_full: &str| {
            let facts = Capabilities { nohz_full: nohz_full.parse().unwrap(), ..everything() };
            let chosen = choose(&facts, &Settings { exact, steady, ..Settings::default() });
            (chosen.steady, chosen.notes.join("\n"))
        };
        assert_eq!(steady(false, false, ""), (false, String::new()));
        assert_eq!(steady(true, false, ""), (true, String::new()));
        assert_eq!(steady(false, true, "2-7"), (true, String::new()));
        let (chosen, note) = steady(false, false, "2-7");
        assert!(chosen && note.contains("CPUs 2-7 run without a timer tick (nohz_full)"), "{note}");
    }

    #[test]
    fn an_older_kernel_gets_the_hook_for_its_iterator_form() {
        // 6.1: no filemap tracepoints, filemap_get_pages takes an iterator, entries are set one by
        // one.
        let facts = without(&[
            Hook::ReadFunction,
            Hook::ReadTracepoint,
            Hook::EntriesFunction,
            Hook::MapTracepoint,
            Hook::FaultTracepoint,
        ]);
        let hooks = hooks(&facts);
        assert!(hooks.starts_with(&[Hook::ReadFunctionIter, Hook::EntryFunction, Hook::MapFunction]), "{hooks:?}");
    }

    #[test]
    fn without_what_was_mapped_before_a_note_says_that_it_counts_again() {
        let mut facts = without(&[Hook::FaultBegins]);
        facts.functions = Fact::missing("no");
        let chosen = choose(&facts, &Settings::default());
        assert!(chosen.hooks.contains(&Hook::MapTracepoint));
        let note =
            "mapped files: a fault counts all pages around it, also those that were mapped before: no page_fault_user";
        assert!(chosen.notes.contains(&note.to_owned()), "{:?}", chosen.notes);
    }

    #[test]
    fn splice_from_tmpfs_needs_a_hook_of_its_own_since_6_5() {
        let notes = |kernel: &str| {
            let facts = Capabilities { kernel: kernel.to_owned(), ..without(&[Hook::ShmemSplice]) };
            choose(&facts, &Settings::default()).notes
        };
        assert_eq!(notes("6.1.0-56-amd64"), Vec::<String>::new());
        assert_eq!(notes("6.5.0"), ["sendfile and splice from tmpfs are not seen: no shmem_file_splice_read"]);
    }

    #[test]
    fn open_zfs_is_seen_by_both_hooks_or_not_at_all() {
        let chosen = |zfs| {
            let facts = Capabilities { zfs, ..without(&[Hook::ArcRead]) };
            choose(&facts, &Settings::default())
        };
        assert!(!chosen(true).hooks.contains(&Hook::ArcCall));
        assert_eq!(chosen(true).notes, ["reads of OpenZFS are not seen: no zfs_uiomove"]);
        assert_eq!(chosen(false).notes, Vec::<String>::new());
        let settings = Settings { hooks: Hooks::Tracepoints, ..Settings::default() };
        assert!(!choose(&everything(), &settings).hooks.contains(&Hook::ArcRead));
    }

    #[test]
    fn one_missing_write_function_switches_to_tracepoints_as_a_whole() {
        let hooks = hooks(&without(&[Hook::WriteIomap]));
        assert!(!hooks.contains(&Hook::WriteGeneric) && hooks.contains(&Hook::WriteExt4Delayed), "{hooks:?}");
    }

    #[test]
    fn the_dirtied_hook_covers_a_file_system_that_lacks_some_of_its_hooks() {
        let mut facts = without(&[Hook::WriteExt4]);
        facts.functions = Fact::missing("no");
        let hooks = hooks(&facts);
        assert!(!hooks.contains(&Hook::WriteExt4Delayed) && hooks.contains(&Hook::WriteDirtied), "{hooks:?}");
    }

    #[test]
    fn a_missing_necessity_is_named() {
        type Break = fn(&mut Capabilities) -> &mut Fact;
        let breaks: [(Break, &str); 7] = [
            (|f| &mut f.btf, "BTF"),
            (|f| &mut f.load, "CAP_BPF"),
            (|f| &mut f.tracepoints, "tp_btf"),
            (|f| &mut f.task_pass, "iter/task"),
            (|f| &mut f.pid_namespace, "pid namespace"),
            (|f| &mut f.time_namespace, "time namespace"),
            (|f| &mut f.page_size, "4 KiB"),
        ];
        for (place, name) in breaks {
            let mut facts = everything();
            *place(&mut facts) = Fact::missing("because");
            let (what, cause) = choose(&facts, &Settings::default()).blocked.unwrap();
            assert!(what.contains(name) && cause == "because", "{what}: {cause}");
        }
        let unknown = Capabilities { node_bits: Err("because".to_owned()), ..everything() };
        let (what, cause) = choose(&unknown, &Settings::default()).blocked.unwrap();
        assert!(what.contains("page's flags") && cause == "because", "{what}: {cause}");
        let (what, cause) = choose(&without(&READS), &Settings::default()).blocked.unwrap();
        assert!(what.contains("read path"), "{what}");
        assert_eq!(cause, "no filemap_get_pages; no mm_filemap_get_pages");
    }
}
