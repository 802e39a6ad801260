//! Defines site recipes, in which an operator describes the markup of a site with CSS selectors,
//! and applies them: decides for each element whether its images are used and its links are
//! followed.
//!
//! Every selector is registered twice: for the elements that it matches and, with ` *` appended,
//! for their descendants. The parser determines the end of an element even without an end tag.
use crate::scope::matches_entry;
use cssparser::{Parser, ParserInput, Token};
use lol_html::html_content::Element;
use lol_html::{ElementContentHandlers, Selector};
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use url::Url;

/// A recipe as written in the configuration. Allowed selectors are those that the parser can match
/// while it streams a page: types, classes, ids, attributes, `:not()`, `:nth-child()`, descendants
/// and children.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Hosts to which the recipe applies: `example.org`, `*.example.org`, `example.org:8080`.
    pub hosts: Vec<String>,
    /// Elements whose images are used; their descendants are included. `selector@attribute` uses
    /// the URL in that attribute, regardless of its file extension. If the list is empty, images of
    /// the whole page are used.
    #[serde(default)]
    pub images: Vec<String>,
    /// Elements from which links are followed; their descendants are included. Attributes are not
    /// allowed here. If the list is empty, links are followed from the whole page.
    #[serde(default)]
    pub links: Vec<String>,
    /// Elements that are ignored together with their descendants. This list takes precedence over
    /// the others.
    #[serde(default)]
    pub drop: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("recipe {number}, {field}: {value:?} {reason}")]
pub struct RecipeError {
    /// Number of the recipe, counted from 1.
    pub number: usize,
    /// `hosts`, `images`, `links` or `drop`.
    pub field: &'static str,
    /// The value as written.
    pub value: String,
    /// The end of a sentence whose subject is the value.
    pub reason: String,
}

/// All validated recipes. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Recipes(Arc<[SiteRecipe]>);

/// A validated recipe.
#[derive(Clone, Debug)]
pub struct SiteRecipe {
    hosts: Vec<String>,
    pub(crate) images: Vec<ImageSelector>,
    pub(crate) links: Vec<String>,
    pub(crate) drop: Vec<String>,
}

/// An element or attribute whose images a recipe uses.
#[derive(Clone, Debug)]
pub(crate) struct ImageSelector {
    selector: String,
    pub(crate) attribute: Option<String>,
}

impl Recipes {
    /// Validates every host and every selector.
    ///
    /// # Errors
    /// Returns a [`RecipeError`] with the number of the recipe, the field and the value.
    pub fn new(recipes: &[Recipe]) -> Result<Self, RecipeError> {
        let validated = recipes.iter().enumerate().map(|(index, recipe)| SiteRecipe::new(index + 1, recipe));
        Ok(Self(validated.collect::<Result<Vec<_>, _>>()?.into()))
    }

    /// Returns the first recipe that applies to the host of `url`.
    pub fn for_url(&self, url: &Url) -> Option<&SiteRecipe> {
        self.0.iter().find(|recipe| recipe.hosts.iter().any(|host| matches_entry(host, url)))
    }
}

impl SiteRecipe {
    fn new(number: usize, recipe: &Recipe) -> Result<Self, RecipeError> {
        let to_error =
            |field, value: &str, reason: String| RecipeError { number, field, value: value.into(), reason };
        if recipe.hosts.is_empty() {
            let reason = "is empty; at least one host is required, for example hosts = [\"example.org\"]";
            return Err(to_error("hosts", "", reason.into()));
        }
        for host in &recipe.hosts {
            let name = host.strip_prefix("*.").unwrap_or(host);
            if name.trim().is_empty() || name.contains(['/', '*', '@', ' ', '?', '#']) {
                let allowed = "is not a valid host; allowed are names like example.org, *.example.org and example.org:8080";
                return Err(to_error("hosts", host, allowed.into()));
            }
        }
        let selectors = |field: &'static str, list: &[String]| -> Result<Vec<String>, RecipeError> {
            let validated = |text: &String| validate(text).map_err(|why| to_error(field, text, why));
            list.iter().map(|text| validated(text).map(|()| text.clone())).collect()
        };
        let images = recipe.images.iter().map(|text| {
            let image = ImageSelector::parse(text);
            validate(&image.selector).map_err(|why| to_error("images", text, why)).map(|()| image)
        });
        Ok(Self {
            hosts: recipe.hosts.clone(),
            images: images.collect::<Result<_, _>>()?,
            links: selectors("links", &recipe.links)?,
            drop: selectors("drop", &recipe.drop)?,
        })
    }
}

impl ImageSelector {
    fn parse(text: &str) -> Self {
        let is_name =
            |a: &str| !a.is_empty() && a.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_:".contains(&b));
        match text.rsplit_once('@') {
            Some((selector, attribute)) if is_name(attribute) => {
                Self { selector: selector.into(), attribute: Some(attribute.to_ascii_lowercase()) }
            }
            _ => Self { selector: text.into(), attribute: None },
        }
    }
}

