//! Time passes.

use super::{Copied, FlowSums, World, add, total};

/// Longest step in seconds.
const STEP_S: f64 = 0.1;
/// Fraction of a file that must be elsewhere before the network is built and solved again. At the worst remote latency there is
/// (+190 %, Optane writes), rates are off by less than 0.8 % until then.
const DRIFT: f64 = 4e-3;
/// Shortest step: events closer than this are one.
const INSTANT_S: f64 = 1e-6;

impl World {
    /// Runs for so many seconds.
    pub fn run(&mut self, seconds: f64) {
        let end = self.now + seconds;
        while end - self.now > INSTANT_S {
            self.follow();
            if self.changed {
                self.build();
                self.solver.solve(&self.system);
            }
            let dt = self.next_event().min(STEP_S).min(end - self.now).max(INSTANT_S);
            self.step(dt);
            self.now += dt;
            self.wake();
            self.balance();
        }
        self.now = end;
    }

    /// Seconds until something happens by itself: a thread starts or ends, a copy is done.
    fn next_event(&self) -> f64 {
        let mut next = f64::INFINITY;
        for t in &self.network.idle {
            let thread = &self.threads[*t as usize];
            if thread.from_s.is_finite() && thread.from_s > self.now {
                next = next.min(thread.from_s - self.now);
            }
        }
        let rates = self.solver.rates();
        for (class, threads) in self.network.threads.iter().enumerate() {
            for t in threads {
                let thread = &self.threads[*t as usize];
                // Either all of a class end or none.
                let Some(left) = thread.left else { break };
                next = next.min(left / rates[class].ops + thread.debt_s);
            }
        }
        for (i, copy) in self.copies.iter().enumerate() {
            next = next.min(copy.left / (rates[self.network.copies + i].ops * Self::CHUNK));
        }
        next
    }

    fn step(&mut self, dt: f64) {
        for class in 0..self.network.threads.len() {
            let rate = self.solver.rates()[class];
            let Some(first) = self.network.threads[class].first() else { continue };
            let (at, job_index, role_index) = {
                let thread = &self.threads[*first as usize];
                (thread.node, thread.job, thread.role)
            };
            let job = &self.jobs[job_index];
            let role = &job.roles[role_index];
            let flows = &self.network.flows[class];
            let remote: f64 = flows.iter().filter(|f| f.node != at).map(|f| f.read).sum();
            let stays = job.fs.layout() == crate::filesystem::Layout::InPlace;
            let set = |part: usize| role.op.parts[part].files;
            let private = flows.iter().any(|f| f.write > 0.0 && job.files[set(f.part)].private);
            let mut all = 0.0;
            for t in &self.network.threads[class] {
                let thread = &mut self.threads[*t as usize];
                let lost = thread.debt_s.min(dt);
                thread.debt_s -= lost;
                let ops = rate.ops * (dt - lost);
                let ops = thread.left.map_or(ops, |left| left.min(ops));
                all += ops;
                thread.pending += ops;
                thread.window.ops += ops;
                thread.window.cpu_s += rate.on * dt;
                thread.window.wait_s += rate.ready * dt;
                thread.window.remote_read += remote * ops;
                if private {
                    for flow in flows.iter().filter(|f| f.write > 0.0) {
                        land(&mut self.files[thread.files[set(flow.part)]], flow.node, flow.own * ops, stays);
                    }
                }
                if let Some(left) = &mut thread.left {
                    *left -= ops;
                    if *left <= ops.abs() * 1e-9 + 1e-9 {
                        thread.ended_s = Some(self.now + dt);
                        self.changed = true;
                    }
                }
            }
            let cpu_s = rate.on * dt * self.network.threads[class].len() as f64;
            self.node_cpu_s[at] += cpu_s;
            let totals = &mut self.totals[job_index];
            totals.cpu_s += cpu_s;
            totals.remote_read += remote * all;
            if role.counts {
                totals.ops += all * role.op.counted;
            }
            for flow in flows {
                let (read, own) = (flow.read * all, flow.own * all);
                self.node_read[flow.node] += read;
                self.node_written[flow.node] += own;
                totals.read += read;
                totals.written += own;
                if flow.write > 0.0 && !private {
                    let files = &self.threads[*first as usize].files;
                    land(&mut self.files[files[set(flow.part)]], flow.node, own, stays);
                }
            }
        }
        self.copy(dt);
        self.changed |= self.files.iter().any(|f| f.drift() > DRIFT);
    }

