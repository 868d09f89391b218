//! The BPF programs, loaded and attached, and their maps.
//!
//! **Problem.** The kernel can refuse a program when it is loaded or attached; nothing may stay
//! behind then.
//!
//! **Approach.** Only the chosen programs are loaded. File descriptors hold everything, so that
//! dropping [`Programs`], or the end of the process, removes it all.
//!
//! **Limits.** libbpf says which program failed to attach, but not which one failed to load; then
//! each is tried alone.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, MapHandle, OpenMapMut, ProgramMut};
use libbpf_rs::{RingBuffer, RingBufferBuilder};

use super::choose::Configuration;
use super::frames;
use super::grace::Grace;
use super::groups;
use super::hooks::Hook;
use super::probe_run::silence_libbpf;
use super::records::intf::MARK_OWN;
use super::records::{self, Counters, Key, Pass, Record, Usage, Watched, fresh_sampler, range_key};
use super::slices::{Limits, Maps, Slicer};
use linux::births::Descendant;

use super::types::{ObserveError, Settings};
use super::{cause, choose, crowd, drain, pass};
use linux::threads::as_shown;
use placement::ranges::RangeKey;
use topology::ThreadId;

skeleton!(mod observe_skel = "observe.skel.rs");

use observe_skel::{ObserveSkel, ObserveSkelBuilder};

/// What is drained has the sizes of the compiled programs' types.
const _: () = {
    assert!(size_of::<observe_skel::types::usage_key>() == Key::BYTES);
    assert!(size_of::<observe_skel::types::usage>() == Usage::BYTES);
    assert!(size_of::<observe_skel::types::range_key>() == range_key::BYTES);
};

/// Why programs could not be started.
#[derive(Debug)]
pub(super) enum Refused {
    /// This hook was refused: without it there may be another way.
    Hook(Hook, String),
    /// Something that everything needs was refused.
    All(ObserveError),
}

impl From<ObserveError> for Refused {
    fn from(error: ObserveError) -> Self {
        Self::All(error)
    }
}

fn bpf(step: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> ObserveError {
    let step = step.into();
    move |source| ObserveError::Bpf { step, source }
}

#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// CPUs that can ever be: length of affinity masks and per-CPU values.
    pub possible_cpus: usize,
    pub nodes: Vec<u32>,
    pub entries: u32,
    pub kernel: String,
    /// Width of the node's number in a page's flags.
    pub node_bits: u32,
    /// Whether `generic_perform_write` advances the file position before it returns.
    pub generic_pos_advanced: bool,
    /// Where a hook follows page tables.
    pub memory: frames::Memory,
}

/// Threads that can be watched, those born of them included.
const WATCHED: u32 = 65_536;
/// Ranges of files that can be counted in a window: 128 GiB of data, of which one user may read two
/// thirds, in 6 MB of the kernel's memory
/// (32 bytes for key and value, and about 60 for the entry).
const RANGES: u32 = 65_536;

pub(super) struct Programs {
    skel: ObserveSkel<'static>,
    pass: Link,
    descendant_pass: Link,
    _links: Vec<Link>,
    reads: Option<Slicer>,
    /// Control groups that come and go; or why they are not seen.
    groups: Result<GroupEvents, String>,
    nodes: Vec<u32>,
    epoch: u32,
    /// The next pass shows every thread.
    all_next: bool,
    grace: Grace,
    drain: drain::Buffer,
}

struct GroupEvents {
    ring: RingBuffer<'static>,
    taken: mpsc::Receiver<groups::Event>,
    _links: [Link; 2],
    lost: u64,
}

impl GroupEvents {
    fn start(skel: &ObserveSkel<'static>) -> Result<Self, libbpf_rs::Error> {
        let (taker, taken) = mpsc::channel();
        let take = move |bytes: &[u8]| {
            if let Some(event) = records::group(bytes) {
                _ = taker.send(event);
            }
            0
        };
        let mut ring = RingBufferBuilder::new();
        ring.add(&skel.maps.group_events, take)?;
        let _links = [skel.progs.group_made.attach()?, skel.progs.group_gone.attach()?];
        Ok(Self { ring: ring.build()?, taken, _links, lost: 0 })
    }
}

