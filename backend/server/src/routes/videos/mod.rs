//! Videos: what an analysis returns.
mod answer;

pub(crate) use answer::VideoAnswer;
