//! What memory and CPUs cost: every figure that more than one part of homenode needs, with its
//! source.
//!
//! **Problem.** A policy, the laboratory and the emulated volume need the same data sheet. Copies
//! of it drift apart.
//!
//! **Approach.** One constant for each figure, in SI units. "One hop" is a SLIT distance of 21, see
//! [`hops`](crate::hops). Figures that one part alone needs are with that part.
//!
//! **Limits.** Optane modules of 128 GB of the first generation, and DDR4.
//!
//! Sources: NT = NThread (MSST'20), NT-s = its slides, DF = Dragonfly, AT = Adams's thesis (2021),
//! FAST'20 = Yang et al., "An Empirical Guide to the Behavior and Use of Scalable Persistent
//! Memory" (NThread's reference 49), OptaneStudy = its published measurements
//! (github.com/NVSL/OptaneStudy), SplitFS = Kadekodi et al., SOSP'19 (NThread's reference 23), NP =
//! N-Policy (NPC'20).

// ---- hardware, as the papers state it ----

/// Bytes/s one Optane module reads, measured. NT-s 3. (Its peak, by which policies judge, is
/// [`OPTANE_READ_PEAK`].)
pub const OPTANE_READ_BW: f64 = 6.0e9;
/// Bytes/s one Optane module writes, measured. NT-s 3. A third of its reads: the weight of NT Eq.
/// 1.
pub const OPTANE_WRITE_BW: f64 = 2.0e9;
/// Bytes/s one Optane module reads in theory. NT III-C1, footnote 1.
pub const OPTANE_READ_PEAK: f64 = 6.8e9;
/// Bytes/s one Optane module writes in theory. NT III-C1, footnote 1.
pub const OPTANE_WRITE_PEAK: f64 = 1.85e9;
/// Seconds per byte for one thread that writes Optane, locally and alone: 4 KiB in 671 ns. SplitFS
/// table 1.
pub const OPTANE_WRITE_S: f64 = 671e-9 / 4096.0;
/// Factor of one hop on the time that a thread needs to read Optane: latency +65.5 %. NT I.
pub const REMOTE_READ_LATENCY: f64 = 1.655;
/// Factor of one hop on the time that a thread needs to write Optane: performance −65.5 %. NT
/// III-C1.
pub const REMOTE_WRITE_LATENCY: f64 = 1.0 / (1.0 - 0.655);
/// Factor of one hop on the time that a byte takes of an Optane controller: bandwidth −34.6 %. NT
/// I.
pub const REMOTE_LOAD: f64 = 1.0 / (1.0 - 0.346);
/// Seconds per byte of a background copy between Optane memories: 16 KiB in 35 µs. NT III-C1. (DF
/// IV-B agrees: 10,000 files of 160 KB in 3.5 s.)
pub const OPTANE_COPY_S: f64 = COPY_S / COPY_BYTES;
/// Bytes and seconds of the copy that NT III-C1 measured.
pub const COPY_BYTES: f64 = 16384.0;
/// See [`COPY_BYTES`].
pub const COPY_S: f64 = 35e-6;
/// The same on DRAM, 2.8 times faster. NT I and III-C1.
pub const DRAM_COPY_S: f64 = OPTANE_COPY_S / DRAM_COPY_GAIN;
/// How much faster a copy between DRAMs is than one between Optane memories. NT I.
pub const DRAM_COPY_GAIN: f64 = 2.8;
/// Seconds of a local DRAM access. AT 4.1.
pub const DRAM_LATENCY_S: f64 = 66.8e-9;
/// Factor of one hop on DRAM latency: 66.8 ns to 108.8 ns. AT 4.1.
pub const DRAM_REMOTE_LATENCY: f64 = 108.8 / 66.8;
/// Seconds of the smallest local read of Optane, and of the smallest local write. NT-s 3.
pub const OPTANE_READ_LATENCY_S: f64 = 305e-9;
/// See [`OPTANE_READ_LATENCY_S`].
pub const OPTANE_WRITE_LATENCY_S: f64 = 81e-9;
/// Calibrated: seconds per byte for one thread that reads Optane through a file system, locally and
/// alone. With it the laboratory has DF's TH_l, 20.7 GB/s of webserver (heavy) with all files local
/// (IV-B); its TH_r, 13.5 with all of them remote, is a prediction.
pub const OPTANE_READ_S: f64 = 0.629e-9;
/// Bytes of one line of Optane media, the least that a log entry of 64 bytes costs. FAST'20.
pub const OPTANE_LINE: f64 = 256.0;

