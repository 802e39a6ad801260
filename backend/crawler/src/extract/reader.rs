//! Reads the markup in one pass and returns the values as written. URLs are not resolved here.
use super::extensions::{has_image_extension, is_image_link, is_video_link};
use super::picture::{
    self, ImageAttributes, ImageFile, LAZY_BACKGROUND, LAZY_SRC, LAZY_SRCSET, is_decodable_type,
    is_fetchable, is_lazy_url,
};
use super::text::{Attributes, has_token, is_image_property, refresh_target, to_single_line, unescape};
use super::videos::{RawVideo, Videos, is_file_type};
use super::{MAX_IMAGES, MAX_LINKS, MAX_RAW_URL, MAX_TEXT, css, json_ld};
use crate::recipes::{self, RecipeFilter, SiteRecipe};
use crate::{Directives, ReferrerPolicy};
use lol_html::html_content::{Element, TextChunk};
use lol_html::{HtmlRewriter, MemorySettings, Settings, element, text};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Maximum length in bytes that is kept of one `<style>`, `<script>`, `<noscript>` or `srcdoc`.
const MAX_BLOCK: usize = 1 << 20;
/// Maximum memory in bytes that the parser may use for unfinished input and for open elements. The
/// rest of a page that needs more is omitted.
const MAX_PARSER_MEMORY: usize = 32 << 20;
/// Maximum number of `srcdoc` documents that are read per page. Later ones are ignored.
pub(super) const MAX_FRAMES: usize = 100;

/// The values found on a page or in a `srcdoc` document, as written.
#[derive(Default)]
pub(super) struct RawPage {
    /// Index of the document that contains this `srcdoc` document. `None` for the page itself.
    pub(super) parent: Option<usize>,
    pub(super) title: Option<String>,
    /// Unique by their text.
    pub(super) links: Vec<(String, bool)>,
    pub(super) images: Vec<RawImage>,
    pub(super) videos: Vec<RawVideo>,
    pub(super) directives: Directives,
    pub(super) canonical: Option<String>,
    pub(super) feeds: Vec<String>,
    pub(super) base: Option<String>,
    /// The policy of the last valid `<meta name=referrer>`.
    pub(super) referrer_policy: Option<ReferrerPolicy>,
}

pub(super) struct RawImage {
    pub(super) url: String,
    pub(super) found_in: &'static str,
    pub(super) alt: Option<String>,
    /// The policy of the element.
    pub(super) referrer_policy: Option<ReferrerPolicy>,
}

/// A `srcdoc` document that is not read yet.
pub(super) struct Frame {
    pub(super) html: String,
    pub(super) recipe_filter: RecipeFilter,
}

#[derive(Default)]
struct State {
    document: RawPage,
    frames: Vec<Frame>,
    agent: String,
    /// Index of a link in `document.links`, by its text.
    link_index: HashMap<String, usize>,
    /// Index of an image in `document.images`, by its text and its policy. Which of several
    /// policies is the strictest depends on the page.
    image_index: HashMap<(String, Option<ReferrerPolicy>), usize>,
    videos: Videos,
    /// Candidates of the open `<picture>`.
    picture: Option<Vec<ImageFile>>,
    /// The text of the current `<style>`, `<script>` or `<noscript>`.
    block: String,
    /// Whether the open `<script>` contains JSON-LD.
    is_json_ld: bool,
    in_title: bool,
    /// Whether the parser is inside `<svg>`, whose `<title>` is not that of the page.
    in_svg: bool,
    in_noscript: bool,
    /// Whether the current element is inside `<template>`. Only `<base>`, title, canonical URL and
    /// referrer policy are ignored there.
    in_template: bool,
    /// The policy of the current element, if it applies to an image.
    referrer_policy: Option<ReferrerPolicy>,
    recipe_filter: RecipeFilter,
}

/// Reads one document, and returns its `srcdoc` documents unread.
pub(super) fn read_document(
    html: &str,
    agent: &str,
    recipe: Option<&SiteRecipe>,
    recipe_filter: RecipeFilter,
) -> (RawPage, Vec<Frame>) {
    let state = Rc::new(RefCell::new(State { agent: agent.to_owned(), recipe_filter, ..State::default() }));
    read_part(html, &state, recipe);
    let mut state = state.take();
    state.close_picture();
    state.document.videos = std::mem::take(&mut state.videos).finish();
    // The page may contain an unclosed title or `<picture>`.
    state.document.title =
        state.document.title.take().map(|t| to_single_line(&htmlize::unescape(t))).filter(|t| !t.is_empty());
    (state.document, state.frames)
}

