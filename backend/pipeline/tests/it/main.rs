//! Tests of the pipeline with drawn people, real models, a real Postgres and a real HTTP site.
#![allow(clippy::unwrap_used)]

mod analyze;
mod budget;
mod claims;
mod clocks;
mod control;
mod crawl;
mod crawled_videos;
mod duplicates;
mod enhance;
mod erased;
mod fairness;
mod maintenance;
mod part_pictures;
mod passes;
mod people;
mod pixels;
mod politeness;
mod quality;
mod revisits;
mod scan;
mod scanned_videos;
mod sitemaps;
mod stored_videos;
mod support;
mod turned;
mod validation;
mod video_parts;
mod videos;
