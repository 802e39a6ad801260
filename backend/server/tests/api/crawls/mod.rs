mod create;
mod events;
mod export;
mod schedule;
mod steer;
mod unprocessed;
mod webhook;
mod webhook_secrets;
