//! Amounts by node.

use smallvec::SmallVec;

/// Amounts by rising node index: few nodes, or all of many nodes.
pub type Shares = SmallVec<[(usize, f64); 2]>;

/// Adds an amount to a node's.
pub fn add(shares: &mut Shares, node: usize, amount: f64) {
    match shares.binary_search_by_key(&node, |s| s.0) {
        Ok(at) => shares[at].1 += amount,
        Err(at) => shares.insert(at, (node, amount)),
    }
}

/// The amount of a node.
pub fn on(shares: &Shares, node: usize) -> f64 {
    shares.binary_search_by_key(&node, |s| s.0).map_or(0.0, |at| shares[at].1)
}

/// The sum over all nodes.
pub fn total(shares: &Shares) -> f64 {
    shares.iter().map(|s| s.1).sum()
}
