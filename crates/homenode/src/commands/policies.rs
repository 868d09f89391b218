//! Policies as a host carries them out.

use placement::Policy;
use topology::{NodeId, Topology};

use crate::cli::PolicyArgs;
use crate::commands::nodes;
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// The policy that the user chose, with the settings of homenode.toml and of the command line.
pub fn chosen(args: &PolicyArgs, config: &Config) -> Result<Box<dyn Policy>, Failure> {
    let mut settings = config.nthread.clone();
    settings.locality_margin = args.margin.unwrap_or(settings.locality_margin);
    settings.min_bytes = args.min_bytes.unwrap_or(settings.min_bytes);
    let settings = placement::Settings {
        auto: placement::auto::Settings { min_bytes: settings.min_bytes, ..Default::default() },
        nthread: settings,
        dragonfly: config.dragonfly.clone(),
        npolicy: config.npolicy.clone(),
        arc: config.arc.clone(),
    };
    placement::policy_with(&args.policy, &settings)
        .ok_or_else(|| Failure::new(Exit::Usage, format!("policy {}", args.policy), "no policy has this name"))
}

/// Subjects that a policy moves beside threads.
pub struct Acts {
    /// Data of files.
    pub files: bool,
    /// Processes with their memory.
    pub processes: bool,
}

/// Subjects that a policy of this name moves beside threads.
pub fn acts(policy: &str) -> Acts {
    Acts { files: matches!(policy, "dragonfly" | "auto"), processes: matches!(policy, "arc" | "arc-guarded" | "auto") }
}

/// What a policy leaves out because the bandwidth of some nodes is not known.
pub fn without_bandwidth(policy: &str, topology: &Topology) -> Option<String> {
    let less = match policy {
        "nthread" | "nthread-nm" => "no moves for controller contention",
        "dragonfly" => "no file moves, and no moves for controller contention",
        _ => return None,
    };
    let unknown = nodes::without_bandwidth(topology);
    let list: Vec<_> = unknown.iter().map(NodeId::to_string).collect();
    (topology.nodes.len() > 1 && !unknown.is_empty()).then(|| {
        format!(
            "{less}: the bandwidth of node {} is neither told by the firmware nor set in homenode.toml",
            list.join(", ")
        )
    })
}

/// Moves that a policy makes in a simulation but not on a host. `dax`: files on DAX are moved.
pub fn on_a_host(policy: &str, dax: bool) -> Option<&'static str> {
    let cached = "on a host it moves cached files only, unless homenode.toml has `dax = true` for files on DAX";
    (acts(policy).files && !dax).then_some(cached)
}
