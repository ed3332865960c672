//! Counter of connections whose programs may still send data. At the end of a run, data that
//! programs wrote before they ended is still sent, as a kernel would do.
//!
//! This module must not depend on the data.

use tokio::sync::watch;

/// All such connections of an egress proxy. The value is not used, only the number of receivers.
#[derive(Debug, Default)]
pub(crate) struct DrainTracker(watch::Sender<()>);

/// Guard of such a connection: counts it until dropped.
pub(crate) type DrainGuard = watch::Receiver<()>;

impl DrainTracker {
    pub(crate) fn start_guard(&self) -> DrainGuard {
        self.0.subscribe()
    }

    /// Waits until no connection is left.
    pub(crate) async fn all_quiet(&self) {
        self.0.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn the_last_one_ends_the_wait() {
        let drain_tracker = Arc::new(DrainTracker::default());
        let all = [drain_tracker.start_guard(), drain_tracker.start_guard()];
        let waited = Arc::clone(&drain_tracker);
        let wait = tokio::spawn(async move { waited.all_quiet().await });
        for speaking in all {
            assert!(!wait.is_finished());
            drop(speaking);
            tokio::task::yield_now().await;
        }
        wait.await.unwrap();
    }
}
