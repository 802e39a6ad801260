//! Crawls politely: frontier rules, guarded requests, robots.txt, and extraction of links and
//! images. This crate contains no database access and no models.

pub mod config;
pub mod directives;
pub mod extract;
pub mod fetch;
pub mod frontier;
pub mod guard;
pub mod hls;
pub mod pace;
pub mod recipes;
pub mod referrer;
pub mod robots;
pub mod scope;
pub mod sitemap;
pub mod urls;

pub use config::{Config, Roots, RootsError};
pub use directives::Directives;
pub use extract::{ImageCandidate, Link, Page, extract_page};
pub use fetch::{FetchError, Fetched, Fetcher, HopPolicy, Request, Validators};
pub use guard::{Guard, GuardError};
pub use pace::Pace;
pub use recipes::{Recipe, RecipeError, Recipes};
pub use referrer::{Referrer, ReferrerPolicy};
pub use robots::Robots;
pub use scope::{Scope, SeedIndex};
pub use sitemap::Sitemap;
