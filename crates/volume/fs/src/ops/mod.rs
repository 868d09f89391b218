//! The operations of a mounted volume, each an `impl Volume`.

mod attributes;
mod blocks;
mod drain;
mod file;
mod migrate;
mod names;
mod quota;
mod rename;
mod space;

pub use attributes::{SetAttributes, SetXattr, Stat};
pub use drain::{Drained, Held, Stays, Why};
pub use migrate::{Migrated, Migration, Progress};
pub use names::{Name, NewFile};
pub(crate) use names::{check_live, names_to_change};
pub use rename::Rename;
pub use space::{RegionUsage, Usage};
