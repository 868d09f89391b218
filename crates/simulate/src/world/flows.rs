//! Bytes between classes of threads and nodes, and what was booked of them since the window began.
//!
//! **Problem.** A thousand classes that read a file spread over 64 nodes have some hundred thousand flows, and each of them is looked at in
//! every step.
//!
//! **Approach.** The flows of all classes lie one behind the other, and the sums of a window beside them in the same order: booking is an
//! addition of two arrays. When the network is built anew, the sums are kept as they are where the flows are still between the same
//! parts and nodes, which they mostly are.
//!
//! **Limits.** A flow that has ceased stays in the list, with no bytes, until its sum has been handed out.

use smallvec::SmallVec;

/// Bytes per operation between a part of it and a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flow {
    pub part: u32,
    pub node: u32,
    pub bytes: f64,
}

impl Flow {
    pub fn new(part: usize, node: usize, bytes: f64) -> Self {
        Self { part: part as u32, node: node as u32, bytes }
    }

    pub fn node(&self) -> usize {
        self.node as usize
    }

    pub fn part(&self) -> usize {
        self.part as usize
    }

    fn key(&self) -> (u32, u32) {
        (self.part, self.node)
    }
}

/// Bytes of one thread by part and node.
pub(crate) type FlowSums = SmallVec<[Flow; 2]>;

/// Flows of all classes in one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flows {
    flows: Vec<Flow>,
    /// Where each class's end.
    ends: Vec<usize>,
    /// Bytes of each flow that have been booked for every thread of its class.
    sums: Vec<f64>,
}

impl Flows {
    pub fn clear(&mut self) {
        self.flows.clear();
        self.ends.clear();
        self.sums.clear();
    }

    /// Adds a flow to the class that is [ended](Self::end) next.
    pub fn push(&mut self, flow: Flow) {
        self.flows.push(flow);
    }

    /// The class at hand has all its flows.
    pub fn end(&mut self) {
        self.ends.push(self.flows.len());
    }

    fn range(&self, class: usize) -> std::ops::Range<usize> {
        class.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[class]
    }

    /// A class's flows.
    pub fn of(&self, class: usize) -> &[Flow] {
        &self.flows[self.range(class)]
    }

    /// Bytes of a class's flows that have been booked for each of its threads.
    pub fn booked(&self, class: usize) -> impl Iterator<Item = Flow> + '_ {
        let range = self.range(class);
        let sums = &self.sums[range.clone()];
        self.flows[range]
            .iter()
            .zip(sums)
            .filter(|(_, sum)| **sum > 0.0)
            .map(|(flow, sum)| Flow { bytes: *sum, ..*flow })
    }

    /// Books so many operations of every thread of a class.
    pub fn book(&mut self, class: usize, ops: f64) {
        let range = self.range(class);
        for (sum, flow) in self.sums[range.clone()].iter_mut().zip(&self.flows[range]) {
            *sum += flow.bytes * ops;
        }
    }

    /// Nothing has been booked.
    pub fn start(&mut self) {
        self.sums.clear();
        self.sums.resize(self.flows.len(), 0.0);
    }

    /// Takes over what was booked before these flows of the same classes were found anew. `old` is of no use afterwards.
    pub fn go_on(&mut self, old: &mut Self) {
        let keys = |flows: &Self| flows.flows.len();
        let same = keys(self) == keys(old)
            && self.ends == old.ends
            && self.flows.iter().zip(&old.flows).all(|(a, b)| a.key() == b.key());
        if same {
            std::mem::swap(&mut self.sums, &mut old.sums);
            return;
        }
        let found = std::mem::take(self);
        for class in 0..found.ends.len() {
            let (now, first) = (found.of(class), self.flows.len());
            self.flows.extend_from_slice(now);
            self.sums.resize(self.flows.len(), 0.0);
            for sum in old.booked(class) {
                let at = now.iter().position(|flow| flow.key() == sum.key()).map(|at| first + at);
                let at = at.unwrap_or_else(|| {
                    self.flows.push(Flow { bytes: 0.0, ..sum });
                    self.sums.push(0.0);
                    self.flows.len() - 1
                });
                self.sums[at] = sum.bytes;
            }
            self.end();
        }
    }
}

/// Adds bytes to sums by part and node; no two of the flows have the same.
pub(crate) fn sum_up(sums: &mut FlowSums, flows: impl Iterator<Item = Flow>) {
    let flows = flows.filter(|f| f.bytes > 0.0);
    if sums.is_empty() {
        sums.extend(flows);
        return;
    }
    let mut next = 0;
    for flow in flows {
        let same = |f: &Flow| f.key() == flow.key();
        // Both are mostly in the same order: what is wanted is where the last one was found, or soon after.
        let (before, after) = sums.split_at(next.min(sums.len()));
        let at = after.iter().position(same).map(|i| before.len() + i).or_else(|| before.iter().position(same));
        match at.and_then(|at| sums.get_mut(at)) {
            Some(sum) => sum.bytes += flow.bytes,
            None => sums.push(flow),
        }
        next = at.map_or(next, |at| at + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(classes: &[&[(usize, usize, f64)]]) -> Flows {
        let mut all = Flows::default();
        for class in classes {
            class.iter().for_each(|(part, node, bytes)| all.push(Flow::new(*part, *node, *bytes)));
            all.end();
        }
        all
    }

    fn booked(flows: &Flows, class: usize) -> Vec<(u32, u32, f64)> {
        flows.booked(class).map(|f| (f.part, f.node, f.bytes)).collect()
    }

    #[test]
    fn sums_go_on_when_flows_change_come_and_cease() {
        let mut first = flows(&[&[(0, 0, 1.0), (0, 2, 2.0)], &[(0, 1, 5.0)]]);
        first.start();
        first.book(0, 10.0);
        first.book(1, 1.0);
        let mut second = flows(&[&[(0, 0, 3.0), (0, 2, 1.0)], &[(0, 1, 6.0)]]);
        second.go_on(&mut first);
        second.book(0, 10.0);
        assert_eq!(booked(&second, 0), [(0, 0, 40.0), (0, 2, 30.0)]);
        // Nothing is read from node 0 any more, something from node 3.
        let mut third = flows(&[&[(0, 2, 1.0), (0, 3, 1.0)], &[(0, 1, 6.0)]]);
        third.go_on(&mut second);
        third.book(0, 1.0);
        third.book(1, 1.0);
        assert_eq!(booked(&third, 0), [(0, 2, 31.0), (0, 3, 1.0), (0, 0, 40.0)]);
        assert_eq!(booked(&third, 1), [(0, 1, 11.0)]);
        // And from node 0 again.
        let mut fourth = flows(&[&[(0, 0, 1.0)], &[(0, 1, 6.0)]]);
        fourth.go_on(&mut third);
        fourth.book(0, 1.0);
        assert_eq!(booked(&fourth, 0), [(0, 0, 41.0), (0, 2, 31.0), (0, 3, 1.0)]);
    }

    #[test]
    fn a_threads_sums_are_by_part_and_node() {
        let mut sums = FlowSums::new();
        let of = |list: &[(usize, usize, f64)]| list.iter().map(|f| Flow::new(f.0, f.1, f.2)).collect::<Vec<_>>();
        sum_up(&mut sums, of(&[(0, 0, 1.0), (1, 0, 2.0), (0, 1, 0.0)]).into_iter());
        sum_up(&mut sums, of(&[(1, 0, 3.0), (0, 0, 4.0)]).into_iter());
        assert_eq!(sums.to_vec(), of(&[(0, 0, 5.0), (1, 0, 5.0)]));
    }
}