/// Returns the reason as an error if a selector cannot be used. A comma-separated list is rejected,
/// because the appended ` *` would apply only to the last selector of the list.
fn validate(text: &str) -> Result<(), String> {
    Selector::from_str(text).map_err(|error| format!("is not a valid CSS selector: {error}"))?;
    let mut input = ParserInput::new(text);
    let mut parser = Parser::new(&mut input);
    // The parser skips the content of `:not(a, b)` and `[href="a,b"]`.
    let is_list = std::iter::from_fn(|| parser.next().ok().cloned()).any(|token| token == Token::Comma);
    match is_list {
        true => Err("contains several selectors; write each one as a separate entry".into()),
        false => Ok(()),
    }
}

/// The recipe's marks of the current element and of the element that encloses the fragment.
#[derive(Clone, Debug, Default)]
pub(super) struct RecipeFilter {
    /// Whether the recipe contains selectors for images, or for links.
    selects_images: bool,
    selects_links: bool,
    /// Marks of the next element. Handlers set them, and `next_element` moves them to `current`.
    next: ElementMarks,
    current: ElementMarks,
    /// Marks of the element that encloses a separately parsed fragment (`<noscript>`, `srcdoc`).
    outer: ElementMarks,
}

#[derive(Clone, Debug, Default)]
struct ElementMarks {
    images: bool,
    links: bool,
    drop: bool,
    /// Names of the attributes that contain image URLs.
    attributes: Vec<String>,
}

impl RecipeFilter {
    pub(super) fn new(recipe: Option<&SiteRecipe>) -> Self {
        Self {
            selects_images: recipe.is_some_and(|r| !r.images.is_empty()),
            selects_links: recipe.is_some_and(|r| !r.links.is_empty()),
            ..Self::default()
        }
    }

    /// Moves to the next element and returns the names of its attributes that contain image URLs.
    pub(super) fn next_element(&mut self) -> Vec<String> {
        self.current = std::mem::take(&mut self.next);
        if self.is_dropped() { Vec::new() } else { std::mem::take(&mut self.current.attributes) }
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.current.drop || self.outer.drop
    }

    pub(super) fn allows_images(&self) -> bool {
        !self.is_dropped() && (!self.selects_images || self.current.images || self.outer.images)
    }

    pub(super) fn allows_links(&self) -> bool {
        !self.is_dropped() && (!self.selects_links || self.current.links || self.outer.links)
    }

    /// Returns the filter for a fragment inside the current element that is parsed separately.
    pub(super) fn fragment(&self) -> Self {
        let ElementMarks { images, links, .. } = self.current;
        Self { outer: ElementMarks { images, links, ..ElementMarks::default() }, ..self.clone() }
    }
}

type Handler<'h> = (Cow<'static, Selector>, ElementContentHandlers<'h>);

/// Returns handlers that mark the elements that a recipe's selectors match. `filter` returns the
/// filter in the state of the parser.
pub(super) fn handlers<'h, S: 'h>(
    recipe: &SiteRecipe,
    state: &Rc<RefCell<S>>,
    filter: fn(&mut S) -> &mut RecipeFilter,
) -> Vec<Handler<'h>> {
    let mut handlers = Vec::new();
    let mut add = |selector: &str, mark: Box<dyn Fn(&mut ElementMarks)>| {
        // `Recipes::new` has already validated the selectors.
        if let Ok(selector) = selector.parse::<Selector>() {
            let state = state.clone();
            let handler = ElementContentHandlers::default().element(move |_: &mut Element<'_, '_>| {
                mark(&mut filter(&mut state.borrow_mut()).next);
                Ok(())
            });
            handlers.push((Cow::Owned(selector), handler));
        }
    };
    for image in &recipe.images {
        match image.attribute.clone() {
            Some(name) => add(&image.selector, Box::new(move |m| m.attributes.push(name.clone()))),
            None => add_with_descendants(&image.selector, |s| add(s, Box::new(|m| m.images = true))),
        }
    }
    for selector in &recipe.links {
        add_with_descendants(selector, |s| add(s, Box::new(|m| m.links = true)));
    }
    for selector in &recipe.drop {
        add_with_descendants(selector, |s| add(s, Box::new(|m| m.drop = true)));
    }
    handlers
}

