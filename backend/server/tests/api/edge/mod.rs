//! What reaches the service from outside before any handler runs: names, origins, bodies, keys.
mod confirmation;
mod fair_shares;
mod hosts;
mod likeness;
mod origins;
mod private_addresses;
mod renaming;
mod slow_readers;
mod streams;
mod structure;
mod unknown_keys;
