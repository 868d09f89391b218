//! A bar of a figure on a host.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::experiment::{Error, Experiment, Outcome, Series, Value, drive};
use crate::host::Host;
use crate::host_plane::HostPlane;
use crate::loads::programs::Programs;
use crate::thread::Done;

impl Experiment {
    /// Runs one bar on a host.
    pub(crate) fn run_host(&self, programs: Programs, series: &Series, seed: u64) -> Result<Outcome, Error> {
        let less = self.factor * self.paper_seconds / self.seconds;
        let capacity = self.machine.memory_bytes.map_or(2.0 * programs.bytes(), |bytes| bytes) / less;
        let machine = Arc::new(self.machine(seed, capacity as u64)?);
        let mut host = Host::new(Arc::clone(&machine), series.kernel, seed);
        (host.factor, host.disk_s) = (self.factor, programs.disk_s);
        host.end_ns = (self.seconds / self.factor * 1e9).round() as u64;
        let from_ns = (self.count_from / self.factor * 1e9).round() as u64;
        let (host, series, policies) = (Rc::new(host), series.clone(), self.policies.clone());
        let world = Rc::clone(&host);
        // What was done before counting began, then moves, and when and with what all ended.
        let (before, moves) = clock::run(move || -> Result<_, Error> {
            programs.start(&world, less);
            if world.kernel.autonuma {
                world.balance();
            }
            let (moves, before) = (Rc::new(RefCell::new(Ok((0, 0)))), Rc::new(RefCell::new(Done::default())));
            let (put, own) = (Rc::clone(&before), Rc::clone(&world));
            clock::spawn(move || {
                clock::sleep_until(from_ns);
                *put.borrow_mut() = own.done();
            });
            if let Some(engine) = series.engine(HostPlane::new(Rc::clone(&world)), &policies, seed)? {
                let put = Rc::clone(&moves);
                clock::spawn(move || {
                    let goes_on = || clock::now_ns() < world.end_ns && world.runs();
                    *put.borrow_mut() = drive(engine, goes_on, HostPlane::settle);
                });
            }
            Ok((before, moves))
        })??;
        let moves = std::mem::replace(&mut *moves.borrow_mut(), Ok((0, 0)))?;
        let (done, before, runtime_s) = (host.done(), *before.borrow(), host.runtime_s());
        let ran_s = host.last_s().min(host.end_ns as f64 * 1e-9);
        let seconds = (ran_s - from_ns as f64 * 1e-9).max(1e-9);
        let [read, written, operations] =
            [done.read - before.read, done.written - before.written, done.operations - before.operations]
                .map(|count| count as f64 / seconds);
        Ok(Outcome {
            value: match self.value {
                Value::WeightedMbS => (read / 3.0 + written) / 1e6,
                Value::MbS => (read + written) / 1e6,
                Value::OperationsS => operations,
                Value::RuntimeS => runtime_s * self.factor,
                Value::MedianReadUs => host.median_read_s() * 1e6,
            },
            done,
            moves,
            pulls: machine.pulls(),
            controllers: machine.carried().iter().map(|carried| carried.busy_s / ran_s).collect(),
            cores: machine.busy_s().iter().map(|busy| busy / ran_s).collect(),
            waits: machine.waits_s().map(|waited| waited / ran_s),
        })
    }
}
