//! Bytes between classes of threads and nodes, and their sums since the window began.
//!
//! **Problem.** A thousand classes that read a file spread over 64 nodes have about a hundred
//! thousand flows, and every step visits all of them.
//!
//! **Approach.** The flows of all classes are one array, and the window's sums are a second one in
//! the same order: booking adds two arrays. When the network is rebuilt, the sums stay where the
//! flows still join the same parts and nodes, as most of them do.
//!
//! **Limits.** The sums of a flow that has ceased are kept apart until they are handed out.

use std::ops::Range;

use smallvec::SmallVec;

/// Bytes between a part of an operation and a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flow {
    between: Between,
    pub bytes: f64,
}

/// Part and node in one number, so that lists of them are compared as memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Between(u64);

impl Flow {
    pub fn new(part: usize, node: usize, bytes: f64) -> Self {
        Self { between: Between((part as u64) << 32 | node as u64), bytes }
    }

    pub fn node(&self) -> usize {
        (self.between.0 & 0xffff_ffff) as usize
    }

    pub fn part(&self) -> usize {
        (self.between.0 >> 32) as usize
    }

    /// The flow of this many operations.
    pub fn times(self, ops: f64) -> Self {
        Self { bytes: self.bytes * ops, ..self }
    }
}

/// Bytes of one thread by part and node.
pub(crate) type FlowSums = SmallVec<[Flow; 2]>;

/// Flows of all classes in one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flows {
    between: Vec<Between>,
    /// Bytes per operation.
    bytes: Vec<f64>,
    /// Bytes of each flow that have been booked for every thread of its class.
    sums: Vec<f64>,
    /// Sums of flows that have ceased, by class.
    ceased: Vec<(usize, Flow)>,
    /// Where each class's end.
    ends: Vec<usize>,
}

impl Flows {
    pub fn clear(&mut self) {
        self.between.clear();
        self.bytes.clear();
        self.sums.clear();
        self.ceased.clear();
        self.ends.clear();
    }

    /// Adds a flow to the class that is [ended](Self::end) next.
    pub fn push(&mut self, flow: Flow) {
        self.between.push(flow.between);
        self.bytes.push(flow.bytes);
    }

    /// Ends the current class's list of flows.
    pub fn end(&mut self) {
        self.ends.push(self.between.len());
    }

    fn range(&self, class: usize) -> Range<usize> {
        class.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[class]
    }

    /// A class's flows, with their bytes per operation.
    pub fn of(&self, class: usize) -> impl Iterator<Item = Flow> + '_ {
        let range = self.range(class);
        listed(&self.between[range.clone()], &self.bytes[range])
    }

    /// Bytes of a class's flows that have been booked for each of its threads.
    pub fn booked(&self, class: usize) -> impl Iterator<Item = Flow> + '_ {
        let range = self.range(class);
        let first = self.ceased.partition_point(|sum| sum.0 < class);
        let ceased = self.ceased[first..].iter().take_while(move |sum| sum.0 == class).map(|sum| sum.1);
        listed(&self.between[range.clone()], &self.sums[range]).filter(|flow| flow.bytes > 0.0).chain(ceased)
    }

    /// Books this many operations of every thread of a class.
    pub fn book(&mut self, class: usize, ops: f64) {
        let range = self.range(class);
        for (sum, bytes) in self.sums[range.clone()].iter_mut().zip(&self.bytes[range]) {
            *sum += bytes * ops;
        }
    }

    /// Nothing has been booked.
    pub fn start(&mut self) {
        self.ceased.clear();
        self.start_sums();
    }

    fn start_sums(&mut self) {
        self.sums.clear();
        self.sums.resize(self.bytes.len(), 0.0);
    }

    /// Takes over what was booked before these flows of the same classes were found anew. `old` is
    /// of no use afterwards.
    pub fn go_on(&mut self, old: &mut Self) {
        self.ceased = std::mem::take(&mut old.ceased);
        if self.ends == old.ends && self.between == old.between {
            std::mem::swap(&mut self.sums, &mut old.sums);
        } else {
            self.start_sums();
            (0..self.ends.len()).for_each(|class| self.take_over(class, old));
        }
        if !self.ceased.is_empty() {
            self.resume();
        }
    }

    /// Takes over what was booked for a class.
    fn take_over(&mut self, class: usize, old: &Self) {
        let (now, then) = (self.range(class), old.range(class));
        if self.between[now.clone()] == old.between[then.clone()] {
            self.sums[now].copy_from_slice(&old.sums[then]);
            return;
        }
        for sum in listed(&old.between[then.clone()], &old.sums[then]).filter(|sum| sum.bytes > 0.0) {
            match self.between[now.clone()].iter().position(|between| *between == sum.between) {
                Some(at) => self.sums[now.start + at] = sum.bytes,
                None => self.ceased.push((class, sum)),
            }
        }
    }

    /// Flows that had ceased may be there again.
    fn resume(&mut self) {
        let mut ceased = std::mem::take(&mut self.ceased);
        ceased.retain(|(class, sum)| {
            let range = self.range(*class);
            let at = self.between[range.clone()].iter().position(|between| *between == sum.between);
            if let Some(at) = at {
                self.sums[range.start + at] = sum.bytes;
            }
            at.is_none()
        });
        ceased.sort_by_key(|sum| sum.0);
        self.ceased = ceased;
    }
}

fn listed<'a>(between: &'a [Between], bytes: &'a [f64]) -> impl Iterator<Item = Flow> + 'a {
    between.iter().zip(bytes).map(|(between, bytes)| Flow { between: *between, bytes: *bytes })
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
        let same = |f: &Flow| f.between == flow.between;
        // Both are mostly in the same order: what is wanted is where the last one was found, or
        // soon after.
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

    fn booked(flows: &Flows, class: usize) -> Vec<(usize, usize, f64)> {
        flows.booked(class).map(|f| (f.part(), f.node(), f.bytes)).collect()
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