fn read_part(html: &str, state: &Rc<RefCell<State>>, recipe: Option<&SiteRecipe>) {
    // The recipe's handlers must run before the handler that reads the element.
    let create_handlers = |recipe| recipes::handlers(recipe, state, |state| &mut state.recipe_filter);
    let recipe_handlers = recipe.map(create_handlers).unwrap_or_default();
    let handlers = recipe_handlers.into_iter().chain([
        element!("template *", |_| {
            state.borrow_mut().in_template = true;
            Ok(())
        }),
        element!("*", |el| {
            state.borrow_mut().read_element(el);
            let on_end: fn(&mut State) = match el.tag_name().as_str() {
                "picture" => State::close_picture,
                "svg" => |state| state.in_svg = false,
                "video" | "amp-video" => |state| state.videos.close(),
                _ => return Ok(()),
            };
            if let Some(handlers) = el.end_tag_handlers() {
                let state = state.clone();
                handlers.push(Box::new(move |_| {
                    on_end(&mut state.borrow_mut());
                    Ok(())
                }));
            }
            Ok(())
        }),
        text!("title", |chunk| {
            state.borrow_mut().read_title(chunk);
            Ok(())
        }),
        text!("style", |chunk| {
            let mut current = state.borrow_mut();
            if let Some(block) = current.collect_block(chunk) {
                current.read_style(&block, false);
            }
            Ok(())
        }),
        text!("script", |chunk| {
            let mut current = state.borrow_mut();
            if current.is_json_ld
                && let Some(block) = current.collect_block(chunk)
            {
                json_ld::read(&block, |media, url| match media {
                    json_ld::Media::Image => current.add_filtered_image(url, "json-ld", None),
                    json_ld::Media::Video => current.add_video(url, "json-ld"),
                });
            }
            Ok(())
        }),
        // The parser treats the content of `<noscript>` as text, because it parses pages as if
        // scripts were enabled. Without scripts the content is markup.
        text!("noscript", |chunk| {
            let mut current = state.borrow_mut();
            if let Some(block) = current.collect_block(chunk)
                && !current.in_noscript
                && !current.recipe_filter.is_dropped()
            {
                // The block may be inside an open `<picture>` that continues after it.
                let inner = current.recipe_filter.fragment();
                let outer_filter = std::mem::replace(&mut current.recipe_filter, inner);
                let outer = (current.picture.take(), current.is_json_ld, outer_filter);
                current.in_noscript = true;
                drop(current);
                read_part(&block, state, recipe);
                let mut current = state.borrow_mut();
                current.close_picture();
                current.in_noscript = false;
                (current.picture, current.is_json_ld, current.recipe_filter) = outer;
            }
            Ok(())
        }),
    ]);
    let memory = MemorySettings::new().with_max_allowed_memory_usage(MAX_PARSER_MEMORY);
    let settings = handlers.fold(
        Settings::new().with_strict(false).with_memory_settings(memory),
        Settings::append_element_content_handler,
    );
    let mut rewriter = HtmlRewriter::new(settings, |_: &[u8]| {});
    // If the parser reaches its limit, the values read so far are kept.
    if rewriter.write(html.as_bytes()).is_ok() {
        let _ = rewriter.end();
    }
}