/// How much longer a written byte takes an Optane module while so many threads write to it, against
/// up to four: (threads, times). Its buffer gathers whole lines, and many writers push each other
/// out of it. OptaneStudy, graphs/04-bandwidth_thcount_optane_ni.csv, sequential non-temporal
/// stores: 2.22, 2.21, 2.21, 2.20 GB/s with one to four threads, 1.96 with six, 1.53, 1.12, 0.94
/// and 0.80 with 8, 12, 16 and 24. NT V-C, too, has four threads use up the bandwidth.
pub const OPTANE_CROWDED: [(f64, f64); 6] =
    [(4.0, 1.0), (6.0, 2.20 / 1.96), (8.0, 2.20 / 1.53), (12.0, 2.20 / 1.12), (16.0, 2.20 / 0.94), (24.0, 2.20 / 0.80)];

/// Reads of shared data that the last-level cache serves when all sharers are on one node: 1 −
/// 1/1.315. NT III-D.
pub const CACHE_SHARED: f64 = 1.0 - 1.0 / 1.315;

// ---- software, as measured elsewhere ----

/// A system call and the VFS around one read: `pread` of one byte from the page cache, 0.47 µs as
/// measured (Linux 6.18, EPYC).
pub const CALL_S: f64 = 0.5e-6;
/// Opening and closing a file: 1.54 µs + 0.34 µs. SplitFS table 6 (ext4 DAX), taken for all.
pub const OPEN_S: f64 = 1.88e-6;
/// Unlinking a file on ext4 DAX. SplitFS table 6; on the others in proportion to their appends.
pub const NAME_S: f64 = 8.60e-6;
/// Software of a 4 KiB append on ext4 DAX. SplitFS table 1.
pub const EXT4_APPEND_S: f64 = 8.331e-6;
/// The same on NOVA.
pub const NOVA_APPEND_S: f64 = 2.350e-6;
/// Seconds per byte to fill a process's memory byte by byte (AT listing 5.1, line 39): nine cycles
/// at 2.93 GHz, as measured with gcc and no options (3.5 ns at 2.6 GHz); AT names none either.
pub const FILL_S: f64 = 3.1e-9;
/// What fio with libpmem does between two copies: (4 KiB at 2273 MiB/s) − (4 KiB at 2482 MiB/s). NP
/// Fig. 3.
pub const MAPPED_CALL_S: f64 = 4096.0 / (2273.0 * 1048576.0) - 4096.0 / (2482.0 * 1048576.0);
/// Calibrated: seconds per byte of software in a read from the ARC of ZFS, which copies, and looks
/// each block up. With it AT's 15 % for 16 GB (Fig. 5.2) come out.
pub const ARC_COPY_S: f64 = 0.362e-9;

// ---- current machines, for scenarios that give no bandwidths; guesses ----

/// Bytes/s one node of DRAM reads: eight channels of DDR4-3200 at four fifths of 204.8 GB/s.
pub const DRAM_READ_BW: f64 = 160e9;
/// Bytes/s it writes.
pub const DRAM_WRITE_BW: f64 = 80e9;
/// Bytes/s of one UPI link at 10.4 GT/s, both directions together.
pub const UPI_LINK_BW: f64 = 20.8e9;
/// Bytes/s through one node's interconnect port: two UPI links of 10.4 GT/s.
pub const PORT_BW: f64 = 2.0 * UPI_LINK_BW;
/// Seconds per byte for one thread that reads a file from DRAM through `read()`, locally and alone:
/// 4 KiB in 0.6 µs. A guess.
pub const DRAM_READ_S: f64 = 0.15e-9;
/// The same for writes.
pub const DRAM_WRITE_S: f64 = 0.15e-9;

// ---- CPUs; guesses ----

/// Share of the work that time-slicing adds where threads share CPUs: switches and cold caches. A
/// guess.
pub const TIME_SLICING: f64 = 0.05;
/// Share of the software's time that waits for the process's own memory. A guess.
pub const OWN_MEMORY: f64 = 0.2;
