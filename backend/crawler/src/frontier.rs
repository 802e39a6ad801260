//! Which page is fetched first: by depth, and by what pages like it have yielded so far.
//!
//! The yield of a directory is the number of images, new to the crawl, on a page of it that was read. A directory is judged with two pages
//! as its host has them counted in, and a host with two pages of one image each, so that a single page decides nothing. Integers
//! only, so that equal counts give equal priorities everywhere.

/// Pages read, and images found on them that were new to the crawl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Yield {
    /// Pages.
    pub pages: u64,
    /// Images.
    pub images: u64,
}

/// What a level of depth weighs. The poorest pages of one level thus come after the richest of the next.
const LEVEL: i32 = 4;
/// From so many thousandths of an image a page on, a page is put back by so much.
const STEPS: [(u64, i32); 4] = [(4_000, 0), (1_000, 1), (250, 3), (0, 5)];
/// Thousandths of an image that a page of an unknown host is thought to have.
const UNKNOWN: u64 = 1_000;
/// The most that is assumed of a directory because of its host: one rich directory does not speak for all others.
const MOST_ASSUMED: u64 = 2_000;
/// Pages for which the assumption counts.
const ASSUMED: u64 = 2;

/// The priority, lower first, of a page `depth` links from a seed in a directory of `directory`'s yield on a host of `host`'s.
pub fn priority(depth: i32, directory: Yield, host: Yield) -> i16 {
    let expected = expected(directory, expected(host, UNKNOWN).min(MOST_ASSUMED));
    let back = STEPS.iter().find(|(from, _)| expected >= *from).map_or(0, |(_, back)| *back);
    level(depth).saturating_add(i16::try_from(back).unwrap_or(0))
}

/// The priority of what nothing is expected of and that is not put back: seeds, sitemaps, images (`depth`: that of their page).
pub fn level(depth: i32) -> i16 {
    i16::try_from(depth.saturating_mul(LEVEL)).unwrap_or(i16::MAX)
}

/// Thousandths of an image on the next page.
fn expected(seen: Yield, assumed: u64) -> u64 {
    let images = seen.images.saturating_mul(1_000).saturating_add(assumed.saturating_mul(ASSUMED));
    images / seen.pages.saturating_add(ASSUMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Yield = Yield { pages: 0, images: 0 };

    fn seen(pages: u64, images: u64) -> Yield {
        Yield { pages, images }
    }

    #[test]
    fn depth_comes_first_and_yield_decides_within_and_between_neighbours() {
        let unknown = priority(1, NOTHING, NOTHING);
        assert_eq!((priority(0, NOTHING, NOTHING), unknown), (1, 5));
        let rich = priority(1, seen(3, 60), NOTHING);
        let barren = priority(1, seen(30, 0), seen(30, 0));
        assert!(rich < unknown && unknown < barren);
        // A level deeper, where there is much to find, comes before where there is nothing; two levels deeper does not.
        assert!(priority(2, seen(3, 60), NOTHING) < barren);
        assert!(priority(3, seen(3, 60), NOTHING) > barren);
        assert!(level(1) < unknown, "images of a page come before the pages it links to");
    }

    #[test]
    fn an_unknown_directory_is_thought_to_be_like_its_host() {
        assert!(priority(1, NOTHING, seen(50, 500)) < priority(1, NOTHING, seen(50, 0)));
        // A single page without images says little against a rich host, ten say much.
        assert_eq!(priority(1, seen(1, 0), seen(50, 500)), priority(1, NOTHING, seen(50, 500)));
        assert!(priority(1, seen(10, 0), seen(50, 500)) > priority(1, seen(1, 0), seen(50, 500)));
    }

    #[test]
    fn no_counts_overflow() {
        let most = seen(u64::MAX, u64::MAX);
        assert!(priority(i32::MAX, most, most) >= priority(0, most, most));
        assert!(priority(50, seen(0, u64::MAX), NOTHING) < priority(50, seen(u64::MAX, 0), NOTHING));
    }
}
