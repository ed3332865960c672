//! End to end and escape suites live in this package's test binaries.
