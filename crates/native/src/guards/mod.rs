//! Places that are guarded because of what leads to them, and not by their own name.
//!
//! A guarded name (`names`) is found in a path by itself. But a link of such a name, a
//! setting of git or another hard link makes an ordinary path mean the same file. A
//! survey of a writable tree (`survey`) finds those once, before the first write in it;
//! what a run does later cannot add one, because the broker refuses to make it.
//!
//! | File | For |
//! |---|---|
//! | `names` | guarded names as the tail of a path spells them |
//! | `places` | what a survey found, and what it refuses |
//! | `repository` | directories that git takes for a repository by what they hold |
//! | `survey` | the walk through a tree |
//! | `git` | what the settings of a repository name |
//! | `git_part` | what each name in a directory of git's is for |
//! | `git_index` | which files an index names |
//! | `git_texts` | what references and the steps of a rebase name |
//! | `project_part` | which names are settings of a project that are judged |
//! | `project_judge` | which of those settings are harmless |
//! | `pointers` | which `.git` files lead to a repository |
//! | `settings_text` | the text of settings as entries |
//! | `settings_reader` | the same, exactly as git reads it or not at all |
//! | `settings_judge` | which settings carry nothing that runs |
//! | `settings_words` | those that are harmless by themselves |
//! | `destinations` | where branches of the person's go, by all settings of a repository |
//! | `command_words` | the files that a command line of a setting may mean |
//! | `view` | files and links as the run sees them |
//!
//! Absent on purpose: grants, questions, what is refused for other reasons.

mod command_words;
mod destinations;
mod git;
pub(crate) mod git_index;
pub(crate) mod git_part;
pub(crate) mod git_texts;
mod names;
mod places;
pub(crate) mod pointers;
pub(crate) mod project_judge;
pub(crate) mod project_part;
pub(crate) mod repository;
pub(crate) mod settings_judge;
mod settings_reader;
mod settings_text;
mod settings_words;
mod survey;
pub(crate) mod view;

pub(crate) use git::{SettingsVariables, settings_variables, use_settings_variables};
pub(crate) use names::{GuardedNames, fold};
pub(crate) use places::{GuardedPlaces, Surveys};
pub(crate) use survey::{SurveyError, survey_directory};
pub(crate) use view::{View, open_host_root};
