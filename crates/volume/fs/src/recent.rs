//! What a thread used last, by key, so that it need not look it up in a table that all threads
//! share.
//!
//! A worker of a mount serves the threads of all programs in turn: the one before last is as likely
//! the next as the last.

/// Places; a key has one of them.
const PLACES: usize = 16;

/// Values that were used lately; one that takes another's place ends it.
#[derive(Debug)]
pub struct Recent<K, V>([Option<(K, V)>; PLACES]);

impl<K: PartialEq, V> Recent<K, V> {
    pub const NOTHING: Self = Self([const { None }; PLACES]);

    /// The value of a key; `make` finds it where it is not here. `hash` chooses its place.
    pub fn get(&mut self, hash: u64, key: K, make: impl FnOnce() -> Option<V>) -> Option<&V> {
        let place = self.0.get_mut(hash as usize % PLACES)?;
        if !place.as_ref().is_some_and(|(known, _)| *known == key) {
            *place = make().map(|value| (key, value));
        }
        place.as_ref().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_and_belongs_to_its_key() {
        let mut recent = Recent::NOTHING;
        let mut made = 0;
        for (hash, key) in [(1, 1), (2, 2), (1, 1), (17, 17), (1, 1)] {
            let value = recent.get(hash, key, || {
                made += 1;
                Some(key * 10)
            });
            assert_eq!(value, Some(&(key * 10)));
        }
        assert_eq!(made, 4, "17 took the place of 1");
        assert_eq!(recent.get(2, 3, || None), None);
        assert_eq!(recent.get(2, 2, || Some(21)), Some(&21), "what could not be made leaves no other's value");
    }
}
