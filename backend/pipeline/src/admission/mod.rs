//! Limits concurrent work: memory budgets, fair semaphores, places, and the spread of retries.
//! `server::admission` limits the callers of the API earlier.
//!
//! A task acquires resources in this order, and releases them in any order:
//!
//! 1. A slot of its kind of job (`queue::Runner`), or the permits of `server::admission`.
//! 2. A place for a message to a webhook ([`places::Places`], `crawls::webhook`), or the permit to
//!    fetch a large sitemap (`crawls::page`). If none is free, the job returns to the queue.
//! 3. The permit of a host (`crawls::politeness`). It is granted by the database, and the number of
//!    concurrent requests adapts to the host, so it is not part of this module. A fetch releases it
//!    when it ends. A fetch that waits for it holds none of the following resources.
//! 4. The permit to read a sitemap ([`places::FairSemaphore`], `crawls::page`).
//! 5. Memory for the process that decodes a video, then memory for decoded images
//!    ([`budget::AnalysisMemory`]).
//! 6. A thread for work on pixels ([`places::FairSemaphore`], `images::analyze`), the queues of the
//!    models (`inference`), and the permit to parse a playlist (`videos::file`). Their holders
//!    never wait.
//! 7. Locks of the database, in the order of docs/explanation/ARCHITECTURE.md. No transaction waits
//!    for an earlier step.
//!
//! Deadlocks are impossible: a task that waits at one step holds only resources of earlier steps,
//! and no task waits for a second share of the same budget.
pub(crate) mod budget;
pub(crate) mod places;
