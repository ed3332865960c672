//! Limits for the amount and the rate of data through the egress proxy.
//!
//! This module must not depend on sockets or events.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stockade_model::EgressLimits;
use tokio::time::Instant;

/// Default for the most connections at once, if descriptors permit it.
const CONCURRENT_DEFAULT: u64 = 16_384;
/// Descriptors of one connection: both ends.
const DESCRIPTORS_EACH: u64 = 2;
/// Fraction of all descriptors that is reserved for listeners, connects in progress and the rest of
/// the process, and its minimum.
const KEPT_PART: u64 = 16;
const KEPT_MIN: u64 = 128;

/// Limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reached {
    /// See [`EgressLimits::requests_per_minute`].
    #[error("limit of requests a minute")]
    Requests,
    /// See [`EgressLimits::connections_per_second`].
    #[error("limit of new connections a second")]
    NewConnections,
    /// See [`EgressLimits::connections`].
    #[error("limit of connections at once")]
    Concurrent,
    /// See [`EgressLimits::total_bytes`].
    #[error("limit of bytes in a run")]
    TotalBytes,
}

/// Direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Out of the sandbox.
    Up,
    /// Into the sandbox.
    Down,
}

/// Token bucket that fills at a rate and may be overdrawn. A task that overdraws it waits.
#[derive(Debug)]
struct Bucket {
    rate: f64,
    capacity: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    fn new(rate: u64, capacity: u64) -> Self {
        let capacity = capacity.max(1) as f64;
        Self { rate: rate.max(1) as f64, capacity, level: capacity, at: Instant::now() }
    }

    fn fill(&mut self) {
        let now = Instant::now();
        self.level = (self.level + self.rate * (now - self.at).as_secs_f64()).min(self.capacity);
        self.at = now;
    }

    /// Takes one token if there is one.
    fn try_one(&mut self) -> bool {
        self.fill();
        let there = self.level >= 1.0;
        if there {
            self.level -= 1.0;
        }
        there
    }

    /// Takes tokens and returns how long to wait for them.
    fn take(&mut self, amount: u64) -> Duration {
        self.fill();
        self.level -= amount as f64;
        Duration::from_secs_f64((-self.level / self.rate).clamp(0.0, 3600.0))
    }
}

/// Current state of the limits.
#[derive(Debug)]
pub(crate) struct Meter {
    requests: Option<Mutex<Bucket>>,
    connections: Option<Mutex<Bucket>>,
    up: Option<Mutex<Bucket>>,
    down: Option<Mutex<Bucket>>,
    concurrent_max: u64,
    concurrent: AtomicU64,
    total_max: u64,
    total: AtomicU64,
    /// Most bytes of one turn, so that a low rate is smooth.
    chunk: usize,
}

