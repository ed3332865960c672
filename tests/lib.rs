//! End to end and escape suites live in this package's test binaries.

pub mod cross_section;
pub mod engines;

/// The isolation that an attempt runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Namespaces.
    Full,
    /// None.
    Restricted,
}

impl Level {
    /// The word used in reports and arguments.
    pub fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Restricted => "restricted",
        }
    }
}
