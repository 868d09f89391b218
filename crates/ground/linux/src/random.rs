//! Random numbers of the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// A random number from 0 to 1, from the kernel: four bytes a cycle.
pub fn random() -> f64 {
    let mut bytes = [0u8; 4];
    match getrandom(&mut bytes, GetRandomFlags::INSECURE) {
        Ok(_) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

/// A random number that nobody can guess.
pub fn secret() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_places_cover_the_cycle() {
        let places: Vec<f64> = (0..1000).map(|_| random()).collect();
        assert!(places.iter().all(|p| (0.0..=1.0).contains(p)));
        let mean = places.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.06, "{mean}");
    }
}