impl Programs {
    pub fn start(chosen: &Configuration, settings: &Settings, machine: &Machine) -> Result<Self, Refused> {
        silence_libbpf();
        match Self::load(&chosen.hooks, chosen.steady, settings, machine) {
            Ok(skel) => Self::attach(skel, chosen, machine),
            Err(source) => {
                for hook in &chosen.hooks {
                    let alone = BTreeSet::from([*hook]);
                    if let Err(error) = Self::load(&alone, chosen.steady, settings, machine) {
                        return Err(Refused::Hook(*hook, refused("loading", *hook, &error)));
                    }
                }
                Err(Refused::All(ObserveError::Bpf { step: "loading the BPF programs".to_owned(), source }))
            }
        }
    }

    fn load(
        hooks: &BTreeSet<Hook>,
        steady: bool,
        settings: &Settings,
        machine: &Machine,
    ) -> Result<ObserveSkel<'static>, libbpf_rs::Error> {
        // The skeleton borrows this place (the size of one pointer) for its whole life, so the
        // place is leaked.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = ObserveSkelBuilder::default().open(storage)?;
        let named = Hook::ALL.map(|hook| (hook.program(), hook));
        for mut program in open.open_object_mut().progs_mut() {
            if let Some((_, hook)) = named.iter().find(|(name, _)| program.name() == name.as_str()) {
                program.set_autoload(hooks.contains(hook));
            }
        }
        let has = |hook| hooks.contains(&hook);
        let watched = settings.max_entries.unwrap_or(WATCHED);
        let ranges = settings.max_entries.unwrap_or(RANGES);
        let sampling = super::weights::Sampling::new();
        if let Some(tunables) = open.maps.rodata_data.as_mut() {
            tunables.own_tgid = std::process::id();
            let limits = Limits::get();
            tunables.read_budget = limits.budget;
            tunables.read_burst_ns = limits.burst_ns;
            tunables.read_count_ns = limits.count_ns;
            tunables.table_entries = machine.entries;
            // A quarter is for threads that may name no more files.
            tunables.file_entries = machine.entries - machine.entries / 4;
            tunables.range_entries = ranges;
            // The rest is for the threads that a move binds.
            tunables.watched_entries = watched - watched / 8;
            tunables.places_seed = (linux::random() * f64::from(u32::MAX)) as u32;
            tunables.exact = settings.exact;
            tunables.steady = steady;
            tunables.ranges_wanted = settings.ranges;
            tunables.node_bits = machine.node_bits;
            tunables.mask_words = machine.possible_cpus.div_ceil(64) as u32;
            tunables.generic_pos_advanced = machine.generic_pos_advanced;
            tunables.iomap_pos_advanced = super::weights::at_least(&machine.kernel, 6, 5);
            tunables.ext4_hooked = has(Hook::WriteExt4Delayed);
            tunables.xfs_hooked = has(Hook::WriteXfs);
            tunables.generic_hooked = has(Hook::WriteGeneric);
            tunables.direct_map = machine.memory.direct_map;
            tunables.memory_end = machine.memory.memory_end;
            tunables.five_levels = machine.memory.five_levels;
            for (to, frames) in tunables.frames.iter_mut().zip(&machine.memory.frames) {
                (to.first, to.end, to.node) = (frames.first, frames.end, frames.node);
            }
            tunables.exp_table = sampling.table;
            tunables.exp_scale = sampling.scale;
            tunables.weights = sampling.weights;
        }
        // One more entry per node, for bytes that find no free entry.
        let entries = machine.entries.saturating_add(machine.nodes.len() as u32);
        let tables: [&mut OpenMapMut<'_>; 2] = [&mut open.maps.usage_a, &mut open.maps.usage_b];
        for table in tables {
            table.set_max_entries(entries)?;
        }
        open.maps.marked.set_max_entries(watched)?;
        if settings.ranges {
            open.maps.ranges.set_max_entries(ranges)?;
        }
        open.load()
    }

    fn attach(skel: ObserveSkel<'static>, chosen: &Configuration, machine: &Machine) -> Result<Self, Refused> {
        let grace = Grace::new().map_err(bpf("making a map of maps"))?;
        let drain = drain::Buffer::default();
        let pass = skel.progs.task_pass.attach().map_err(bpf("attaching iter/task"))?;
        let descendant_pass = skel.progs.descendant_pass.attach().map_err(bpf("attaching iter/task"))?;
        let links = vec![
            skel.progs.on_fork.attach().map_err(bpf("attaching tp_btf/sched_process_fork"))?,
            skel.progs.on_exec.attach().map_err(bpf("attaching tp_btf/sched_process_exec"))?,
            skel.progs.on_exit.attach().map_err(bpf("attaching tp_btf/sched_process_exit"))?,
        ];
        let nodes = machine.nodes.clone();
        let groups = GroupEvents::start(&skel).map_err(|error| cause::of_bpf(&error));
        let mut programs = Self {
            skel,
            pass,
            descendant_pass,
            _links: links,
            reads: None,
            groups,
            nodes,
            epoch: 0,
            all_next: false,
            grace,
            drain,
        };
        programs.fresh_samplers(machine.possible_cpus).map_err(bpf("setting up the samplers"))?;
        for epoch in [0, 1] {
            programs.make_unattributed(epoch).map_err(bpf("setting up the tables"))?;
        }
        for hook in &chosen.hooks {
            let refused = |e| Refused::Hook(*hook, refused("attaching", *hook, &e));
            if choose::READS.contains(hook) {
                programs.reads = Some(read_hook(&mut programs.skel, *hook, chosen.steady).map_err(refused)?);
            } else {
                programs._links.push(attached(&mut programs.skel, *hook).map_err(refused)?);
            }
        }
        Ok(programs)
    }

