//! The model's numbers as data, so that a run can be repeated with other numbers.
//!
//! **Problem.** A conclusion may depend on the exact value of a guess, and a `const` hides that.
//!
//! **Approach.** [`Constants`] has a field for each number of [`calibration`](crate::calibration),
//! which gives its source, and for the settings of the papers' experiments that the papers do not
//! state. Machines, workloads and experiments take their numbers from it. [`Constants::scaled`]
//! changes one by its name.
//!
//! **Limits.** [`OPTANE_CROWDED`](crate::calibration::OPTANE_CROWDED) is a table:
//! `OPTANE_CROWDING` scales its excess over 1.

use crate::calibration::*;

/// Meaning of scaling a constant by a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// It is multiplied.
    Whole,
    /// It is a ratio that stands for an effect: the part above 1 is multiplied.
    Excess,
}

use Scale::{Excess, Whole};

macro_rules! constants {
    ($($(#[$doc:meta])* $field:ident = $value:expr, $scale:ident;)*) => {
        /// Every number of the model.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Constants {
            $($(#[$doc])* pub $field: f64,)*
        }

        impl Constants {
            /// As [`calibration`](crate::calibration) has them.
            pub const CALIBRATED: Self = Self { $($field: $value,)* };

            /// Names of all, as [`scaled`](Self::scaled) takes them.
            pub const NAMES: &[&str] = &[$(stringify!($field),)*];

            /// The field of this name, and how it scales.
            fn field(&mut self, name: &str) -> Option<(&mut f64, Scale)> {
                match name {
                    $(stringify!($field) => Some((&mut self.$field, $scale)),)*
                    _ => None,
                }
            }
        }
    };
}

constants! {
    /// [`OPTANE_READ_BW`].
    optane_read_bw = OPTANE_READ_BW, Whole;
    /// [`OPTANE_WRITE_BW`].
    optane_write_bw = OPTANE_WRITE_BW, Whole;
    /// [`OPTANE_READ_PEAK`].
    optane_read_peak = OPTANE_READ_PEAK, Whole;
    /// [`OPTANE_WRITE_PEAK`].
    optane_write_peak = OPTANE_WRITE_PEAK, Whole;
    /// [`OPTANE_READ_S`].
    optane_read_s = OPTANE_READ_S, Whole;
    /// [`OPTANE_WRITE_S`].
    optane_write_s = OPTANE_WRITE_S, Whole;
    /// Factor for the excess of [`OPTANE_CROWDED`] over 1.
    optane_crowding = 1.0, Whole;
    /// [`REMOTE_READ_LATENCY`].
    remote_read_latency = REMOTE_READ_LATENCY, Excess;
    /// [`REMOTE_WRITE_LATENCY`].
    remote_write_latency = REMOTE_WRITE_LATENCY, Excess;
    /// [`REMOTE_LOAD`].
    remote_load = REMOTE_LOAD, Excess;
    /// [`OPTANE_COPY_S`].
    optane_copy_s = OPTANE_COPY_S, Whole;
    /// [`DRAM_COPY_S`].
    dram_copy_s = DRAM_COPY_S, Whole;
    /// [`DRAM_REMOTE_LATENCY`].
    dram_remote_latency = DRAM_REMOTE_LATENCY, Excess;
    /// [`CACHE_SHARED`].
    cache_shared = CACHE_SHARED, Whole;
    /// [`OPTANE_LINE`].
    optane_line = OPTANE_LINE, Whole;
    /// [`DRAM_READ_BW`].
    dram_read_bw = DRAM_READ_BW, Whole;
    /// [`DRAM_WRITE_BW`].
    dram_write_bw = DRAM_WRITE_BW, Whole;
    /// [`PORT_BW`].
    port_bw = PORT_BW, Whole;
    /// [`DRAM_READ_S`].
    dram_read_s = DRAM_READ_S, Whole;
    /// [`DRAM_WRITE_S`].
    dram_write_s = DRAM_WRITE_S, Whole;
    /// [`CALL_S`].
    call_s = CALL_S, Whole;
    /// [`OPEN_S`].
    open_s = OPEN_S, Whole;
    /// [`NAME_S`].
    name_s = NAME_S, Whole;
    /// [`EXT4_APPEND_S`].
    ext4_append_s = EXT4_APPEND_S, Whole;
    /// [`PMFS_APPEND_S`].
    pmfs_append_s = PMFS_APPEND_S, Whole;
    /// [`NOVA_APPEND_S`].
    nova_append_s = NOVA_APPEND_S, Whole;
    /// [`EXT4_FSYNC_S`].
    ext4_fsync_s = EXT4_FSYNC_S, Whole;
    /// [`EXT4_SERIAL`].
    ext4_serial = EXT4_SERIAL, Whole;
    /// [`PMFS_ENTRY_S`].
    pmfs_entry_s = PMFS_ENTRY_S, Whole;
    /// [`FLOWOP_S`].
    flowop_s = FLOWOP_S, Whole;
    /// [`PICK_S`].
    pick_s = PICK_S, Whole;
    /// [`CROSS_LOCK`].
    cross_lock = CROSS_LOCK, Excess;
    /// [`DB_GET_S`].
    db_get_s = DB_GET_S, Whole;
    /// [`DB_GET_BLOCKS`].
    db_get_blocks = DB_GET_BLOCKS, Whole;
    /// [`DB_PUT_S`].
    db_put_s = DB_PUT_S, Whole;
    /// [`DB_WRITE_LOCK_S`].
    db_write_lock_s = DB_WRITE_LOCK_S, Whole;
    /// [`TIME_SLICING`].
    time_slicing = TIME_SLICING, Whole;
    /// [`OWN_MEMORY`].
    own_memory = OWN_MEMORY, Whole;
    /// [`MOVE_STALL_S`].
    move_stall_s = MOVE_STALL_S, Whole;
    /// [`MAPPED_CALL_S`].
    mapped_call_s = MAPPED_CALL_S, Whole;
    /// [`MAPPED_REMOTE_READ`].
    mapped_remote_read = MAPPED_REMOTE_READ, Excess;
    /// [`MAPPED_READ_S`].
    mapped_read_s = MAPPED_READ_S, Whole;
    /// [`ARC_COPY_S`].
    arc_copy_s = ARC_COPY_S, Whole;
    /// [`PROCESS_START_S`].
    process_start_s = PROCESS_START_S, Whole;
    /// [`FILL_S`].
    fill_s = FILL_S, Whole;
    /// [`UPI_LINK_BW`]; the papers' machines have two or three per node.
    upi_link_bw = UPI_LINK_BW, Whole;
    /// Bytes/s one node of DRAM reads in NThread V-F. NT-s 3.
    four_read_bw = 20e9, Whole;
    /// Bytes/s it writes. NT-s 3.
    four_write_bw = 15e9, Whole;
    /// Bytes/s one node of the thesis's machine reads or writes, as its author measured. AT 4.1.
    thesis_bw = 18.4051e9, Whole;
    /// Bytes/s between its nodes. AT 4.1.
    thesis_port_bw = 9.284e9, Whole;
    /// NThread's margin in its experiments, in bytes/s: `min_bytes` a window. Chosen here.
    margin = 4_194_304.0, Whole;
    /// NThread's limit for CPUs in its experiments. Chosen here.
    cpu_limit = 1.01, Whole;
    /// Seconds that a thread of NThread Fig. 8 thinks between reads. Chosen here.
    fig8_think_s = 3.0e-6, Whole;
    /// Seconds of a window in the thesis's experiments: its prototype moves at the first remote
    /// block, and a window this short is the nearest to it. Chosen here.
    arc_window_s = 0.02, Whole;
}

impl Constants {
    /// These constants with one of them scaled; of a ratio that stands for an effect, only the part
    /// above 1 is scaled. `None` if no constant has this name.
    #[must_use]
    pub fn scaled(mut self, name: &str, factor: f64) -> Option<Self> {
        let (value, scale) = self.field(name)?;
        *value = match scale {
            Whole => *value * factor,
            Excess => 1.0 + (*value - 1.0) * factor,
        };
        Some(self)
    }
}

impl Constants {
    /// These constants with one of them set. `None` if no constant has this name.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Option<Self> {
        *self.field(name)?.0 = value;
        Some(self)
    }

    /// Value of the constant of this name.
    pub fn get(mut self, name: &str) -> Option<f64> {
        self.field(name).map(|field| *field.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_changes_one_constant_and_no_other() {
        let all = Constants::CALIBRATED;
        for name in Constants::NAMES {
            let (mut more, mut same) = (all.scaled(name, 1.3).unwrap(), all);
            let (value, scale) = more.field(name).unwrap();
            let (old, _) = same.field(name).unwrap();
            let grown = match scale {
                Whole => *value / *old,
                Excess => (*value - 1.0) / (*old - 1.0),
            };
            assert!((grown - 1.3).abs() < 1e-12, "{name}: {grown}");
            *value = *old;
            assert_eq!(more, all, "{name}");
        }
        assert_eq!(all.scaled("no such constant", 1.3), None);
    }

    #[test]
    fn the_margin_of_the_experiments_is_the_least_that_counts() {
        assert_eq!(Constants::CALIBRATED.margin, placement::nthread::Settings::default().min_bytes as f64);
    }
}
