//! Policies as a host carries them out.

use placement::Policy;

use crate::cli::PolicyArgs;
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// The policy that the user chose, with the settings of homenode.toml and of the command line.
pub fn chosen(args: &PolicyArgs, config: &Config) -> Result<Box<dyn Policy>, Failure> {
    let mut settings = config.nthread.clone();
    settings.locality_margin = args.margin.unwrap_or(settings.locality_margin);
    settings.min_bytes = args.min_bytes.unwrap_or(settings.min_bytes);
    placement::policy(&args.policy, &settings)
        .ok_or_else(|| Failure::new(Exit::Usage, format!("policy {}", args.policy), "no policy has this name"))
}

/// What a policy cannot do on a host yet: there only threads are moved, and the memory of processes is not observed but for mapped files.
pub fn on_a_host(policy: &str) -> Option<&'static str> {
    match policy {
        "dragonfly" => Some("on a host its file moves are refused: it does what nthread does, or less"),
        "arc" | "arc-guarded" => Some("on a host it moves nothing: its moves of whole processes are refused"),
        "auto" => Some("on a host only its thread moves are made: moves of processes and files are refused"),
        _ => None,
    }
}
