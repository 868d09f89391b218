//! The sub-commands, one module each.

pub mod check;
pub mod config;
pub mod doctor;
pub mod explain;
pub mod export;
pub mod hot;
pub mod map;
pub mod r#move;
pub mod nodes;
mod off;
mod pace;
pub mod plan;
mod plane;
mod readers;
pub mod record;
pub mod reload;
mod replace;
pub mod replay;
pub mod report;
pub mod restore;
mod rules;
pub mod run;
pub mod status;
pub mod top;
pub mod trial;
pub mod warm;
pub mod where_;
