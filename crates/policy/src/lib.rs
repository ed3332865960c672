//! The policy: which requests may run, and with which powers. Configuration in layers, profiles, rules, and
//! the decision.
//!
//! Three questions stay separate (L1): [`decide_request`] decides whether a request may run, [`resolve_profile`]
//! with which powers; the approver is not known here. All functions are pure, with two exceptions: [`load::load_settings`]
//! reads the given files, and [`mounts`] reads the mount table and resolves symbolic links. Absent on
//! purpose: clocks, environment variables, approvers, caches, and any way to run a program.

#![forbid(unsafe_code)]

mod act;
pub mod amend;
mod decide;
mod draft;
mod egress;
mod egress_file;
mod environment;
mod error;
pub mod examples;
mod file;
mod format;
mod glob;
mod granted_writes;
mod groups;
mod guarded;
mod host_rules;
mod hosts;
mod import;
mod known_changes;
mod link_targets;
pub mod load;
mod merge;
mod mode;
pub mod mounts;
mod notify;
mod obligations;
mod parse;
mod patch;
mod pattern;
mod registry;
mod requested;
mod resolve;
mod review;
mod rules;
mod secret_rules;
mod settings;
mod shipped;
mod shipped_text;
mod spec;
pub mod suggest;
pub mod table;
mod text;
pub mod trust;
mod words;

pub use act::{ActContext, ActRuling, consider_act, decide_act};
pub use decide::{
    PolicyRuling, PolicyStatement, consider_request, decide_request, may_escalate, mode_answers, rule_in, rule_on,
};
pub use draft::DraftRule;
pub use environment::{effective_environment, missed_variables, names_package_registry};
pub use error::{ConfigError, TextPosition};
pub use file::{ApproverName, CombiningAlgorithm, ConfigFile, FileOperation, ProvenanceSection};
pub use format::format_config;
pub use granted_writes::{configured_files, grants_for_refused, written_hooks};
pub use groups::{HostGroup, groups_with, host_groups};
pub use guarded::{GuardedName, advice_instead_of_grant, find_guarded_name, is_history, is_registry_settings};
pub use hosts::{HostEntry, check_breadth};
pub use import::{ImportDeviation, ImportNote, ImportSource, ImportTool, ImportedPolicy, SourceScope, import_policy};
pub use merge::LayerText;
pub use mode::{ClassAnswers, GrantClass, ModeAnswers, mode_name};
pub use notify::{NotifyOn, NotifySettings};
pub use obligations::Obligations;
pub use patch::{FileChange, PatchError, changes_of_patch};
pub use pattern::{GrantEntry, GrantText, PathFact, PathPattern, RuleName, TimeWindow, WordPattern};
pub use registry::{BUILT_IN_NOTICE, MAX_SESSIONS, PolicyRegistry, RegisterError};
pub use requested::{acts_of_power, find_strictest};
pub use resolve::{ResolveError, complete_grants, require_profile, resolve_profile};
pub use review::{ReviewApi, ReviewKey, ReviewSettings};
pub use rules::{Act, PolicyRule, RequestContext, RuleBook, RuleExplanation, RuleMatch, RuleSet};
pub use rules::{file_change as parse_file_change, parse_target, tool_call as parse_tool_call};
pub use settings::{OwnDirectories, OwnPathStep, PolicySettings, SettingExplanation};
pub use spec::{ConfigLayer, SourcedValue, ValueOrigin};
