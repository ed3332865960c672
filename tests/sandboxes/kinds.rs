//! The kinds of sandboxes that are judged. A case knows none of them: it asks what
//! the kind itself declares.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use stockade_egress::{LookupError, Resolve};
use stockade_engine::Sandboxes;
use stockade_model::HostName;
use stockade_native::NativeSandboxes;

/// A kind.
pub struct Kind {
    /// Its name in tasks.
    pub name: &'static str,
    /// Makes its sandboxes.
    pub sandboxes: fn() -> Arc<dyn Sandboxes>,
}

/// All of them.
pub const KINDS: &[Kind] =
    &[Kind { name: "native", sandboxes: || Arc::new(NativeSandboxes::default().resolving(Arc::new(Table))) }];

/// Every name beneath `.test` but one is this machine.
struct Table;

impl Resolve for Table {
    fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, LookupError> {
        match name.as_str() {
            "nobody.test" => Err(LookupError::NoSuchName),
            name if name.ends_with(".test") => Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
            _ => Err(LookupError::NoSuchName),
        }
    }
}
