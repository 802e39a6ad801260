mod batch;
mod compare;
mod damaged;
mod detect;
mod input;
mod search;
mod stored;
