mod gpu;
mod health;
mod metrics;
mod page;
