mod batch;
mod compare;
mod detect;
mod input;
mod search;
mod stored;
