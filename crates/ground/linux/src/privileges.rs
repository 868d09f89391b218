//! Giving up what a process of root may do and homenode does not.
//!
//! **Problem.** Loading the programs takes most of root's powers. A daemon that keeps them for
//! months turns each fault in it into a fault of the whole machine.
//!
//! **Approach.** Once everything is open, [`keep_only`] empties the capability sets but for a few:
//! observing goes on through file descriptors, and moving threads takes CAP_SYS_NICE alone
//! ([`to_move`]). A policy that moves files or processes takes more ([`to_move_files`],
//! [`to_move_memory`]). Nothing that is executed later gets anything back.
//!
//! **Limits.** Linux keeps capabilities by thread. Each thread that runs already gives up its own;
//! threads that it starts afterwards have what it kept. The process remains root's: it may still
//! write root's files.

use std::io;
use std::path::Path;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::mounts;

/// Capabilities for moving threads once the programs are loaded. `proc_root` is a proc mount
/// (`/proc`).
pub fn to_move(proc_root: &Path) -> CapabilitySet {
    CapabilitySet::SYS_NICE | to_observe(proc_root)
}

/// Capabilities for moving the cached pages of any user's files: CAP_SYS_NICE to move pages that
/// others map, CAP_DAC_READ_SEARCH to open the files for reading, CAP_FOWNER to leave their access
/// times alone and to be told what is cached.
pub fn to_move_files() -> CapabilitySet {
    CapabilitySet::SYS_NICE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER
}

/// Capabilities for moving the memory of any user's processes: CAP_SYS_NICE, and to see where it is
/// CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, as only its user may open `/proc/PID/pagemap`.
pub fn to_move_memory() -> CapabilitySet {
    CapabilitySet::SYS_NICE | CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH
}

/// Capabilities for observing once the programs are loaded: none, unless procfs hides the processes
/// of other users. Without CAP_SYS_PTRACE they would seem to have ended there. It is kept as well
/// if the mounts cannot be read.
pub fn to_observe(proc_root: &Path) -> CapabilitySet {
    match std::fs::read(proc_root.join("self/mountinfo")) {
        Ok(table) if !hides_processes(&table) => CapabilitySet::empty(),
        _ => CapabilitySet::SYS_PTRACE,
    }
}

/// Gives up all capabilities of the calling thread but these, for good.
///
/// # Errors
///
/// The kernel refused; some may have been given up.
pub fn keep_only(keep: CapabilitySet) -> io::Result<()> {
    // The thread that asks for this one has what this one had when it started it.
    crate::patient::forget_worker();
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let has = capabilities(None)?;
    // Only who holds this one may shrink the bounding set. Without new privileges it grants nothing
    // anyway.
    if has.effective.contains(CapabilitySet::SETPCAP) {
        for bit in 0..u64::BITS {
            let one = CapabilitySet::from_bits_retain(1 << bit);
            match capability_is_in_bounding_set(one) {
                Ok(true) if !keep.contains(one) => remove_capability_from_bounding_set(one)?,
                Ok(_) => {}
                // The kernel knows no more of them.
                Err(_) => break,
            }
        }
    }
    let keep = keep.intersection(has.permitted);
    set_capabilities(None, CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() })?;
    Ok(())
}

/// Whether a procfs of this table of mounts (`/proc/self/mountinfo`) is mounted with `hidepid`.
fn hides_processes(table: &[u8]) -> bool {
    mounts::list(table).filter(|mount| mount.fs_type == "proc").any(|mount| {
        let mut values = mount.options.split(',').filter_map(|option| option.strip_prefix("hidepid="));
        values.any(|value| !matches!(value, "0" | "off"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procfs_that_hides_processes_is_recognized() {
        let line = |options: &str| format!("25 1 0:22 / /proc rw,nosuid - proc proc {options}\n");
        for hides in ["rw,hidepid=2", "rw,gid=4,hidepid=invisible", "rw,hidepid=ptraceable", "rw,hidepid=1"] {
            assert!(hides_processes(line(hides).as_bytes()), "{hides}");
        }
        for shows in ["rw", "rw,hidepid=0", "rw,hidepid=off"] {
            assert!(!hides_processes(line(shows).as_bytes()), "{shows}");
        }
        assert!(!hides_processes(b"26 1 0:23 / /sys rw - sysfs sysfs rw,hidepid=2\n"));
    }

    #[test]
    fn odd_and_unreadable_mounts_do_not_hide_hidepid() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(to_observe(dir.path()), CapabilitySet::SYS_PTRACE);
        std::fs::create_dir(dir.path().join("self")).unwrap();
        let table = |options: &str| {
            let odd = b"50 23 0:40 / /tmp/\xff rw - fuse.x x rw\n".as_slice();
            let line = format!("25 1 0:22 / /proc rw - proc proc {options}\n");
            std::fs::write(dir.path().join("self/mountinfo"), [odd, line.as_bytes()].concat()).unwrap();
        };
        table("rw,hidepid=2");
        assert_eq!(to_observe(dir.path()), CapabilitySet::SYS_PTRACE);
        table("rw");
        assert_eq!(to_observe(dir.path()), CapabilitySet::empty());
    }

    /// In a thread of its own: what it gives up the other tests keep.
    #[test]
    fn a_thread_keeps_only_what_it_asked_for() {
        std::thread::spawn(|| {
            let had = capabilities(None).unwrap().permitted;
            keep_only(CapabilitySet::SYS_NICE).unwrap();
            let has = capabilities(None).unwrap();
            let kept = had & CapabilitySet::SYS_NICE;
            assert_eq!((has.effective, has.permitted, has.inheritable), (kept, kept, CapabilitySet::empty()));
            assert!(rustix::thread::no_new_privs().unwrap());
            // A second time, with less.
            keep_only(CapabilitySet::empty()).unwrap();
            assert_eq!(capabilities(None).unwrap().permitted, CapabilitySet::empty());
        })
        .join()
        .unwrap();
    }
}
