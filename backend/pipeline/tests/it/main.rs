//! Tests of the pipeline with drawn people, real models, a real Postgres and a real HTTP site.
#![allow(clippy::unwrap_used)]

mod analyze;
mod budget;
mod clustering_index;
mod control;
mod crawl;
mod crawled_videos;
mod duplicates;
mod jobs;
mod maintenance;
mod mqtt;
mod passes;
mod people;
mod politeness;
mod quality;
mod revisits;
mod scan;
mod scanned_videos;
mod sitemaps;
mod stored_videos;
mod streams;
mod support;
mod video_parts;
mod videos;
mod watch;
