//! Sandboxes from their first directory to their last, with isolation that is made of
//! nothing; and clones of hostile repositories.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod cloning;
mod fake_isolation;
mod keeping;