/// Slot for one concurrent connection; released when dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Meter>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.concurrent.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Meter {
    /// Creates the state. `descriptors`: how many this process may have open.
    pub(crate) fn new(limits: &EgressLimits, descriptors: u64) -> Self {
        let bucket = |rate: Option<u64>, capacity: u64| rate.map(|rate| Mutex::new(Bucket::new(rate, capacity)));
        let per_minute = limits.requests_per_minute;
        let slowest = [limits.up_bytes_per_second, limits.down_bytes_per_second].into_iter().flatten().min();
        let kept = (descriptors / KEPT_PART).max(KEPT_MIN);
        let possible = (descriptors.saturating_sub(kept) / DESCRIPTORS_EACH).max(8);
        Self {
            requests: per_minute.map(|n| {
                let mut bucket = Bucket::new(1, n);
                bucket.rate = n as f64 / 60.0;
                Mutex::new(bucket)
            }),
            connections: bucket(limits.connections_per_second, limits.connections_per_second.unwrap_or(0)),
            up: bucket(limits.up_bytes_per_second, limits.up_bytes_per_second.unwrap_or(0) / 10),
            down: bucket(limits.down_bytes_per_second, limits.down_bytes_per_second.unwrap_or(0) / 10),
            concurrent_max: limits.connections.unwrap_or(CONCURRENT_DEFAULT).min(possible),
            concurrent: AtomicU64::new(0),
            total_max: limits.total_bytes.unwrap_or(u64::MAX),
            total: AtomicU64::new(0),
            chunk: slowest.map_or(usize::MAX, |rate| (rate / 20).clamp(512, 1 << 20) as usize),
        }
    }

    fn one(bucket: Option<&Mutex<Bucket>>) -> bool {
        bucket.is_none_or(|b| b.lock().unwrap_or_else(PoisonError::into_inner).try_one())
    }

    /// Takes a slot for an outgoing connection.
    pub(crate) fn connection(self: &Arc<Self>) -> Result<Place, Reached> {
        if self.total.load(Ordering::Relaxed) >= self.total_max {
            return Err(Reached::TotalBytes);
        }
        if !Self::one(self.connections.as_ref()) {
            return Err(Reached::NewConnections);
        }
        self.place()
    }

    /// Takes a slot for a connection to the egress proxy itself: only the number of connections
    /// counts.
    pub(crate) fn place(self: &Arc<Self>) -> Result<Place, Reached> {
        if self.concurrent.fetch_add(1, Ordering::Relaxed) >= self.concurrent_max {
            self.concurrent.fetch_sub(1, Ordering::Relaxed);
            return Err(Reached::Concurrent);
        }
        Ok(Place(Arc::clone(self)))
    }

    /// Counts one request.
    pub(crate) fn request(&self) -> Result<(), Reached> {
        if Self::one(self.requests.as_ref()) { Ok(()) } else { Err(Reached::Requests) }
    }

    /// Returns the most bytes to move in one turn.
    pub(crate) fn chunk(&self) -> usize {
        self.chunk
    }

    /// Counts bytes that are about to be moved, and waits for the rate limit.
    pub(crate) async fn bytes(&self, direction: Direction, count: usize) -> Result<(), Reached> {
        let before = self.total.fetch_add(count as u64, Ordering::Relaxed);
        if before.saturating_add(count as u64) > self.total_max {
            return Err(Reached::TotalBytes);
        }
        let bucket = match direction {
            Direction::Up => self.up.as_ref(),
            Direction::Down => self.down.as_ref(),
        };
        let wait = bucket.map(|b| b.lock().unwrap_or_else(PoisonError::into_inner).take(count as u64));
        match wait {
            Some(wait) if !wait.is_zero() => tokio::time::sleep(wait).await,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(limits: EgressLimits) -> Arc<Meter> {
        Arc::new(Meter::new(&limits, 100_000))
    }

    #[tokio::test(start_paused = true)]
    async fn new_connections_come_back_with_time() {
        let meter = meter(EgressLimits { connections_per_second: Some(3), ..EgressLimits::default() });
        for _ in 0..3 {
            meter.connection().unwrap();
        }
        assert_eq!(meter.connection().unwrap_err(), Reached::NewConnections);
        tokio::time::advance(Duration::from_millis(400)).await;
        meter.connection().unwrap();
        assert_eq!(meter.connection().unwrap_err(), Reached::NewConnections);
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_given_back() {
        let meter = meter(EgressLimits { connections: Some(2), ..EgressLimits::default() });
        let first = meter.connection().unwrap();
        let _second = meter.connection().unwrap();
        assert_eq!(meter.connection().unwrap_err(), Reached::Concurrent);
        drop(first);
        meter.connection().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn few_descriptors_mean_few_connections() {
        let meter = Arc::new(Meter::new(&EgressLimits::default(), 256));
        let places: Vec<_> = std::iter::from_fn(|| meter.connection().ok()).collect();
        assert_eq!(places.len(), 64);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_take_the_time_that_the_rate_says() {
        let meter = meter(EgressLimits { up_bytes_per_second: Some(100_000), ..EgressLimits::default() });
        let start = Instant::now();
        for _ in 0..100 {
            meter.bytes(Direction::Up, 5_000).await.unwrap();
        }
        let took = start.elapsed().as_secs_f64();
        assert!((4.8..5.1).contains(&took), "{took}");
        // The other direction is not slowed.
        let start = Instant::now();
        meter.bytes(Direction::Down, 1 << 30).await.unwrap();
        assert!(start.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn a_total_is_a_total() {
        let meter = meter(EgressLimits { total_bytes: Some(10), ..EgressLimits::default() });
        meter.bytes(Direction::Up, 6).await.unwrap();
        meter.bytes(Direction::Down, 4).await.unwrap();
        assert_eq!(meter.bytes(Direction::Down, 1).await, Err(Reached::TotalBytes));
        assert_eq!(meter.connection().unwrap_err(), Reached::TotalBytes);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_a_minute() {
        let meter = meter(EgressLimits { requests_per_minute: Some(60), ..EgressLimits::default() });
        for _ in 0..60 {
            meter.request().unwrap();
        }
        assert_eq!(meter.request(), Err(Reached::Requests));
        tokio::time::advance(Duration::from_millis(1001)).await;
        meter.request().unwrap();
    }
}
