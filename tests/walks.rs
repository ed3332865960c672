//! The walks of ARCHITECTURE.md name functions and files that exist, and stay short.

use std::collections::BTreeSet;
use std::fs;

use super::root;

/// Heading of the walks in ARCHITECTURE.md, and the most files of each walk.
const SECTION: &str = "## Two walks through the code";
const MAX_FILES: [(&str, usize); 2] = [("### One request", 13), ("### One held call", 10)];

#[test]
fn walks_name_existing_functions_in_few_files() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split_once(SECTION).unwrap().1.split("\n## ").next().unwrap();
    for (heading, max_files) in MAX_FILES {
        let walk = section.split_once(heading).unwrap().1.split("\n### ").next().unwrap();
        let steps = walk.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
        let mut files = BTreeSet::new();
        for step in steps {
            let names: Vec<&str> = step.split('`').skip(1).step_by(2).take(2).collect();
            let [file, function] = names[..] else { panic!("no file and function: {step}") };
            let code =
                fs::read_to_string(root().join("crates").join(file)).unwrap_or_else(|why| panic!("{file}: {why}"));
            assert!(code.contains(&format!("fn {function}(")), "{file} has no function `{function}`");
            files.insert(file.to_owned());
        }
        assert!((5..=max_files).contains(&files.len()), "{heading}: {} files", files.len());
    }
}
