//! DAMON, the kernel's monitor of accesses, through sysfs
//! (Documentation/admin-guide/mm/damon/usage.rst), with its own number of regions.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::threads;

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// Its statistics of the whole machine, which suffer no other use beside them. Linux 6.17 and
/// later.
const STAT: &str = "/sys/module/damon_stat/parameters/enabled";

/// The kernel's DAMON, which nobody else uses.
#[derive(Debug)]
pub struct Damon {
    /// Whether statistics were on.
    stat: bool,
}

/// What is hot in a range of physical memory goes to a node.
#[derive(Clone, Debug)]
pub struct MigrateHot {
    /// Physical addresses.
    pub from: Range<u64>,
    pub to: u32,
    /// Bytes per second at most.
    pub rate: u64,
    /// Time between two samples. A page shows as accessed if it was within that time. Twenty
    /// samples make a figure of accesses.
    pub sample: Duration,
}

impl Damon {
    pub fn exists() -> bool {
        Path::new(KDAMONDS).exists()
    }

    /// If the kernel has it and nobody uses it. Its statistics rest until this is dropped.
    ///
    /// # Errors
    ///
    /// Why it cannot be had.
    pub fn free() -> Result<Self> {
        let number = format!("{KDAMONDS}/nr_kdamonds");
        let had = fs::read_to_string(&number).with_context(|| number.clone())?;
        if had.trim() == "0" {
            fs::write(&number, "1").with_context(|| number.clone())?;
        }
        let state = get("state")?;
        if state != "off" || had.trim().parse::<u32>().is_ok_and(|n| n > 1) {
            bail!("it is in use ({} kdamonds, {state})", had.trim());
        }
        let stat = fs::read_to_string(STAT).is_ok_and(|on| on.trim() == "Y");
        if stat {
            fs::write(STAT, "N").context(STAT)?;
        }
        Ok(Self { stat })
    }

    /// Watches physical memory, and once a second migrates what was accessed, by regions and then
    /// by pages (filter `young`), as the kernel's sample `mtier` does, and which no process has
    /// mapped (filter `unmapped`). Returns whether the kernel has the latter filter.
    ///
    /// # Errors
    ///
    /// The file of sysfs and the cause.
    pub fn migrate_hot(&self, what: &MigrateHot) -> Result<bool> {
        set("contexts/nr_contexts", "1")?;
        set("contexts/0/operations", "paddr")?;
        set("contexts/0/targets/nr_targets", "1")?;
        set("contexts/0/targets/0/regions/nr_regions", "1")?;
        set("contexts/0/targets/0/regions/0/start", &what.from.start.to_string())?;
        set("contexts/0/targets/0/regions/0/end", &what.from.end.to_string())?;
        set("contexts/0/monitoring_attrs/intervals/aggr_us", &(20 * what.sample).as_micros().to_string())?;
        set("contexts/0/monitoring_attrs/intervals/sample_us", &what.sample.as_micros().to_string())?;
        set("contexts/0/schemes/nr_schemes", "1")?;
        let scheme = |file: &str, value: &str| set(&format!("contexts/0/schemes/0/{file}"), value);
        scheme("action", "migrate_hot")?;
        scheme("target_nid", &what.to.to_string())?;
        scheme("apply_interval_us", "1000000")?;
        scheme("access_pattern/sz/min", "4096")?;
        scheme("access_pattern/sz/max", &u64::MAX.to_string())?;
        scheme("access_pattern/nr_accesses/min", "1")?;
        scheme("access_pattern/nr_accesses/max", &u32::MAX.to_string())?;
        scheme("access_pattern/age/max", &u32::MAX.to_string())?;
        scheme("quotas/bytes", &what.rate.to_string())?;
        scheme("quotas/reset_interval_ms", "1000")?;
        scheme("quotas/weights/nr_accesses_permil", "100")?;
        scheme("quotas/weights/age_permil", "100")?;
        // Each filter leaves out what does not match. A new number makes all of them anew.
        let filters = |names: &[&str]| -> Result<()> {
            scheme("filters/nr_filters", &names.len().to_string())?;
            names.iter().enumerate().try_for_each(|(n, name)| {
                scheme(&format!("filters/{n}/type"), name)?;
                scheme(&format!("filters/{n}/matching"), "N")
            })
        };
        let unmapped = filters(&["unmapped", "young"]).is_ok();
        if !unmapped {
            filters(&["young"])?;
        }
        set("state", "on")?;
        Ok(unmapped)
    }

    fn off(&self) -> Result<()> {
        if get("state")? == "on" {
            set("state", "off")?;
        }
        set("contexts/nr_contexts", "0")
    }

    /// CPU seconds of the kernel's thread, while it is on.
    ///
    /// # Errors
    ///
    /// It is off.
    pub fn cpu_s(&self) -> Result<f64> {
        let pid: i64 = get("pid")?.parse().context("the process id of kdamond")?;
        ensure!(pid > 0, "kdamond does not run");
        Ok(threads::cpu_ticks(u32::try_from(pid)?)? as f64 / 100.0)
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        let statistics = || if self.stat { fs::write(STAT, "Y").context(STAT) } else { Ok(()) };
        if let Err(e) = self.off().and_then(|()| statistics()) {
            eprintln!("DAMON could not be ended: {e:#}");
        }
    }
}

fn set(file: &str, value: &str) -> Result<()> {
    let path = format!("{KDAMONDS}/0/{file}");
    fs::write(&path, value).with_context(|| format!("{path}: {value:?}"))
}

fn get(file: &str) -> Result<String> {
    let path = format!("{KDAMONDS}/0/{file}");
    Ok(fs::read_to_string(&path).with_context(|| path.clone())?.trim().to_owned())
}
