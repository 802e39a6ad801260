mod create;
mod events;
mod export;
mod series;
mod steer;
mod webhook;
mod webhook_secrets;
