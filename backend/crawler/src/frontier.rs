//! Computes the priority of pages and images in the frontier from their depth and from the yield of
//! similar pages.
//!
//! The yield of a directory is the number of images per page that was read. Only images that are
//! new to the crawl are counted.
//!
//! The estimates are smoothed, so that a single page has little influence. A directory starts with
//! `ASSUMED_PAGES` pages of its host's yield. A host starts with `ASSUMED_PAGES` pages of one image
//! each. The arithmetic uses integers only, so that equal counts give equal priorities everywhere.

/// Numbers of pages that were read, and of images on these pages that were new to the crawl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Yield {
    pub pages: u64,
    pub images: u64,
}

/// Priority added per level of depth. The pages of one level with the lowest yield therefore come
/// after the pages of the next level with the highest yield.
const DEPTH_WEIGHT: i32 = 4;
/// Penalties by expected yield: (minimum of expected thousandths of an image per page, penalty
/// added to the priority). The first match is used.
const YIELD_PENALTIES: [(u64, i32); 4] = [(4_000, 0), (1_000, 1), (250, 3), (0, 5)];
/// Expected thousandths of an image per page on an unknown host.
const UNKNOWN_HOST_YIELD: u64 = 1_000;
/// Maximum yield that a directory inherits from its host, in thousandths of an image per page. One
/// directory with a high yield must not raise the estimates of all others.
const MAX_INHERITED_YIELD: u64 = 2_000;
/// Weight of the assumed yield, in pages.
const ASSUMED_PAGES: u64 = 2;

/// Returns the priority of a page; lower values are fetched first. The page is `depth` links away
/// from a seed. `directory` and `host` are the yields of its directory and its host.
pub fn priority(depth: i32, directory: Yield, host: Yield) -> i16 {
    let inherited = expected_yield(host, UNKNOWN_HOST_YIELD).min(MAX_INHERITED_YIELD);
    let expected = expected_yield(directory, inherited);
    let penalty =
        YIELD_PENALTIES.iter().find(|(minimum, _)| expected >= *minimum).map_or(0, |(_, penalty)| *penalty);
    depth_priority(depth).saturating_add(i16::try_from(penalty).unwrap_or(0))
}

/// Returns the priority from depth alone, without a penalty. It applies to seeds, sitemaps and
/// images. The `depth` of an image is that of its page.
pub fn depth_priority(depth: i32) -> i16 {
    i16::try_from(depth.saturating_mul(DEPTH_WEIGHT)).unwrap_or(i16::MAX)
}

/// Returns the expected thousandths of an image on the next page.
fn expected_yield(counts: Yield, assumed: u64) -> u64 {
    let images = counts.images.saturating_mul(1_000).saturating_add(assumed.saturating_mul(ASSUMED_PAGES));
    images / counts.pages.saturating_add(ASSUMED_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_PAGES: Yield = Yield { pages: 0, images: 0 };

    fn counts(pages: u64, images: u64) -> Yield {
        Yield { pages, images }
    }

    #[test]
    fn page_yield_outweighs_at_most_one_level_of_depth() {
        let unknown = priority(1, NO_PAGES, NO_PAGES);
        assert_eq!((priority(0, NO_PAGES, NO_PAGES), unknown), (1, 5));
        let high_yield = priority(1, counts(3, 60), NO_PAGES);
        let no_yield = priority(1, counts(30, 0), counts(30, 0));
        assert!(high_yield < unknown && unknown < no_yield);
        // A page with a high yield, one level deeper, comes before a page with no yield. A page two
        // levels deeper does not.
        assert!(priority(2, counts(3, 60), NO_PAGES) < no_yield);
        assert!(priority(3, counts(3, 60), NO_PAGES) > no_yield);
        assert!(depth_priority(1) < unknown, "images of a page come before its linked pages");
    }

    #[test]
    fn unknown_directory_inherits_yield_of_host() {
        assert!(priority(1, NO_PAGES, counts(50, 500)) < priority(1, NO_PAGES, counts(50, 0)));
        // A single page without images changes the priority little on a host with a high yield; ten
        // such pages change it strongly.
        assert_eq!(priority(1, counts(1, 0), counts(50, 500)), priority(1, NO_PAGES, counts(50, 500)));
        assert!(priority(1, counts(10, 0), counts(50, 500)) > priority(1, counts(1, 0), counts(50, 500)));
    }

    #[test]
    fn extreme_counts_do_not_overflow_priority() {
        let max_counts = counts(u64::MAX, u64::MAX);
        assert!(priority(i32::MAX, max_counts, max_counts) >= priority(0, max_counts, max_counts));
        assert!(priority(50, counts(0, u64::MAX), NO_PAGES) < priority(50, counts(u64::MAX, 0), NO_PAGES));
    }
}
