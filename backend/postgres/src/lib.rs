//! A private Postgres cluster that lives and dies with the process.