impl State {
    fn read_element(&mut self, el: &Element<'_, '_>) {
        let tag = el.tag_name();
        let attributes = Attributes::new(el);
        let in_template = std::mem::take(&mut self.in_template);
        let get = |name: &str| attributes.get(name);
        let is_html = el.namespace_uri() == "http://www.w3.org/1999/xhtml";
        self.referrer_policy = match tag.as_str() {
            "a" | "area" if has_token(get("rel"), "noreferrer") => Some(ReferrerPolicy::NoReferrer),
            "a" | "area" | "img" | "image" | "amp-img" | "link" => {
                get("referrerpolicy").and_then(|p| ReferrerPolicy::parse(&p))
            }
            _ => None,
        };
        for attribute in self.recipe_filter.next_element() {
            if let Some(url) = get(&attribute) {
                self.add_image(&url, "recipe", None);
            }
        }
        match tag.as_str() {
            "base" if self.document.base.is_none() && !self.in_noscript && !in_template && is_html => {
                self.document.base = get("href");
            }
            "title" => self.in_title = self.document.title.is_none() && !self.in_svg && !in_template,
            "a" | "area" => {
                if let Some(href) = get("href").or_else(|| get("xlink:href")) {
                    if is_image_link(&href) {
                        self.add_filtered_image(&href, "link", None);
                    } else if is_video_link(&href) {
                        self.add_video(&href, "link");
                    } else {
                        self.add_link(href, has_token(get("rel"), "nofollow"));
                    }
                }
            }
            // As in a browser, `src` is ignored.
            "iframe" if attributes.has("srcdoc") => self.add_frame(&attributes),
            "iframe" | "frame" => {
                if let Some(src) = get("src").filter(|s| is_fetchable(s)).or_else(|| get("data-src")) {
                    self.add_link(src, false);
                }
            }
            "svg" => self.in_svg = true,
            "object" => self.read_embedded(get("data"), get("type"), "object"),
            "embed" => self.read_embedded(get("src"), get("type"), "embed"),
            "link" => self.read_link_element(&get, in_template),
            "meta" => self.read_meta(&get, in_template),
            "picture" => {
                self.close_picture();
                self.picture = Some(Vec::new());
            }
            "source" if self.recipe_filter.allows_images() => match &mut self.picture {
                Some(candidates) => image_attributes(&get, false).add_candidates(candidates),
                None => self.videos.read_source(&get),
            },
            "image" if el.namespace_uri() == "http://www.w3.org/2000/svg" => {
                if let Some(href) = get("href").or_else(|| get("xlink:href")) {
                    self.add_filtered_image(&href, "svg", None);
                }
            }
            "img" | "image" | "amp-img" => self.read_img(&get),
            "input" => {
                if get("type").is_some_and(|t| t.trim().eq_ignore_ascii_case("image"))
                    && let Some(src) = get("src")
                {
                    self.add_filtered_image(&src, "src", get("alt"));
                }
            }
            "video" | "amp-video" => {
                if let Some(poster) = get("poster").filter(|p| is_fetchable(p)).or_else(|| get("data-poster"))
                {
                    self.add_filtered_image(&poster, "poster", None);
                }
                if self.recipe_filter.allows_images() {
                    self.videos.read_video(&get);
                }
            }
            "script" => {
                self.is_json_ld = get("type").is_some_and(|t| t.to_ascii_lowercase().contains("ld+json"));
                self.block.clear();
            }
            "style" | "noscript" => self.block.clear(),
            _ => {}
        }
        if matches!(tag.as_str(), "a" | "area") {
            // The policy of a link does not apply to its background.
            self.referrer_policy = None;
        }
        self.read_common_attributes(&attributes, &tag);
    }

    /// Reads attributes of any element: a background image, or an image for a lazy loader.
    fn read_common_attributes(&mut self, attributes: &Attributes, tag: &str) {
        for (name, value) in &attributes.0 {
            if name == "style" {
                self.read_style(&unescape(value), true);
            } else if name.starts_with("data-") {
                let is_background = LAZY_BACKGROUND.contains(&name.as_str());
                let is_other = !matches!(tag, "img" | "image" | "amp-img" | "source" | "iframe" | "frame");
                if is_background || (is_other && LAZY_SRC.contains(&name.as_str())) {
                    let value = unescape(value);
                    if value.contains("url(") {
                        css::find_images(&format!("background:{value}"), true, |url| {
                            self.add_filtered_image(&url, "lazy", None)
                        });
                    } else if is_background || has_image_extension(&value) {
                        self.add_filtered_image(&value, "lazy", None);
                    }
                }
            }
        }
    }

    /// Keeps the document of an `<iframe srcdoc>`, to be read later.
    fn add_frame(&mut self, attributes: &Attributes) {
        if self.frames.len() < MAX_FRAMES
            && !self.recipe_filter.is_dropped()
            && let Some(html) = attributes.get_short("srcdoc", MAX_BLOCK)
        {
            self.frames.push(Frame { html, recipe_filter: self.recipe_filter.fragment() });
        }
    }

