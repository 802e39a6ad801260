mod create;
mod events;
mod steer;
