mod create;
mod events;
mod export;
mod schedule;
mod steer;
mod webhook;
mod webhook_secrets;
