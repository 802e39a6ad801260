//! Finds candidates for near-duplicates: a superset of what `vision::PerceptualHashes::is_near`
//! accepts among stored hashes.
//!
//! Each 64-bit hash is divided into four bands of 16 bits, with an index per band. If at most
//! [`NEAR_BITS`] bits of phash differ, at least one band differs in at most two bits. (Three or
//! more in each band would make twelve.) The query looks up these 137 values of every band. If at
//! most [`MARKED_GRADIENT_BITS`] bits of dhash differ, at least one band differs in at most one
//! bit, which gives 17 values.
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::QueryAs;

/// Maximum number of differing phash bits of a candidate, regardless of its dhash.
pub const NEAR_BITS: u32 = 11;
/// Maximum number of dhash bits in which an image and its copy with a watermark differ. A watermark
/// changes many bits of the phash.
pub const MARKED_GRADIENT_BITS: u32 = 4;
/// Maximum number of phash bits in which an image and such a copy differ.
pub const MARKED_BITS: u32 = 24;

/// Builds a query for the ids of candidates in `table`, in the collection `$1`. Its parameters 2 to
/// 14 come from [`bind`].
pub(crate) fn candidates(table: &str) -> String {
    let near = "bit_count((phash # $2)::bit(64)) <= $12";
    let marked = "bit_count((dhash # $3)::bit(64)) <= $13 and bit_count((phash # $2)::bit(64)) <= $14";
    // Each array is a subquery, so that the planner does not know its values. Otherwise it
    // estimates the rows for each of the 616 values, which takes longer than the execution.
    //
    // Each branch checks the distances itself with an index-only scan, because hundreds of rows per
    // million share a band without being near.
    let branch = |hash: &str, band: usize, probes: usize, judged: &str| {
        let shift = 48 - 16 * band;
        let value = if shift == 0 { hash.to_owned() } else { format!("({hash} >> {shift})") };
        format!(
            "select id from {table} where collection_id = $1 and phash is not null
                 and ({value} & 65535) = any((select ${probes}::bigint[])::bigint[]) and {judged}"
        )
    };
    let by_phash = (0..4).map(|band| branch("phash", band, 4 + band, near));
    let by_dhash = (0..4).map(|band| branch("dhash", band, 8 + band, marked));
    by_phash.chain(by_dhash).collect::<Vec<String>>().join(" union ")
}

/// Binds parameters 2 to 14 of a query with [`candidates`].
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

/// Returns the lowest 16 bits of `hash`, and all values that differ from them in at most `most`
/// bits. `most` is one or two.
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
