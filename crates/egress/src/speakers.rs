//! Counter of connections whose programs may still send data. At the end of a run, data that
//! programs wrote before they ended is still sent, as a kernel would do.
//!
//! This module must not depend on the data.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// All such connections of an egress proxy.
#[derive(Debug, Default)]
pub(crate) struct Speakers {
    count: AtomicUsize,
    ended: Notify,
}

/// Guard of such a connection: counts it until dropped.
#[derive(Debug)]
pub(crate) struct Speaking(Arc<Speakers>);

impl Speakers {
    pub(crate) fn begin(self: &Arc<Self>) -> Speaking {
        self.count.fetch_add(1, Ordering::Relaxed);
        Speaking(Arc::clone(self))
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

impl Drop for Speaking {
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
        let speakers = Arc::new(Speakers::default());
        let all = [speakers.begin(), speakers.begin()];
        let waited = Arc::clone(&speakers);
        let wait = tokio::spawn(async move { waited.all_quiet().await });
        for speaking in all {
            assert!(!wait.is_finished());
            drop(speaking);
            tokio::task::yield_now().await;
        }
        wait.await.unwrap();
    }
}
