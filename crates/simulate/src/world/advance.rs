//! Time passes.

use super::{Copied, World, add, total};

/// Longest step in seconds.
const STEP_S: f64 = 0.1;
/// Change of a file's shares above which the network is built and solved again.
const DRIFT: f64 = 1e-3;
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
        for thread in self.threads.iter().filter(|t| t.ended_s.is_none() && t.from_s.is_finite()) {
            if thread.from_s > self.now {
                next = next.min(thread.from_s - self.now);
            }
        }
        let rates = self.solver.rates();
        for (class, threads) in self.network.threads.iter().enumerate() {
            for t in threads {
                let thread = &self.threads[*t as usize];
                if let Some(left) = thread.left {
                    next = next.min(left / rates[class].ops + thread.debt_s);
                }
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
            for i in 0..self.network.threads[class].len() {
                let t = self.network.threads[class][i] as usize;
                let thread = &mut self.threads[t];
                let lost = thread.debt_s.min(dt);
                thread.debt_s -= lost;
                let ops = rate.ops * (dt - lost);
                let ops = thread.left.map_or(ops, |left| left.min(ops));
                thread.window.ops += ops;
                thread.window.cpu_s += rate.on * dt;
                thread.window.wait_s += rate.ready * dt;
                let job = &self.jobs[thread.job];
                let role = &job.roles[thread.role];
                let totals = &mut self.totals[thread.job];
                if role.counts {
                    totals.ops += ops * role.op.counted;
                }
                totals.cpu_s += rate.on * dt;
                self.node_cpu_s[thread.node] += rate.on * dt;
                for flow in &self.network.flows[class] {
                    let (read, write) = (flow.read * ops, flow.write * ops);
                    self.node_read[flow.node] += read;
                    self.node_written[flow.node] += flow.own * ops;
                    totals.read += read;
                    totals.written += flow.own * ops;
                    if flow.node != thread.node {
                        thread.window.remote_read += read;
                        totals.remote_read += read;
                    }
                    match thread.window.flows.iter_mut().find(|f| (f.0, f.1) == (flow.part, flow.node)) {
                        Some(sum) => (sum.2, sum.3) = (sum.2 + read, sum.3 + flow.own * ops),
                        None => thread.window.flows.push((flow.part, flow.node, read, flow.own * ops)),
                    }
                    if write > 0.0 {
                        let set = role.op.parts[flow.part].files;
                        let stays = job.fs.layout() == crate::filesystem::Layout::InPlace;
                        land(&mut self.files[thread.files[set]], flow.node, flow.own * ops, stays);
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
        }
        self.copy(dt);
        self.changed |= self.files.iter().any(|f| f.drift > DRIFT);
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
                    file.drift += bytes / total(&file.bytes).max(1.0);
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
        if self.threads.iter().any(|t| t.ended_s.is_none() && t.from_s > before && t.from_s <= now) {
            self.changed = true;
        }
    }
}

/// Bytes of a file are written to a node: new ones while it grows, then instead of others wherever they are.
fn land(file: &mut super::File, node: usize, bytes: f64, in_place: bool) {
    let there = total(&file.bytes);
    let grows = bytes.min((file.size - there).max(0.0));
    let replaces = bytes - grows;
    if grows > 0.0 {
        add(&mut file.bytes, node, grows);
        file.drift += grows / (there + grows);
    }
    if replaces > 0.0 && !in_place && there > 0.0 {
        let fraction = (replaces / there).min(1.0);
        let elsewhere: f64 = file.bytes.iter().filter(|s| s.0 != node).map(|s| s.1).sum();
        for share in file.bytes.iter_mut().filter(|s| s.0 != node) {
            share.1 *= 1.0 - fraction;
        }
        add(&mut file.bytes, node, elsewhere * fraction);
        file.drift += elsewhere * fraction / there;
    }
}

fn take(shares: &mut super::Shares, node: usize, bytes: f64) -> f64 {
    let Some(share) = shares.iter_mut().find(|s| s.0 == node) else { return 0.0 };
    let taken = bytes.min(share.1);
    share.1 -= taken;
    taken
}
