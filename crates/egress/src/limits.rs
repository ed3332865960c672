//! Limits for the amount and the rate of data through the egress proxy.
//!
//! This module must not depend on sockets or events.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stockade_model::EgressLimits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Default for the most connections at once, if descriptors permit it.
const DEFAULT_CONNECTIONS_MAX: u64 = 16_384;
/// Descriptors of one connection: both ends.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Fraction of all descriptors that is reserved for listeners, connects in progress and the rest of
/// the process, and its minimum.
const RESERVED_DIVISOR: u64 = 16;
const RESERVED_DESCRIPTORS_MIN: u64 = 128;

/// Limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EgressLimitReached {
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
pub(crate) enum TrafficDirection {
    /// Out of the sandbox.
    Up,
    /// Into the sandbox.
    Down,
}

/// Token bucket that fills at a rate and may be overdrawn. A task that overdraws it waits.
#[derive(Debug)]
struct TokenBucket {
    rate: f64,
    capacity: f64,
    level: f64,
    at: Instant,
}

impl TokenBucket {
    fn new(rate: f64, capacity: u64) -> Self {
        let capacity = capacity.max(1) as f64;
        Self { rate, capacity, level: capacity, at: Instant::now() }
    }

    fn refill_tokens(&mut self) {
        let now = Instant::now();
        self.level = (self.level + self.rate * (now - self.at).as_secs_f64()).min(self.capacity);
        self.at = now;
    }

    /// Takes one token if there is one.
    fn try_one(&mut self) -> bool {
        self.refill_tokens();
        let there = self.level >= 1.0;
        if there {
            self.level -= 1.0;
        }
        there
    }

    /// Takes tokens and returns how long to wait for them.
    fn take_tokens(&mut self, amount: u64) -> Duration {
        self.refill_tokens();
        self.level -= amount as f64;
        Duration::from_secs_f64((-self.level / self.rate).clamp(0.0, 3600.0))
    }
}

/// Current state of the limits.
#[derive(Debug)]
pub(crate) struct TrafficMeter {
    requests: Option<Mutex<TokenBucket>>,
    connections: Option<Mutex<TokenBucket>>,
    up: Option<Mutex<TokenBucket>>,
    down: Option<Mutex<TokenBucket>>,
    slots: Arc<Semaphore>,
    total_max: u64,
    total: AtomicU64,
    /// Most bytes of one turn, so that a low rate is smooth.
    chunk: usize,
}

/// Slot for one concurrent connection; released when dropped.
pub(crate) type ConnectionSlot = OwnedSemaphorePermit;

