//! Paths that are guarded because of references to them, and not because of their own name.
//!
//! A guarded name (`names`) is recognized in a path by itself. But a link of such a name, a setting
//! of git or another hard link gives an ordinary path the same meaning. A survey of a writable tree
//! (`survey`) finds those paths once, before the first write in it. A run cannot add such a path
//! later, because the broker refuses to make it.
//!
//! | File | For |
//! |---|---|
//! | `names` | guarded names in all their spellings, as the tail of a path |
//! | `survey_results` | results of a survey, and the refusals that follow from them |
//! | `repository` | directories that git takes for a repository by their content |
//! | `survey` | the walk through a tree |
//! | `git` | the paths that the settings of a repository name |
//! | `git_part` | the meaning of each name in a directory of git's |
//! | `git_index` | the files that an index names |
//! | `git_texts` | the names in references and in the steps of a rebase |
//! | `project_part` | names of project settings that are checked |
//! | `project_allow_list` | those project settings that are harmless |
//! | `pointers` | `.git` files that lead to a repository |
//! | `settings_text` | the text of settings as entries |
//! | `settings_cache` | the paths that each settings file names, read once for a survey |
//! | `settings_reader` | the same, exactly as git reads it or not at all |
//! | `settings_allow_list` | settings that run no programs |
//! | `settings_words` | settings that are harmless by themselves |
//! | `destinations` | destinations of the user's branches, by all settings of a repository |
//! | `command_words` | the files that a command line of a setting may name |
//! | `view` | files and links as the run sees them |
//!
//! Absent on purpose: grants, requests for approval, refusals for other reasons.

mod command_words;
mod destinations;
mod git;
pub mod git_index;
pub mod git_part;
pub mod git_texts;
mod names;
pub mod pointers;
pub mod project_allow_list;
pub mod project_part;
pub mod repository;
pub mod settings_allow_list;
mod settings_cache;
mod settings_reader;
mod settings_text;
mod settings_words;
mod survey;
mod survey_results;
pub mod view;

pub use git::{SettingsVariables, settings_variables, use_settings_variables};
pub use names::{GuardedNames, fold_name};
pub use survey::{SurveyError, survey_directory};
pub use survey_results::{GuardedPaths, RunSurveys};
pub use view::{RootView, open_host_root};
