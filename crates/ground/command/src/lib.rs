//! What the commands of homenode share: options, configuration, output and how they end.
//!
//! **Problem.** Agent, file system and laboratory are programs of their own, and speak to people
//! and scripts in one voice.
//!
//! **Approach.** One module a subject: [`args`] has the options of every command, [`pages`] makes
//! manual pages and completions of a program's own.
//!
//! **Limits.** Nothing here observes or moves.

pub mod args;
pub mod config;
pub mod exit;
pub mod log;
pub mod machine;
pub mod mounted;
pub mod notify;
pub mod output;
pub mod pages;
pub mod recording;
pub mod rules;
pub mod signals;
mod source;
