//! Delta debugging: what of a failing list is needed for it to fail.

/// Takes out what can be taken out, in chunks that get smaller, for as long as the rest still `fails`: in the end no single
/// element can be spared.
pub(super) fn shrink<T: Clone>(list: &[T], mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut kept = list.to_vec();
    let mut chunk = kept.len().div_ceil(2);
    while chunk > 0 {
        let mut smaller = false;
        let mut at = 0;
        while at < kept.len() {
            let mut without = kept.clone();
            without.drain(at..(at + chunk).min(kept.len()));
            if fails(&without) {
                kept = without;
                smaller = true;
            } else {
                at += chunk;
            }
        }
        chunk = match chunk {
            1 if smaller => 1,
            _ => chunk / 2,
        };
    }
    kept
}