    /// Books the operations since the network was built as the flows that they were: for a class whose threads did as much as each
    /// other, once for all of them.
    pub(super) fn book(&mut self) {
        let network = &mut self.network;
        network.sums.resize_with(network.threads.len(), FlowSums::new);
        for ((threads, flows), sums) in network.threads.iter().zip(&network.flows).zip(&mut network.sums) {
            let Some(first) = threads.first() else { continue };
            let ops = self.threads[*first as usize].pending;
            if threads.iter().all(|t| self.threads[*t as usize].pending == ops) {
                threads.iter().for_each(|t| self.threads[*t as usize].pending = 0.0);
                sum_up(sums, flows.iter().map(|f| (f.part, f.node, f.read * ops, f.own * ops)));
                continue;
            }
            for t in threads {
                let thread = &mut self.threads[*t as usize];
                let ops = std::mem::take(&mut thread.pending);
                sum_up(&mut thread.window.flows, flows.iter().map(|f| (f.part, f.node, f.read * ops, f.own * ops)));
            }
        }
    }

    /// Gives every thread of these classes what was booked for all of its class.
    pub(super) fn hand_out(&mut self, classes: &[Vec<u32>], sums: &mut [FlowSums]) {
        for (threads, sums) in classes.iter().zip(sums) {
            for t in threads {
                let flows = &mut self.threads[*t as usize].window.flows;
                match flows.is_empty() {
                    true => flows.clone_from(sums),
                    false => sum_up(flows, sums.iter().copied()),
                }
            }
            sums.clear();
        }
    }

    /// Copies go on.
    fn copy(&mut self, dt: f64) {
        let first = self.network.copies;
        for i in 0..self.copies.len().min(self.solver.rates().len().saturating_sub(first)) {
            let rate = self.solver.rates()[first + i];
            let copy = &mut self.copies[i];
            let bytes = (rate.ops * Self::CHUNK * dt).min(copy.left);
            copy.left -= bytes;
            let (from, to) = (copy.from, copy.to);
            self.node_read[from] += bytes;
            self.node_written[to] += bytes;
            self.node_cpu_s[self.system.classes[first + i].node] += rate.on * dt;
            let shares = match copy.what {
                Copied::File(f) => {
                    let file = &mut self.files[f];
                    file.touched = true;
                    &mut file.bytes
                }
                Copied::Process(p) => &mut self.processes[p].resident,
            };
            let bytes = take(shares, from, bytes);
            add(shares, to, bytes);
        }
        for i in (0..self.copies.len()).rev() {
            if self.copies[i].left <= 1.0 {
                let copy = self.copies.remove(i);
                if let Copied::Process(p) = copy.what {
                    let pid = self.processes[p].pid;
                    let now = self.now + dt;
                    self.threads
                        .iter_mut()
                        .filter(|t| t.pid == pid && t.from_s == f64::INFINITY)
                        .for_each(|t| t.from_s = now);
                }
                self.changed = true;
            }
        }
    }

    /// Threads that start now change the network.
    fn wake(&mut self) {
        let (before, now) = (self.now - STEP_S, self.now);
        let starts = |t: &u32| {
            let thread = &self.threads[*t as usize];
            thread.ended_s.is_none() && thread.from_s > before && thread.from_s <= now
        };
        self.changed |= self.network.idle.iter().any(starts);
    }
}

/// Adds flows to sums by part and node.
fn sum_up(sums: &mut FlowSums, flows: impl Iterator<Item = (usize, usize, f64, f64)>) {
    let mut next = 0;
    for (part, node, read, own) in flows.filter(|f| f.2 > 0.0 || f.3 > 0.0) {
        let same = |f: &(usize, usize, f64, f64)| (f.0, f.1) == (part, node);
        // Both are mostly in the same order: what is wanted is where the last one was found, or soon after.
        let (before, after) = sums.split_at(next.min(sums.len()));
        let at = after.iter().position(same).map(|i| before.len() + i).or_else(|| before.iter().position(same));
        match at.and_then(|at| sums.get_mut(at)) {
            Some(sum) => (sum.2, sum.3) = (sum.2 + read, sum.3 + own),
            None => sums.push((part, node, read, own)),
        }
        next = at.map_or(next, |at| at + 1);
    }
}

/// Bytes of a file are written to a node: new ones while it grows, then instead of others wherever they are.
fn land(file: &mut super::File, node: usize, bytes: f64, in_place: bool) {
    let there = total(&file.bytes);
    let grows = bytes.min((file.size - there).max(0.0));
    let replaces = bytes - grows;
    if grows > 0.0 {
        add(&mut file.bytes, node, grows);
        file.touched = true;
    }
    if replaces > 0.0 && !in_place && there > 0.0 {
        let keeps = 1.0 - (replaces / there).min(1.0);
        let mut gone = 0.0;
        file.bytes.retain(|share| {
            if share.0 == node {
                return true;
            }
            let left = share.1 * keeps;
            // Less than a byte is none.
            let left = if left < 1.0 { 0.0 } else { left };
            gone += share.1 - left;
            share.1 = left;
            left > 0.0
        });
        if gone > 0.0 {
            add(&mut file.bytes, node, gone);
            file.touched = true;
        }
    }
}

fn take(shares: &mut super::Shares, node: usize, bytes: f64) -> f64 {
    let Some(share) = shares.iter_mut().find(|s| s.0 == node) else { return 0.0 };
    let taken = bytes.min(share.1);
    share.1 -= taken;
    taken
}