    /// Adds the resource of an `<object>` or `<embed>`. The `type` decides the kind. Without it,
    /// the extension decides, and a URL with no known extension is a page.
    fn read_embedded(&mut self, url: Option<String>, mime: Option<String>, found_in: &'static str) {
        let Some(url) = url else { return };
        let mime = mime.map(|mime| mime.trim_ascii().to_ascii_lowercase()).unwrap_or_default();
        let by_type_or_extension =
            |by_type: bool, by_extension: bool| if mime.is_empty() { by_extension } else { by_type };
        if by_type_or_extension(mime.starts_with("image/") && is_decodable_type(&mime), is_image_link(&url)) {
            self.add_filtered_image(&url, found_in, None);
        } else if by_type_or_extension(is_file_type(&mime), is_video_link(&url)) {
            self.add_video(&url, found_in);
        } else if by_type_or_extension(matches!(mime.as_str(), "text/html" | "application/xhtml+xml"), true) {
            self.add_link(url, false);
        }
    }

    fn read_preload(&mut self, get: &dyn Fn(&str) -> Option<String>) {
        // As in a browser, a type that cannot be decoded is not loaded.
        if !self.recipe_filter.allows_images() || get("type").is_some_and(|mime| !is_decodable_type(&mime)) {
            return;
        }
        let mut candidates = Vec::new();
        let attributes =
            ImageAttributes { srcset: get("imagesrcset"), src: get("href"), ..ImageAttributes::default() };
        attributes.add_candidates(&mut candidates);
        if let Some(best) = picture::select_best(&candidates) {
            self.add_image(&best.url, "preload", None);
        }
    }

    fn read_link_element(&mut self, get: &dyn Fn(&str) -> Option<String>, in_template: bool) {
        let rel = get("rel").map(|r| r.to_ascii_lowercase()).unwrap_or_default();
        let has_rel = |token: &str| rel.split_ascii_whitespace().any(|t| t == token);
        if has_rel("preload") && get("as").is_some_and(|kind| kind.eq_ignore_ascii_case("image")) {
            self.read_preload(get);
        }
        let Some(href) = get("href") else { return };
        if get("itemprop").is_some_and(|p| is_image_property(&p)) {
            self.add_filtered_image(&href, "itemprop", None);
        }
        if has_rel("canonical") && self.document.canonical.is_none() && !in_template {
            self.document.canonical = Some(href.clone());
        }
        if has_rel("image_src") {
            self.add_filtered_image(&href, "image_src", None);
        } else if has_rel("next") || has_rel("prev") {
            self.add_link(href, has_rel("nofollow"));
        } else if has_rel("alternate") && !has_rel("stylesheet") {
            let mime = get("type").map(|t| t.to_ascii_lowercase()).unwrap_or_default();
            if mime.contains("rss") || mime.contains("atom") {
                if self.recipe_filter.allows_links() && self.document.feeds.len() < MAX_LINKS {
                    self.document.feeds.push(href);
                }
            } else if mime.is_empty() || mime.contains("html") {
                self.add_link(href, has_rel("nofollow"));
            }
        }
    }

    fn read_meta(&mut self, get: &dyn Fn(&str) -> Option<String>, in_template: bool) {
        let Some(content) = get("content") else { return };
        if !in_template && get("name").is_some_and(|name| name.eq_ignore_ascii_case("referrer")) {
            let policy = ReferrerPolicy::parse_meta(&content);
            self.document.referrer_policy = policy.or(self.document.referrer_policy);
        }
        let name = get("property").or_else(|| get("name")).unwrap_or_default().trim().to_ascii_lowercase();
        match name.as_str() {
            "og:image" | "og:image:url" | "og:image:secure_url" => {
                self.add_filtered_image(&content, "og:image", None)
            }
            "twitter:image" | "twitter:image:src" => self.add_filtered_image(&content, "twitter:image", None),
            name if name == "robots" || name.eq_ignore_ascii_case(&self.agent) => {
                let directives = Directives::parse([content.as_str()], &self.agent);
                self.document.directives = self.document.directives.union(directives);
            }
            name => self.videos.read_property(name, &content),
        }
        if get("itemprop").is_some_and(|p| is_image_property(&p)) {
            self.add_filtered_image(&content, "itemprop", None);
        }
        if get("http-equiv").is_some_and(|h| h.trim().eq_ignore_ascii_case("refresh"))
            && let Some(target) = refresh_target(&content)
        {
            self.add_link(target.to_owned(), false);
        }
    }

