//! Who waits for what before work begins: budgets of memory, fair semaphores, places, and the
//! spread of retries. Callers of the API are limited in `server::admission` before.
//!
//! A task takes what it needs in this order, and releases it in any order:
//!
//! 1. A slot of its kind of job (`queue::Runner`), or the permits of `server::admission`.
//! 2. A place for a message to a webhook ([`places::Places`], `crawls::webhook`), or the permit to
//!    fetch a large sitemap (`crawls::page`). Nobody waits for them: the job returns to the queue.
//! 3. The permit of a host (`crawls::politeness`). It is granted by the database, and the number of
//!    concurrent requests adapts to the host, so it is no part of this module. A fetch releases it
//!    when it ends, and holds nothing below while it waits for it.
//! 4. The permit to read a sitemap ([`places::FairSemaphore`], `crawls::page`).
//! 5. Memory for the process that decodes a video, then memory for decoded images
//!    ([`budget::AnalysisMemory`]).
//! 6. A thread for work on pixels ([`places::FairSemaphore`], `images::analyze`), the queues of the
//!    models (`inference`), and the turn to parse a playlist (`videos::file`). Their holders wait
//!    for nothing.
//! 7. Locks of the database, in the order of docs/explanation/ARCHITECTURE.md. No transaction waits
//!    for an earlier step.
//!
//! No order of waits can lock up: a task that waits at one step holds only what earlier steps
//! granted, and no task waits for a share of a budget of which it holds another.
pub(crate) mod budget;
pub(crate) mod places;
