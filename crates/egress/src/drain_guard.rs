//! Counter of connections whose programs may still send data. At the end of a run, data that
//! programs wrote before they ended is still sent, as a kernel would do.
//!
//! This module must not depend on the data.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// All such connections of an egress proxy.
#[derive(Debug, Default)]
pub(crate) struct DrainTracker {
    count: AtomicUsize,
    ended: Notify,
}

/// Guard of such a connection: counts it until dropped.
#[derive(Debug)]
pub(crate) struct DrainGuard(Arc<DrainTracker>);

impl DrainTracker {
    pub(crate) fn start_guard(self: &Arc<Self>) -> DrainGuard {
        self.count.fetch_add(1, Ordering::Relaxed);
        DrainGuard(Arc::clone(self))
    }

    /// Waits until no connection is left.
    pub(crate) async fn all_quiet(&self) {
        loop {
            let ended = self.ended.notified();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for DrainGuard {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Release) == 1 {
            self.0.ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
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
