//! What reaches the service from outside before any handler runs: names, origins, bodies, keys.
mod private_addresses;
mod renaming;
mod structure;