    fn read_img(&mut self, get: &dyn Fn(&str) -> Option<String>) {
        let is_tiny = |name| get(name).and_then(|v| v.trim().parse::<u32>().ok()).is_some_and(|n| n <= 2);
        let in_picture = self.picture.as_ref().is_some_and(|c| !c.is_empty());
        let mut candidates = self.picture.take().unwrap_or_default();
        // Tracking pixels are ignored.
        if self.recipe_filter.allows_images() && !(is_tiny("width") && is_tiny("height")) {
            image_attributes(get, true).add_candidates(&mut candidates);
        }
        if let Some(best) = picture::select_best(&candidates) {
            let found_in = if in_picture { "picture" } else { best.found_in };
            self.add_image(&best.url, found_in, get("alt"));
        }
    }

    /// Adds the best candidate of a `<picture>` without an `<img>`.
    fn close_picture(&mut self) {
        if let Some(candidates) = self.picture.take()
            && let Some(best) = picture::select_best(&candidates)
        {
            self.add_image(&best.url, "picture", None);
        }
    }

    fn add_video(&mut self, url: &str, found_in: &'static str) {
        if self.recipe_filter.allows_images() {
            self.videos.add(url, found_in);
        }
    }

    fn read_style(&mut self, text: &str, is_attribute: bool) {
        if text.contains('(') {
            css::find_images(text, is_attribute, |url| self.add_filtered_image(&url, "css", None));
        }
    }

    fn add_link(&mut self, href: String, nofollow: bool) {
        if href.len() > MAX_RAW_URL || !is_fetchable(&href) || !self.recipe_filter.allows_links() {
            return;
        }
        if let Some(index) = self.link_index.get(&href) {
            // The URL may be followed if one of the links to it may be followed.
            self.document.links[*index].1 &= nofollow;
        } else if self.document.links.len() < MAX_LINKS {
            self.link_index.insert(href.clone(), self.document.links.len());
            self.document.links.push((href, nofollow));
        }
    }

    fn add_filtered_image(&mut self, url: &str, found_in: &'static str, alt: Option<String>) {
        if self.recipe_filter.allows_images() {
            self.add_image(url, found_in, alt);
        }
    }

    /// Adds an image whose element has passed the recipe filter.
    fn add_image(&mut self, url: &str, found_in: &'static str, alt: Option<String>) {
        let url = url.trim_ascii();
        if url.len() > MAX_RAW_URL || !is_fetchable(url) {
            return;
        }
        let alt = alt.map(|a| to_single_line(&a)).filter(|a| !a.is_empty());
        let key = (url.to_owned(), self.referrer_policy);
        if let Some(index) = self.image_index.get(&key) {
            let existing = &mut self.document.images[*index];
            existing.alt = existing.alt.take().or(alt);
        } else if self.document.images.len() < MAX_IMAGES {
            self.image_index.insert(key, self.document.images.len());
            let found_in = if self.in_noscript { "noscript" } else { found_in };
            let referrer_policy = self.referrer_policy;
            self.document.images.push(RawImage { url: url.to_owned(), found_in, alt, referrer_policy });
        }
    }

    fn read_title(&mut self, chunk: &TextChunk<'_>) {
        if !self.in_title {
            return;
        }
        let title = self.document.title.get_or_insert_default();
        // `to_single_line` shortens the title later. This check only limits the memory until then.
        if title.len() < 8 * MAX_TEXT {
            title.push_str(chunk.as_str());
        }
        self.in_title = !chunk.last_in_text_node();
    }

    /// Collects the text of a block. Returns the whole text after its last chunk.
    fn collect_block(&mut self, chunk: &TextChunk<'_>) -> Option<String> {
        if self.block.len() + chunk.as_str().len() <= MAX_BLOCK {
            self.block.push_str(chunk.as_str());
        }
        chunk.last_in_text_node().then(|| std::mem::take(&mut self.block))
    }
}

fn image_attributes(get: &dyn Fn(&str) -> Option<String>, with_src: bool) -> ImageAttributes {
    let find_url = |names: &[&str], is_url: fn(&str, &str) -> bool| {
        names.iter().find_map(|name| get(name).filter(|value| is_url(name, value)))
    };
    ImageAttributes {
        srcset: get("srcset"),
        src: with_src.then(|| get("src")).flatten(),
        lazy_srcset: find_url(LAZY_SRCSET, |_, value| is_fetchable(value)),
        lazy_src: find_url(LAZY_SRC, is_lazy_url),
        mime: get("type"),
        media: get("media"),
    }
}