impl TrafficMeter {
    /// Creates the state. `descriptors`: how many this process may have open.
    pub(crate) fn new(limits: &EgressLimits, descriptors: u64) -> Self {
        let bucket = |rate, capacity| Mutex::new(TokenBucket::new(rate, capacity));
        let slowest = [limits.up_bytes_per_second, limits.down_bytes_per_second].into_iter().flatten().min();
        let reserved_descriptors = (descriptors / RESERVED_DIVISOR).max(RESERVED_DESCRIPTORS_MIN);
        let possible = (descriptors.saturating_sub(reserved_descriptors) / DESCRIPTORS_PER_CONNECTION).max(8);
        let concurrent_max = limits.connections.unwrap_or(DEFAULT_CONNECTIONS_MAX).min(possible);
        let concurrent_max = usize::try_from(concurrent_max).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            requests: limits.requests_per_minute.map(|n| bucket(n as f64 / 60.0, n)),
            connections: limits.connections_per_second.map(|n| bucket(n.max(1) as f64, n)),
            up: limits.up_bytes_per_second.map(|n| bucket(n.max(1) as f64, n / 10)),
            down: limits.down_bytes_per_second.map(|n| bucket(n.max(1) as f64, n / 10)),
            slots: Arc::new(Semaphore::new(concurrent_max)),
            total_max: limits.total_bytes.unwrap_or(u64::MAX),
            total: AtomicU64::new(0),
            chunk: slowest.map_or(usize::MAX, |rate| (rate / 20).clamp(512, 1 << 20) as usize),
        }
    }

    fn try_take_token(bucket: Option<&Mutex<TokenBucket>>) -> bool {
        bucket.is_none_or(|b| b.lock().unwrap_or_else(PoisonError::into_inner).try_one())
    }

    /// Takes a slot for an outgoing connection.
    pub(crate) fn acquire_outgoing_slot(&self) -> Result<ConnectionSlot, EgressLimitReached> {
        if self.total.load(Ordering::Relaxed) >= self.total_max {
            return Err(EgressLimitReached::TotalBytes);
        }
        if !Self::try_take_token(self.connections.as_ref()) {
            return Err(EgressLimitReached::NewConnections);
        }
        self.acquire_slot()
    }

    /// Takes a slot for a connection to the egress proxy itself: only the number of connections
    /// counts.
    pub(crate) fn acquire_slot(&self) -> Result<ConnectionSlot, EgressLimitReached> {
        Arc::clone(&self.slots).try_acquire_owned().map_err(|_| EgressLimitReached::Concurrent)
    }

    /// Counts one request.
    pub(crate) fn count_request(&self) -> Result<(), EgressLimitReached> {
        if Self::try_take_token(self.requests.as_ref()) { Ok(()) } else { Err(EgressLimitReached::Requests) }
    }

    /// Returns the most bytes to move in one turn.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk
    }

    /// Counts bytes that are about to be moved, and waits for the rate limit.
    pub(crate) async fn count_bytes(
        &self,
        direction: TrafficDirection,
        count: usize,
    ) -> Result<(), EgressLimitReached> {
        let before = self.total.fetch_add(count as u64, Ordering::Relaxed);
        if before.saturating_add(count as u64) > self.total_max {
            return Err(EgressLimitReached::TotalBytes);
        }
        let bucket = match direction {
            TrafficDirection::Up => self.up.as_ref(),
            TrafficDirection::Down => self.down.as_ref(),
        };
        let wait = bucket.map(|b| b.lock().unwrap_or_else(PoisonError::into_inner).take_tokens(count as u64));
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

    fn meter(limits: EgressLimits) -> Arc<TrafficMeter> {
        Arc::new(TrafficMeter::new(&limits, 100_000))
    }

    #[tokio::test(start_paused = true)]
    async fn new_connections_come_back_with_time() {
        let meter = meter(EgressLimits { connections_per_second: Some(3), ..EgressLimits::default() });
        for _ in 0..3 {
            drop(meter.acquire_outgoing_slot().unwrap());
        }
        assert_eq!(meter.acquire_outgoing_slot().unwrap_err(), EgressLimitReached::NewConnections);
        tokio::time::advance(Duration::from_millis(400)).await;
        drop(meter.acquire_outgoing_slot().unwrap());
        assert_eq!(meter.acquire_outgoing_slot().unwrap_err(), EgressLimitReached::NewConnections);
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_released() {
        let meter = meter(EgressLimits { connections: Some(2), ..EgressLimits::default() });
        let first = meter.acquire_outgoing_slot().unwrap();
        let _second = meter.acquire_outgoing_slot().unwrap();
        assert_eq!(meter.acquire_outgoing_slot().unwrap_err(), EgressLimitReached::Concurrent);
        drop(first);
        drop(meter.acquire_outgoing_slot().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn few_descriptors_mean_few_connections() {
        let meter = Arc::new(TrafficMeter::new(&EgressLimits::default(), 256));
        let slots: Vec<_> = std::iter::from_fn(|| meter.acquire_outgoing_slot().ok()).collect();
        assert_eq!(slots.len(), 64);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_take_the_time_of_the_rate_limit() {
        let meter = meter(EgressLimits { up_bytes_per_second: Some(100_000), ..EgressLimits::default() });
        let start = Instant::now();
        for _ in 0..100 {
            meter.count_bytes(TrafficDirection::Up, 5_000).await.unwrap();
        }
        let took = start.elapsed().as_secs_f64();
        assert!((4.8..5.1).contains(&took), "{took}");
        // The other direction is not slowed.
        let start = Instant::now();
        meter.count_bytes(TrafficDirection::Down, 1 << 30).await.unwrap();
        assert!(start.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn a_total_is_a_total() {
        let meter = meter(EgressLimits { total_bytes: Some(10), ..EgressLimits::default() });
        meter.count_bytes(TrafficDirection::Up, 6).await.unwrap();
        meter.count_bytes(TrafficDirection::Down, 4).await.unwrap();
        assert_eq!(meter.count_bytes(TrafficDirection::Down, 1).await, Err(EgressLimitReached::TotalBytes));
        assert_eq!(meter.acquire_outgoing_slot().unwrap_err(), EgressLimitReached::TotalBytes);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_a_minute() {
        let meter = meter(EgressLimits { requests_per_minute: Some(60), ..EgressLimits::default() });
        for _ in 0..60 {
            meter.count_request().unwrap();
        }
        assert_eq!(meter.count_request(), Err(EgressLimitReached::Requests));
        tokio::time::advance(Duration::from_millis(1001)).await;
        meter.count_request().unwrap();
    }
}
