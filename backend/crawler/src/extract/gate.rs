//! A site recipe at work: of each element, whether its images are taken and its links followed.
//!
//! Every selector is registered twice: for the elements it matches and, with ` *` behind it, for what is inside them. The parser knows
//! when an element ends, also where the page does not say so.
use crate::recipes::SiteRecipe;
use lol_html::html_content::Element;
use lol_html::{ElementContentHandlers, Selector};
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

/// What the recipe says of the element that is being read, and of what the whole part lies in.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    /// Whether the recipe names images, or links, at all.
    images_named: bool,
    links_named: bool,
    /// Of the next element; filled by the handlers, taken by `element`.
    next: Marks,
    /// Of the element that is being read.
    now: Marks,
    /// Of the element that a part read by itself (`<noscript>`) lies in.
    around: Marks,
}

#[derive(Clone, Debug, Default)]
struct Marks {
    images: bool,
    links: bool,
    drop: bool,
    /// Attributes that hold images.
    attributes: Vec<String>,
}

impl Gate {
    pub(super) fn new(recipe: Option<&SiteRecipe>) -> Self {
        Self {
            images_named: recipe.is_some_and(|r| !r.images.is_empty()),
            links_named: recipe.is_some_and(|r| !r.links.is_empty()),
            ..Self::default()
        }
    }

    /// Goes on to the next element; the attributes of it that hold images.
    pub(super) fn element(&mut self) -> Vec<String> {
        self.now = std::mem::take(&mut self.next);
        if self.is_dropped() { Vec::new() } else { std::mem::take(&mut self.now.attributes) }
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.now.drop || self.around.drop
    }

    pub(super) fn takes_images(&self) -> bool {
        !self.is_dropped() && (!self.images_named || self.now.images || self.around.images)
    }

    pub(super) fn takes_links(&self) -> bool {
        !self.is_dropped() && (!self.links_named || self.now.links || self.around.links)
    }

    /// A part inside the present element is read by itself; the gate to go back to.
    pub(super) fn enter(&mut self) -> Self {
        let outer = self.clone();
        self.around = Marks { images: self.now.images, links: self.now.links, ..Marks::default() };
        outer
    }
}

/// Has a gate.
pub(super) trait Marked {
    fn gate(&mut self) -> &mut Gate;
}

type Handler<'h> = (Cow<'static, Selector>, ElementContentHandlers<'h>);

/// Handlers that mark what a recipe's selectors match.
pub(super) fn handlers<'h, S: Marked + 'h>(recipe: &SiteRecipe, state: &Rc<RefCell<S>>) -> Vec<Handler<'h>> {
    let mut handlers = Vec::new();
    let mut add = |selector: &str, mark: Box<dyn Fn(&mut Marks)>| {
        // The selectors were checked when the recipe was made.
        if let Ok(selector) = selector.parse::<Selector>() {
            let state = state.clone();
            let handler = ElementContentHandlers::default().element(move |_: &mut Element<'_, '_>| {
                mark(&mut state.borrow_mut().gate().next);
                Ok(())
            });
            handlers.push((Cow::Owned(selector), handler));
        }
    };
    for pick in &recipe.images {
        match pick.attribute.clone() {
            Some(name) => add(&pick.selector, Box::new(move |m| m.attributes.push(name.clone()))),
            None => with_inside(&pick.selector, |s| add(s, Box::new(|m| m.images = true))),
        }
    }
    for selector in &recipe.links {
        with_inside(selector, |s| add(s, Box::new(|m| m.links = true)));
    }
    for selector in &recipe.drop {
        with_inside(selector, |s| add(s, Box::new(|m| m.drop = true)));
    }
    handlers
}

fn with_inside(selector: &str, mut add: impl FnMut(&str)) {
    add(selector);
    add(&format!("{selector} *"));
}
