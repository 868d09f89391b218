//! Sets of CPUs in the kernel's list format (`0-3,8`), of any size.
//!
//! libc's `cpu_set_t` holds 1,024 CPUs; this set grows as needed.

use std::fmt;
use std::str::FromStr;

use fixedbitset::FixedBitSet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// CPU numbers in text must be below this. It is well above the kernel's limit (`NR_CPUS` ≤ 8,192),
/// and a damaged file cannot make us allocate gigabytes.
const CPU_LIMIT: u32 = 65_536;

/// A set of CPU numbers. Sets with the same members are equal, whatever their capacity.
#[derive(Clone, Default)]
pub struct CpuSet(FixedBitSet);

/// Text that is not a CPU list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a CPU list such as `0-3,8`: {why}")]
pub struct ParseCpuSetError {
    text: String,
    why: &'static str,
}

impl CpuSet {
    /// Adds a CPU.
    pub fn insert(&mut self, cpu: u32) {
        self.0.grow_and_insert(cpu as usize);
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(cpu as usize)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_clear()
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.0.count_ones(..)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.ones().map(|cpu| cpu as u32)
    }

    /// CPUs in either set.
    pub fn union(&self, other: &Self) -> Self {
        let mut set = self.0.clone();
        set.union_with(&other.0);
        Self(set)
    }

    /// CPUs in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut set = self.0.clone();
        set.intersect_with(&other.0);
        Self(set)
    }

    /// CPUs of this set that are not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        let mut set = self.0.clone();
        set.difference_with(&other.0);
        Self(set)
    }

    /// Whether every CPU of this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl PartialEq for CpuSet {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for CpuSet {}

impl std::hash::Hash for CpuSet {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.iter().for_each(|cpu| state.write_u32(cpu));
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::default();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |why| ParseCpuSetError { text: text.to_owned(), why };
        let number = |part: &str| part.trim().parse::<u32>().map_err(|_| error("a part is not a number"));
        let mut set = Self::default();
        for part in text.trim().split(',').filter(|p| !p.trim().is_empty()) {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(error("a range ends before it starts"));
            }
            if last >= CPU_LIMIT {
                return Err(error("a CPU number is larger than any kernel allows"));
            }
            set.0.grow(last as usize + 1);
            set.0.insert_range(first as usize..last as usize + 1);
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match first == last {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for CpuSet {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CpuSet".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "CPU list as the kernel prints it, such as `0-3,8`" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_read_and_print_the_same() {
        for text in ["", "0", "0-3", "0-3,8", "1,3,5-7,1023-1025"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        assert_eq!("0-3\n".parse::<CpuSet>().unwrap().len(), 4);
    }

    #[test]
    fn an_invalid_list_is_refused_and_named() {
        for text in ["a", "3-1", "-1", "1--2", "99999999", "0-4294967295"] {
            let error = text.parse::<CpuSet>().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn equality_ignores_capacity() {
        let mut large: CpuSet = [900].into_iter().collect();
        large = large.intersection(&[1].into_iter().collect());
        large.insert(1);
        assert_eq!(large, "1".parse().unwrap());
    }
}