    fn fresh_samplers(&mut self, cpus: usize) -> Result<(), libbpf_rs::Error> {
        let map = &self.skel.maps.samplers;
        let values = vec![fresh_sampler(); cpus];
        map.update_percpu(&0u32.to_ne_bytes(), &values, MapFlags::ANY)
    }

    /// Takes these nodes for the machine's, from the next table on.
    pub fn know(&mut self, nodes: Vec<u32>) {
        self.nodes = nodes;
    }

    fn make_unattributed(&self, epoch: u32) -> Result<(), libbpf_rs::Error> {
        let zero = [0; Usage::BYTES];
        for node in &self.nodes {
            self.table(epoch).update(&Key::unattributed(*node), &zero, MapFlags::ANY)?;
        }
        Ok(())
    }

    fn table(&self, epoch: u32) -> &libbpf_rs::MapMut<'static> {
        match epoch {
            0 => &self.skel.maps.usage_a,
            _ => &self.skel.maps.usage_b,
        }
    }

    /// The hook on the read path.
    pub fn reads(&self) -> Option<&Slicer> {
        self.reads.as_ref()
    }

    /// Makes the programs fill the other table. Returns the epoch that has ended.
    pub fn flip(&mut self) -> u32 {
        let ended = self.epoch;
        self.epoch = 1 - ended;
        if let Some(bss) = self.skel.maps.bss_data.as_mut() {
            bss.epoch = self.epoch;
        }
        ended
    }

    /// What processes that run this program touch is not counted any more, once a pass has been
    /// made.
    pub fn ignore_own_program(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_mut() {
            bss.ignored_program = bss.own_program;
        }
    }

    /// The next pass shows every thread.
    pub fn pass_all(&mut self) {
        self.all_next = true;
    }

    /// Passes leave out this user's threads that ran and waited for less, if they are to.
    pub fn floor(&mut self, (user, floor): crowd::Change) -> Result<(), ObserveError> {
        let map = &self.skel.maps.floors;
        let done = match floor {
            Some(ns) => map.update(&user.to_ne_bytes(), &ns.to_ne_bytes(), MapFlags::ANY),
            None => map.delete(&user.to_ne_bytes()),
        };
        done.map_err(bpf(format!("choosing which threads of user {user} to look at")))
    }

    /// One pass over all tasks: returns those that used CPU time since the last pass.
    pub fn pass(&mut self) -> Result<Pass, ObserveError> {
        let all_tasks = std::mem::take(&mut self.all_next);
        if let Some(bss) = self.skel.maps.bss_data.as_mut() {
            bss.pass_all = all_tasks.into();
        }
        let mut iter = Iter::new(&self.pass).map_err(bpf("starting a pass over all tasks"))?;
        let mut all = Pass::default();
        let ended = pass::read(&mut iter, pass::TASKS, Pass::first, |record| all.take(record))
            .map_err(|source| ObserveError::Io { what: "reading a pass over all tasks".to_owned(), source })?;
        all.cut = ended == pass::Ended::Cut;
        Ok(all)
    }

    /// Number of tasks that the passes have seen so far.
    pub fn tasks_passed(&self) -> u64 {
        self.skel.maps.bss_data.as_ref().map_or(0, |bss| bss.pass_tasks)
    }

    /// Empties an ended epoch's table and prepares it for the next. Returns one entry for each key,
    /// in the order of the keys.
    pub fn drain(&mut self, epoch: u32) -> Result<Vec<(Key, Usage)>, ObserveError> {
        // A program that had read the epoch before it ended may still be adding to it.
        self.grace.wait().map_err(bpf("waiting for running programs"))?;
        let pending = self.pending(epoch).map_err(bpf("taking the pending entries of the CPUs"))?;
        let fd = self.table(epoch).as_fd().as_raw_fd();
        let mut entries = self
            .drain
            .all(fd, (Key::BYTES, Usage::BYTES), |key, usage| Some((Key::decode(key)?, Usage::decode(usage)?)))
            .map_err(|source| ObserveError::Io { what: "emptying the table of counted bytes".to_owned(), source })?;
        entries.extend(pending);
        entries.sort_unstable_by_key(|entry| entry.0.order());
        entries.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1.add(next.1);
            }
            same
        });
        self.make_unattributed(epoch).map_err(bpf("setting up the emptied table"))?;
        if let Some(bss) = self.skel.maps.bss_data.as_mut() {
            let which = epoch as usize & 1;
            bss.entry_shares[which].held = 0;
            bss.entry_shares[which].of_user.fill(0);
            bss.process_entries[which].fill(0);
        }
        Ok(entries)
    }

    /// Empties the table of ranges. What is read from a range at that very moment may be lost.
    pub fn drain_ranges(&mut self) -> Result<Vec<(RangeKey, u64)>, ObserveError> {
        let fd = self.skel.maps.ranges.as_fd().as_raw_fd();
        let drained = self.drain.all(fd, (range_key::BYTES, i64::BYTES), records::range);
        if let (Ok(_), Some(bss)) = (&drained, self.skel.maps.bss_data.as_mut()) {
            bss.range_shares.held = 0;
            bss.range_shares.of_user.fill(0);
        }
        drained.map_err(|source| ObserveError::Io { what: "emptying the table of ranges".to_owned(), source })
    }

    /// The control groups that came and went since the last call, in their order, and whether some
    /// are missing. An error: none is ever seen.
    pub fn groups(&mut self) -> Result<(Vec<groups::Event>, bool), &str> {
        let lost = self.skel.maps.bss_data.as_ref().map_or(0, |bss| bss.groups_lost);
        let events = self.groups.as_mut().map_err(|cause| cause.as_str())?;
        let failed = events.ring.consume_raw() < 0;
        let more = std::mem::replace(&mut events.lost, lost) != lost;
        Ok((events.taken.try_iter().collect(), failed || more))
    }

    /// Takes the pending entry of each CPU for an ended epoch.
    fn pending(&self, epoch: u32) -> Result<Vec<(Key, Usage)>, libbpf_rs::Error> {
        let map = &self.skel.maps.pending;
        let values = map.lookup_percpu(&epoch.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
        let nothing = vec![records::nothing_pending(); values.len()];
        map.update_percpu(&epoch.to_ne_bytes(), &nothing, MapFlags::ANY)?;
        Ok(values.iter().filter_map(|value| records::pending_entry(value)).collect())
    }

    pub fn counters(&self) -> Result<Vec<Counters>, ObserveError> {
        let values = self
            .skel
            .maps
            .counters
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("reading the counters"))?;
        Ok(values.unwrap_or_default().iter().filter_map(|value| Counters::decode(value)).collect())
    }

    /// Adds marks to a thread. It and its later descendants carry
    /// them until they exit. From now on its affinity counts as ours.
    pub fn mark(&self, thread: ThreadId, marks: u32) -> Result<(), ObserveError> {
        let (tid, start_ns) = (thread.tid, thread.start_ns().unwrap_or(0));
        // An entry with another start time is that of an earlier thread with this id.
        let same = |old: &Watched| start_ns == 0 || old.start_ns == 0 || as_shown(old.start_ns) == as_shown(start_ns);
        let old = self.watched(tid)?.filter(same).unwrap_or_default();
        let (start_ns, marks) = (old.start_ns.max(start_ns), old.marks & !MARK_OWN | marks);
        let watched = Watched { start_ns, marks, share: old.share, ..Watched::default() };
        let map = &self.skel.maps.marked;
        map.update(&tid.to_ne_bytes(), &watched.encode(), MapFlags::ANY).map_err(bpf(format!("watching thread {tid}")))
    }

    /// From now on the affinity of a thread is its own, if it is watched at all.
    pub fn mark_own(&self, tid: u32) -> Result<(), ObserveError> {
        let Some(mut watched) = self.watched(tid)? else { return Ok(()) };
        watched.marks |= MARK_OWN;
        match self.skel.maps.marked.update(&tid.to_ne_bytes(), &watched.encode(), MapFlags::EXIST) {
            // It has exited meanwhile.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
            other => other.map_err(bpf(format!("watching thread {tid}"))),
        }
    }

    fn watched(&self, tid: u32) -> Result<Option<Watched>, ObserveError> {
        let bytes = self.skel.maps.marked.lookup(&tid.to_ne_bytes(), MapFlags::ANY);
        Ok(bytes.map_err(bpf("reading the marked threads"))?.and_then(|bytes| Watched::decode(&bytes)))
    }

    pub fn unmark(&self, tid: u32) {
        // An absent entry was removed when the thread exited.
        _ = self.skel.maps.marked.delete(&tid.to_ne_bytes());
    }

    /// Watched threads and those born of them, as far as they live: one pass over all tasks.
    pub fn descendants(&self) -> Result<Vec<Descendant>, ObserveError> {
        let failed = |source| ObserveError::Io { what: "reading a pass over watched threads".to_owned(), source };
        let mut iter = Iter::new(&self.descendant_pass).map_err(bpf("starting a pass over watched threads"))?;
        let mut all = Vec::new();
        let take = |record: &[u8]| all.extend(records::descendant(record));
        match pass::read(&mut iter, pass::TASKS, records::first_descendant, take).map_err(failed)? {
            pass::Ended::Whole => Ok(all),
            // Those that are missing would be taken for ended.
            pass::Ended::Cut => Err(failed(std::io::Error::other("it has no end"))),
        }
    }

    /// Bytes of memory that the kernel accounts to the maps.
    pub fn kernel_bytes(&self) -> u64 {
        let maps = &self.skel.maps;
        let fds = [
            maps.usage_a.as_fd(),
            maps.usage_b.as_fd(),
            maps.ranges.as_fd(),
            maps.samplers.as_fd(),
            maps.counters.as_fd(),
            maps.pending.as_fd(),
            maps.times_before.as_fd(),
            maps.marked.as_fd(),
            maps.floors.as_fd(),
            maps.open_requests.as_fd(),
            maps.thread_faults.as_fd(),
            maps.over_budget.as_fd(),
            maps.arc_calls.as_fd(),
            maps.group_events.as_fd(),
            maps.rodata.as_fd(),
            maps.bss.as_fd(),
        ];
        fds.iter().map(|fd| memlock(fd.as_raw_fd())).sum()
    }
}

