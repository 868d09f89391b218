//! Advances the simulated machine in time.

use super::demand::Network;
use super::flows::{Flows, sum_up};
use super::{Copied, World, add, total};

/// Longest step in seconds.
const STEP_S: f64 = 0.1;
/// Fraction of a file that must be elsewhere before the network is built and solved again. At the
/// worst remote latency there is (+190 %, Optane writes), rates are off by less than 0.8 % until
/// then.
const DRIFT: f64 = 4e-3;
/// Shortest step: events closer than this are one.
const INSTANT_S: f64 = 1e-6;

impl World {
    /// Runs for this many seconds.
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
            let Network { reads, writes, .. } = &self.network;
            let remote = self.network.remote[class];
            let stays = job.fs.layout() == crate::filesystem::Layout::InPlace;
            let set = |part: usize| role.op.parts[part].files;
            let private = writes.of(class).any(|f| job.files[set(f.part())].private);
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
                    for flow in writes.of(class) {
                        land(&mut self.files[thread.files[set(flow.part())]], flow.node(), flow.bytes * ops, stays);
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
            let mut sum = totals.read;
            for flow in reads.of(class) {
                let read = flow.bytes * all;
                self.node_read[flow.node()] += read;
                sum += read;
            }
            totals.read = sum;
            for flow in writes.of(class) {
                let written = flow.bytes * all;
                self.node_written[flow.node()] += written;
                totals.written += written;
                if !private {
                    let files = &self.threads[*first as usize].files;
                    land(&mut self.files[files[set(flow.part())]], flow.node(), written, stays);
                }
            }
        }
        self.copy(dt);
        self.changed |= self.files.iter().any(|f| f.drift() > DRIFT);
    }

    /// Books the operations since the network was built as the flows that they were: for a class
    /// whose threads did as much as each other, once for all of them.
    pub(super) fn book(&mut self) {
        let Network { threads, reads, writes, .. } = &mut self.network;
        for (class, threads) in threads.iter().enumerate() {
            let Some(first) = threads.first() else { continue };
            let ops = self.threads[*first as usize].pending;
            if threads.iter().all(|t| self.threads[*t as usize].pending == ops) {
                threads.iter().for_each(|t| self.threads[*t as usize].pending = 0.0);
                reads.book(class, ops);
                writes.book(class, ops);
                continue;
            }
            for t in threads {
                let thread = &mut self.threads[*t as usize];
                let ops = std::mem::take(&mut thread.pending);
                sum_up(&mut thread.window.read, reads.of(class).map(|flow| flow.times(ops)));
                sum_up(&mut thread.window.written, writes.of(class).map(|flow| flow.times(ops)));
            }
        }
    }

    /// Gives every thread of these classes what was booked for all of its class.
    pub(super) fn hand_out(&mut self, classes: &[Vec<u32>], reads: &Flows, writes: &Flows) {
        for (class, threads) in classes.iter().enumerate() {
            for t in threads {
                let window = &mut self.threads[*t as usize].window;
                sum_up(&mut window.read, reads.booked(class));
                sum_up(&mut window.written, writes.booked(class));
            }
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

/// Bytes of a file are written to a node: new ones while it grows, then instead of others wherever
/// they are.
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
        let (mut gone, mut emptied) = (0.0, false);
        for share in file.bytes.iter_mut().filter(|share| share.0 != node) {
            let left = share.1 * keeps;
            // Less than a byte counts as 0.
            let left = if left < 1.0 { 0.0 } else { left };
            gone += share.1 - left;
            share.1 = left;
            emptied |= left <= 0.0;
        }
        if emptied {
            file.bytes.retain(|share| share.0 == node || share.1 > 0.0);
        }
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
