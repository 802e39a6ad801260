//! Applies a site recipe: decides for each element whether its images are used and whether its
//! links are followed.
//!
//! Every selector is registered twice: for the elements that it matches and, with ` *` appended,
//! for their descendants. The parser knows where an element ends even without an end tag.
use crate::recipes::SiteRecipe;
use lol_html::html_content::Element;
use lol_html::{ElementContentHandlers, Selector};
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

/// The marks of the recipe on the current element, and on the element around the current fragment.
#[derive(Clone, Debug, Default)]
pub(super) struct RecipeFilter {
    /// Whether the recipe names any selectors for images, or for links.
    images_named: bool,
    links_named: bool,
    /// Marks of the next element. The handlers set them, and `element` moves them to `current`.
    next: ElementMarks,
    current: ElementMarks,
    /// Marks of the element around a fragment that is parsed separately (`<noscript>`, `srcdoc`).
    around: ElementMarks,
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
            images_named: recipe.is_some_and(|r| !r.images.is_empty()),
            links_named: recipe.is_some_and(|r| !r.links.is_empty()),
            ..Self::default()
        }
    }

    /// Moves to the next element and returns the names of its attributes that contain image URLs.
    pub(super) fn element(&mut self) -> Vec<String> {
        self.current = std::mem::take(&mut self.next);
        if self.is_dropped() { Vec::new() } else { std::mem::take(&mut self.current.attributes) }
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.current.drop || self.around.drop
    }

    pub(super) fn allows_images(&self) -> bool {
        !self.is_dropped() && (!self.images_named || self.current.images || self.around.images)
    }

    pub(super) fn allows_links(&self) -> bool {
        !self.is_dropped() && (!self.links_named || self.current.links || self.around.links)
    }

    /// Starts a fragment inside the current element that is parsed separately. Returns the filter
    /// to restore afterwards.
    pub(super) fn enter_fragment(&mut self) -> Self {
        let outer = self.clone();
        self.around = ElementMarks {
            images: self.current.images,
            links: self.current.links,
            ..ElementMarks::default()
        };
        outer
    }
}

/// Gives access to the gate in a parser state.
pub(super) trait HasRecipeFilter {
    fn recipe_filter(&mut self) -> &mut RecipeFilter;
}

type Handler<'h> = (Cow<'static, Selector>, ElementContentHandlers<'h>);

/// Returns handlers that mark the elements that a recipe's selectors match.
pub(super) fn handlers<'h, S: HasRecipeFilter + 'h>(
    recipe: &SiteRecipe,
    state: &Rc<RefCell<S>>,
) -> Vec<Handler<'h>> {
    let mut handlers = Vec::new();
    let mut add = |selector: &str, mark: Box<dyn Fn(&mut ElementMarks)>| {
        // `Recipes::new` has already validated the selectors.
        if let Ok(selector) = selector.parse::<Selector>() {
            let state = state.clone();
            let handler = ElementContentHandlers::default().element(move |_: &mut Element<'_, '_>| {
                mark(&mut state.borrow_mut().recipe_filter().next);
                Ok(())
            });
            handlers.push((Cow::Owned(selector), handler));
        }
    };
    for pick in &recipe.images {
        match pick.attribute.clone() {
            Some(name) => add(&pick.selector, Box::new(move |m| m.attributes.push(name.clone()))),
            None => with_descendants(&pick.selector, |s| add(s, Box::new(|m| m.images = true))),
        }
    }
    for selector in &recipe.links {
        with_descendants(selector, |s| add(s, Box::new(|m| m.links = true)));
    }
    for selector in &recipe.drop {
        with_descendants(selector, |s| add(s, Box::new(|m| m.drop = true)));
    }
    handlers
}

fn with_descendants(selector: &str, mut add: impl FnMut(&str)) {
    add(selector);
    add(&format!("{selector} *"));
}
