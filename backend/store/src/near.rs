//! The look-up of pictures that may be near: a superset of what `vision::PerceptualHashes::is_near` says of stored hashes.
//!
//! Each hash of 64 bits is four bands of 16, with an index for each band. With at most [`NEAR_BITS`] differing bits of phash, some band differs
//! in at most two (four bands with three or more would make twelve), and the look-up probes these 137 values of every band. With at most
//! [`MARKED_GRADIENT_BITS`] differing bits of dhash some band differs in at most one: 17 values.
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::QueryAs;

/// Bits of the phash that may differ for an image to be a candidate, whatever its dhash.
pub const NEAR_BITS: u32 = 11;
/// Bits of the dhash that may differ in a copy with a mark, which moves many bits of the phash.
pub const MARKED_GRADIENT_BITS: u32 = 4;
/// Bits of the phash that may differ in such a copy.
pub const MARKED_BITS: u32 = 24;

/// Chooses the ids of `table` that may be near, in the collection `$1`, by parameters 2 to 14 as [`bind`] gives them.
pub(crate) fn candidates(table: &str) -> String {
    let near = "bit_count((phash # $2)::bit(64)) <= $12";
    let marked = "bit_count((dhash # $3)::bit(64)) <= $13 and bit_count((phash # $2)::bit(64)) <= $14";
    // The distances are judged inside each branch, on the index alone: hundreds of rows per million share a band and are not near.
    let branch = |hash: &str, band: usize, probes: usize, judged: &str| {
        let shift = 48 - 16 * band;
        let value = if shift == 0 { hash.to_owned() } else { format!("({hash} >> {shift})") };
        format!(
            "select id from {table} where collection_id = $1 and phash is not null and ({value} & 65535) = any(${probes}) and {judged}"
        )
    };
    let by_phash = (0..4).map(|band| branch("phash", band, 4 + band, near));
    let by_dhash = (0..4).map(|band| branch("dhash", band, 8 + band, marked));
    by_phash.chain(by_dhash).collect::<Vec<String>>().join(" union ")
}

/// Gives a query with [`candidates`] its parameters 2 to 14.
pub(crate) fn bind<T>(
    mut query: QueryAs<'_, Postgres, T, PgArguments>,
    phash: i64,
    dhash: i64,
) -> QueryAs<'_, Postgres, T, PgArguments> {
    query = query.bind(phash).bind(dhash);
    for shift in [48, 32, 16, 0] {
        query = query.bind(probes(phash >> shift, 2));
    }
    for shift in [48, 32, 16, 0] {
        query = query.bind(probes(dhash >> shift, 1));
    }
    query.bind(i64::from(NEAR_BITS)).bind(i64::from(MARKED_GRADIENT_BITS)).bind(i64::from(MARKED_BITS))
}

/// The lowest 16 bits, and all that differ from them in at most `most` (one or two).
fn probes(hash: i64, most: u32) -> Vec<i64> {
    let band = hash & 0xFFFF;
    let mut probes = vec![band];
    for first in 0..16 {
        probes.push(band ^ (1 << first));
        if most > 1 {
            probes.extend((0..first).map(|second| band ^ (1 << first) ^ (1 << second)));
        }
    }
    probes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_within_the_distance_is_probed_once() {
        for (most, count) in [(1, 17), (2, 137)] {
            let mut probes = probes(-1, most);
            assert!(probes.iter().all(|value| (value ^ 0xFFFF).count_ones() <= most));
            probes.sort_unstable();
            probes.dedup();
            assert_eq!(probes.len(), count);
        }
    }
}
