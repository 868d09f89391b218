//! Policies as the commands choose and describe them.

use command::args::{PROGRAM, PolicyArgs};
use command::config::Config;
use command::exit::{Exit, Failure};
use placement::Policy;
use topology::{NodeId, Topology};

use crate::external::{External, User};

/// The policy that the user chose, with the settings of homenode.toml and of the command line, or
/// the program.
pub fn chosen(args: &PolicyArgs, config: &Config) -> Result<Box<dyn Policy>, Failure> {
    if let Some(command) = args.policy.strip_prefix(PROGRAM) {
        let failed = |why: String| Failure::new(Exit::Usage, format!("policy {}", args.policy), why);
        let user = User::of_caller().map_err(failed)?;
        return Ok(Box::new(External::start(command, user, 0).map_err(failed)?));
    }
    let (mut nthread, dragonfly) = (config.nthread.clone(), config.dragonfly.clone());
    nthread.locality_margin = args.margin.unwrap_or(nthread.locality_margin);
    nthread.min_bytes = args.min_bytes.unwrap_or(nthread.min_bytes);
    let auto = placement::auto::Settings { min_bytes: nthread.min_bytes, ..config.auto.clone() };
    let (npolicy, arc, promote) = (config.npolicy.clone(), config.arc.clone(), config.promote.clone());
    placement::policy_with(&args.policy, &placement::Settings { nthread, dragonfly, npolicy, arc, promote, auto })
        .ok_or_else(|| Failure::new(Exit::Usage, format!("policy {}", args.policy), "no policy has this name"))
}

/// What a policy leaves out because the bandwidth of some nodes is not known.
pub fn without_bandwidth(policy: &dyn Policy, topology: &Topology) -> Option<String> {
    let less = policy.traits().without_bandwidth?;
    let unknown = topology.without_bandwidth();
    let list: Vec<_> = unknown.iter().map(NodeId::to_string).collect();
    (topology.nodes.len() > 1 && !unknown.is_empty()).then(|| {
        format!(
            "{less}: the bandwidth of node {} is neither measured (`homenode nodes --measure`), nor told by the firmware, \
             nor set in homenode.toml",
            list.join(", ")
        )
    })
}

/// A failure once the program of the user's can decide nothing any more.
pub fn ended(policy: &dyn Policy) -> Result<(), Failure> {
    policy.trouble().map_or(Ok(()), |why| Err(Failure::new(Exit::Partly, "the policy ended", why)))
}
