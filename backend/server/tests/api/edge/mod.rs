//! Tests the restrictions on callers: hosts, origins, bodies, keys, shares and confirmations.
mod confirmation;
mod deletions;
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
