//! What the commands of homenode share: options, configuration, output and how they end.
//!
//! **Problem.** Agent, file system and laboratory are programs of their own, and speak to people
//! and scripts in one voice.
//!
//! **Approach.** [`args`] has the options of every command and those of the laboratory's:
//! `homenode` knows them, too, for its help, manual pages and completions, and starts the
//! [`sibling`] that does the work. The rest is one module a subject.
//!
//! **Limits.** Nothing here observes or moves.

pub mod args;
pub mod config;
pub mod exit;
pub mod heat_map;
pub mod log;
pub mod machine;
pub mod mounted;
pub mod notify;
pub mod output;
pub mod recording;
pub mod sibling;
pub mod signals;
pub mod volume_args;