/// `memlock:` of a BPF file descriptor.
fn memlock(fd: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

fn refused(step: &str, hook: Hook, error: &libbpf_rs::Error) -> String {
    let kind = match hook.kind() {
        super::hooks::Kind::Function if [Hook::EntriesFunction, Hook::EntryFunction].contains(&hook) => "fentry",
        super::hooks::Kind::Function => "fexit",
        super::hooks::Kind::Tracepoint => "tp_btf",
        super::hooks::Kind::Probe => "kprobe",
    };
    format!("{step} {kind}/{} refused: {}", hook.target(), cause::of_bpf(error))
}

fn find<'a>(skel: &'a mut ObserveSkel<'static>, hook: Hook) -> Result<ProgramMut<'a>, libbpf_rs::Error> {
    let name = hook.program();
    let program = skel.object_mut().progs_mut().find(|p| p.name() == name.as_str());
    program.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))
}

fn attached(skel: &mut ObserveSkel<'static>, hook: Hook) -> Result<Link, libbpf_rs::Error> {
    find(skel, hook)?.attach()
}

fn read_hook(skel: &mut ObserveSkel<'static>, hook: Hook, steady: bool) -> Result<Slicer, libbpf_rs::Error> {
    let program = find(skel, hook)?.as_fd().try_clone_to_owned().map_err(libbpf_rs::Error::from)?;
    let on = skel.maps.slice_on.as_fd().try_clone_to_owned().map_err(libbpf_rs::Error::from)?;
    let maps = Maps {
        on,
        counters: MapHandle::try_from(&skel.maps.counters)?,
        over_budget: MapHandle::try_from(&skel.maps.over_budget)?,
    };
    let slicer = Slicer::start(program, maps, !steady).map_err(libbpf_rs::Error::from)?;
    if let Some(bss) = skel.maps.bss_data.as_mut() {
        bss.read_ns = slicer.cost.charged_ns();
    }
    Ok(slicer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hook_has_a_program() {
        let mut storage = MaybeUninit::uninit();
        let open = ObserveSkelBuilder::default().open(&mut storage).unwrap();
        let programs: Vec<_> = open.open_object().progs().map(|program| program.name().to_owned()).collect();
        for hook in Hook::ALL {
            assert!(programs.iter().any(|name| name == hook.program().as_str()), "{hook:?}");
        }
    }
}
