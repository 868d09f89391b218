//! Waits until the BPF programs that run now have ended.
//!
//! **Problem.** A program that read the table's number just before the tables were swapped still
//! adds to the old one. What it adds after user space has read and cleared an entry is lost.
//!
//! **Approach.** The kernel waits for running programs (`synchronize_rcu`) before an update of a
//! map of maps returns, so that user space knows that no program uses the old inner map
//! (`maybe_wait_bpf_programs`, kernel/bpf/syscall.c). One update of a map that nothing else uses is
//! that wait. It takes some milliseconds and interrupts no CPU.
//!
//! **Limits.** It does not wait for sleepable programs; homenode has none.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

/// A map of maps, and the map in it.
pub(super) struct Grace {
    outer: MapHandle,
    inner: MapHandle,
}

impl Grace {
    pub fn new() -> Result<Self, libbpf_rs::Error> {
        let options = |inner_map_fd| libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            inner_map_fd,
            ..Default::default()
        };
        let inner = MapHandle::create(MapType::Array, Some("grace_inner"), 4, 4, 1, &options(0))?;
        let fd = inner.as_fd().as_raw_fd().cast_unsigned();
        let outer = MapHandle::create(MapType::ArrayOfMaps, Some("grace"), 4, 4, 1, &options(fd))?;
        Ok(Self { outer, inner })
    }

    /// Returns when every program that ran at the call has ended.
    pub fn wait(&self) -> Result<(), libbpf_rs::Error> {
        let inner = self.inner.as_fd().as_raw_fd();
        self.outer.update(&0u32.to_ne_bytes(), &inner.to_ne_bytes(), MapFlags::ANY)
    }
}
