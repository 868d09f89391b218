//! The model's constants, with their sources. NT: NThread (MSST'20). DF: Dragonfly. NP: N-Policy
//! (NPC'20). AT: Adams's thesis.

use memory_model::figures::*;
use serde::{Deserialize, Serialize};

/// The assumptions of the cost model before it has measured anything, and the gain it requires to
/// act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Seconds that a placement is expected to stay useful: moves must pay back within them. Five
    /// of DF's windows of 6 s. Chosen, not measured.
    pub horizon_s: f64,
    /// Threads that read, wrote and touched fewer bytes than this in a window are ignored (as NT
    /// IV).
    pub min_bytes: u64,
    /// Factor of one hop (SLIT distance 21 instead of 10) on the latency of persistent-memory
    /// reads: +65.5 % (NT I).
    pub remote_read: f64,
    /// The same for writes to persistent memory: performance −65.5 % (NT III-C1), 1 / (1 − 0.655);
    /// NP Fig. 3: 2.7 to 3.6.
    pub remote_write: f64,
    /// The same for reads and writes of DRAM: 66.8 ns local, 108.8 ns remote (AT 4.1).
    pub remote_dram: f64,
    /// How much more time of a persistent-memory controller a byte from one hop away takes:
    /// bandwidth −34.6 % (NT I), 1 / (1 − 0.346).
    pub remote_load: f64,
    /// The share of its peak read bandwidth that a controller of persistent memory sustains: 6 GB/s
    /// (NT slides, 3) of 6.8 (NT III-C1).
    pub nvm_sustained: f64,
    /// Bandwidth of a node's port to the other nodes, bytes/s, both directions together: one UPI
    /// link of 10.4 GT/s. Firmware does not state it. A low value makes threads go home too
    /// readily; a high value hides that a port is full.
    pub link_bw: f64,
    /// Seconds per byte of one thread that reads persistent memory through a file system, local and
    /// alone. With this value, DF's TH_l (MTP, webserver) comes out if one module serves a request.
    /// Mapped reads stream at 2.8 GB/s (NP Fig. 3); the kernel's copies wait for each line.
    pub nvm_read_s: f64,
    /// The same for writes: 4 KiB in 671 ns (SplitFS, SOSP'19, table 1).
    pub nvm_write_s: f64,
    /// The same for DRAM, for reads and writes.
    pub dram_s: f64,
    /// Factor of one hop on the time that a lock is held: the lock's line and the data it protects
    /// come from the last holder's cache. NT V-D gives a lower bound: filebench gains 78 % when the
    /// half of its threads on the other node joins the rest; 1 + ½ (x − 1) = 1.78 yields x = 2.56,
    /// which includes all other work of a thread. 5 has the least regret on simulated machines: it
    /// is fitted there, not measured.
    pub cross_lock: f64,
    /// The share of a program's own CPU time that waits for its own memory; it slows down when the
    /// thread leaves that memory behind. Chosen, not measured.
    pub own_memory: f64,
    /// The cost of taking turns on a CPU, as a share of the work (NT Fig. 8: above 100 %
    /// utilisation, throughput falls; the figure does not give the share).
    pub time_slicing: f64,
    /// Seconds of work that a moved thread loses to cold caches: filling 2 MB of private cache with
    /// 64-byte lines at 66.8 ns (AT 4.1).
    pub thread_move_s: f64,
    /// File copy speed, bytes/s: 16 KiB in 35 µs (NT III-C1).
    pub file_copy_bw: f64,
    /// Copy speed of a process's memory, bytes/s: DRAM, 2.8 times as fast (NT I). The process stops
    /// meanwhile.
    pub process_copy_bw: f64,
    /// The least gain in throughput of a plan, as a share, net of the cost of its moves: less does
    /// not show in the few windows that the engine compares.
    pub min_gain: f64,
    /// The least gain of a single move, as a share of the moved threads' throughput, for the same
    /// reason.
    pub min_move_gain: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            horizon_s: 30.0,
            min_bytes: 4 << 20,
            remote_read: REMOTE_READ_LATENCY,
            remote_write: REMOTE_WRITE_LATENCY,
            remote_dram: DRAM_REMOTE_LATENCY,
            remote_load: REMOTE_LOAD,
            nvm_sustained: OPTANE_READ_BW / OPTANE_READ_PEAK,
            link_bw: UPI_LINK_BW,
            nvm_read_s: OPTANE_READ_S,
            nvm_write_s: OPTANE_WRITE_S,
            dram_s: 1.0 / 6.7e9,
            cross_lock: 5.0,
            own_memory: OWN_MEMORY,
            time_slicing: TIME_SLICING,
            thread_move_s: 2e-3,
            file_copy_bw: COPY_BYTES / COPY_S,
            process_copy_bw: DRAM_COPY_GAIN * COPY_BYTES / COPY_S,
            min_gain: 0.01,
            min_move_gain: 0.01,
        }
    }
}