fn add_with_descendants(selector: &str, mut add: impl FnMut(&str)) {
    add(selector);
    add(&format!("{selector} *"));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::extract_page;

    fn recipe(images: &[&str], links: &[&str], drop: &[&str]) -> Recipe {
        let to_strings = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Recipe {
            hosts: vec!["*.site.example".into(), "site.example".into()],
            images: to_strings(images),
            links: to_strings(links),
            drop: to_strings(drop),
        }
    }

    const PAGE: &str = "<head><meta property=og:image content=og.jpg><base href=/b/></head>
        <div class=ads><img src=ad.jpg><a href=ad.html>ad</a><p>open<img src=ad2.jpg></div>
        <main><ul class=photos><li><img src=1.jpg><a class=full href=photo?id=1>1</a><li><picture><source srcset=2.webp><img src=2.jpg></picture>
        <noscript><img src=3.jpg></noscript></ul>
        <a class=next href=page2>on</a><a href=about>about</a><div data-full=4><b style='background:url(5.jpg)'></b></div></main>
        <img src=after.jpg><style>p{background:url(6.jpg)}</style>";

    /// Returns the images and the links of a page, without the origin.
    fn extract(html: &str, recipe: Recipe) -> (Vec<String>, Vec<String>) {
        let recipes = Recipes::new(&[recipe]).unwrap();
        let url = Url::parse("http://www.site.example/").unwrap();
        let page = extract_page(html.as_bytes(), &url, Some("text/html"), "facecrawl", recipes.for_url(&url));
        let to_path = |url: &Url| url.as_str().trim_start_matches("http://www.site.example/b/").to_owned();
        let links = page.links.iter().map(|link| to_path(&link.url)).collect();
        (page.images.iter().map(|image| to_path(&image.url)).collect(), links)
    }

    #[test]
    fn recipe_limits_extraction_to_its_selectors() {
        let (images, links) = extract(PAGE, recipe(&["ul.photos"], &["a.next"], &[]));
        assert_eq!(images, ["1.jpg", "2.webp", "3.jpg"]);
        assert_eq!(links, ["page2"]);
        let (images, links) =
            extract(PAGE, recipe(&["a.full@href", "div[data-full]@data-full"], &[], &[".ads"]));
        assert_eq!(images, ["photo?id=1", "4"]);
        assert_eq!(links, ["photo?id=1", "page2", "about"]);
        let (images, _) = extract(PAGE, recipe(&["main > div"], &[], &[]));
        assert_eq!(images, ["5.jpg"]);
    }

    #[test]
    fn recipe_drop_selectors_exclude_content() {
        let (images, links) = extract(PAGE, recipe(&[], &[], &[".ads", "ul", "style", "meta"]));
        assert_eq!(images, ["5.jpg", "after.jpg"]);
        assert_eq!(links, ["page2", "about"]);
        let (images, _) = extract(PAGE, recipe(&["main"], &[], &["picture", "noscript"]));
        assert_eq!(images, ["1.jpg", "5.jpg"]);
    }

    #[test]
    fn applies_recipes_to_srcdoc_documents() {
        let html = "<main><iframe srcdoc='<img src=1.jpg><p class=ads><img src=2.jpg></p><a href=x></a>'></iframe></main>
            <iframe srcdoc='<main><img src=3.jpg></main><img src=4.jpg>'></iframe>
            <div class=ads><iframe srcdoc='<main><img src=5.jpg></main>'></iframe></div>";
        let (images, links) = extract(html, recipe(&["main"], &["nav"], &[".ads"]));
        assert_eq!(images, ["http://www.site.example/1.jpg", "http://www.site.example/3.jpg"]);
        assert!(links.is_empty());
    }

    #[test]
    fn recipe_applies_to_host_and_subdomains() {
        let recipes = Recipes::new(&[recipe(&[], &[], &["*"])]).unwrap();
        for (url, applies) in [
            ("http://site.example/", true),
            ("https://a.site.example/", true),
            ("http://other.example/", false),
        ] {
            assert_eq!(recipes.for_url(&Url::parse(url).unwrap()).is_some(), applies, "{url}");
        }
    }

    #[test]
    fn invalid_recipe_error_contains_entry_and_cause() {
        let error = |r: &[Recipe]| Recipes::new(r).unwrap_err().to_string();
        let good = recipe(&["img"], &["a[href='x,y']", "a:not(.b)", ".a\\,b"], &[]);
        assert!(Recipes::new(std::slice::from_ref(&good)).is_ok());
        let none = error(&[good, Recipe::default()]);
        assert!(none.starts_with("recipe 2, hosts: \"\" is empty; at least one host"), "{none}");
        let bad = Recipe { hosts: vec!["http://x/".into()], ..Recipe::default() };
        assert!(error(&[bad]).contains("is not a valid host; allowed are"));
        for (text, part) in [
            ("div >", "not a valid CSS selector"),
            ("", "not a valid CSS selector"),
            ("a + b", "not a valid CSS selector"),
            ("a:hover", "not a valid CSS selector"),
            ("a, b", "several selectors"),
        ] {
            let message = error(&[recipe(&[], &[], &[text])]);
            assert!(message.contains(&format!("recipe 1, drop: {text:?}")), "{message}");
            assert!(message.contains(part), "{message}");
        }
    }
}
