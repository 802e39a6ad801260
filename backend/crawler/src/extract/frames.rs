//! Reads a page and the documents in its `srcdoc` attributes, one after the other.
use super::reader::{MAX_FRAMES, RawPage, read_document};
use super::recipe_filter::RecipeFilter;
use super::{MAX_IMAGES, MAX_LINKS, MAX_VIDEOS};
use crate::recipes::SiteRecipe;
use std::collections::VecDeque;

/// Maximum nesting depth of `srcdoc` documents. Deeper ones are ignored.
const MAX_FRAME_DEPTH: usize = 3;

/// Reads a page and its `srcdoc` documents. The page comes first, and each document before those
/// that it contains. The limits of this module and the length of the page bound the memory.
pub(super) fn read(html: &str, agent: &str, recipe: Option<&SiteRecipe>) -> Vec<RawPage> {
    let (page, frames) = read_document(html, agent, recipe, RecipeFilter::new(recipe));
    let mut found = vec![page];
    // Documents are read one after the other, so that only one parser is in memory.
    let mut waiting: VecDeque<_> = frames.into_iter().map(|frame| (frame, 0, 1)).collect();
    while let Some((frame, parent, depth)) = waiting.pop_front()
        && found.len() <= MAX_FRAMES
    {
        let (mut page, frames) = read_document(&frame.html, agent, recipe, frame.recipe_filter);
        // The limits of a page apply to all its documents together.
        let links = found.iter().map(|page| page.links.len()).sum();
        page.links.truncate(MAX_LINKS.saturating_sub(links));
        let images = found.iter().map(|page| page.images.len()).sum();
        page.images.truncate(MAX_IMAGES.saturating_sub(images));
        let videos = found.iter().map(|page| page.videos.len()).sum();
        page.videos.truncate(MAX_VIDEOS.saturating_sub(videos));
        if depth < MAX_FRAME_DEPTH {
            waiting.extend(frames.into_iter().map(|frame| (frame, found.len(), depth + 1)));
        }
        found.push(RawPage { parent: Some(parent), ..page });
    }
    found
}
