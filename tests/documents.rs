//! The documentation holds together: each page is in the book, and each link between pages leads to
//! a page, a file and a heading that exist, in the repository and in the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::root;

/// Pages outside `docs/` that belong to the book.
const TOP_PAGES: &[&str] = &["README.md", "SECURITY.md", "ARCHITECTURE.md", "CHANGELOG.md"];
const SUMMARY: &str = "book/src/SUMMARY.md";

fn page_names() -> BTreeSet<String> {
    let docs =
        fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = docs.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
    pages.chain(TOP_PAGES.iter().map(|name| (*name).to_owned())).collect()
}

/// The text without code, which may hold anything.
fn without_code(text: &str) -> String {
    let mut prose = String::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            let parts = line.split('`').step_by(2);
            prose.push_str(&parts.collect::<Vec<_>>().join("`"));
        }
        prose.push('\n');
    }
    prose
}

/// The targets of all links and pictures of a page.
fn link_targets(text: &str) -> Vec<String> {
    let prose = without_code(text);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of a page's headings, as the book and code hosts make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut in_block = false;
    for line in text.lines() {
        in_block ^= line.trim_start().starts_with("```");
        let Some((_, heading)) = line.split_once("# ").filter(|(marks, _)| marks.chars().all(|c| c == '#')) else {
            continue;
        };
        if in_block {
            continue;
        }
        let heading_chars = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = heading_chars.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect();
        let count = counts.entry(anchor.clone()).or_default();
        found.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    found
}

/// The target's path from the top of the repository, by its text alone; none if it leads out.
fn resolve_path(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// What is wrong with the links of `page`. Each of `trees` must hold what they lead to.
fn broken_links(trees: &[&Path], page: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for link in link_targets(text) {
        if link.starts_with("https://") || link.starts_with("http://") {
            continue;
        }
        let (target, anchor) =
            link.split_once('#').map_or((link.as_str(), None), |(path, anchor)| (path, Some(anchor)));
        let headings = if target.is_empty() {
            text.to_owned()
        } else {
            let resolved = resolve_path(page, target);
            let Some(resolved) = resolved.filter(|path| trees.iter().all(|tree| tree.join(path).is_file())) else {
                faults.push(format!("{page}: no file for the link `{link}`"));
                continue;
            };
            fs::read_to_string(trees[0].join(&resolved)).unwrap_or_default()
        };
        if anchor.is_some_and(|anchor| !anchors(&headings).contains(anchor)) {
            faults.push(format!("{page}: no heading for the link `{link}`"));
        }
    }
    faults
}

#[test]
fn each_page_is_in_the_book_once() {
    let summary = fs::read_to_string(root().join(SUMMARY)).unwrap();
    let listed = link_targets(&summary);
    let unique: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), unique.len(), "a page is listed twice: {listed:?}");
    assert_eq!(unique, page_names(), "{SUMMARY} lists other pages than there are");
}

#[test]
fn each_link_between_pages_resolves() {
    let (repository, book) = (root(), root().join("book/src"));
    let mut links = 0;
    let mut faults = Vec::new();
    for page in page_names() {
        let text = fs::read_to_string(repository.join(&page)).unwrap();
        links += link_targets(&text).len();
        faults.extend(broken_links(&[&repository, &book], &page, &text));
    }
    assert!(links > 40, "only {links} links were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn broken_links_are_found() {
    let top = root();
    let text = "# A title\n## Two, words\n```\n# no heading\n[x](in-a-block.md)\n```\n## A title\n\
                [a](README.md) [b](docs/guide.md#run-a-command) [c](#a-title-1) [d](#two-words) `[e](in-code.md)`\n\
                [f](docs/none.md) [g](../README.md) [h](docs/guide.md#none) [i](#no-heading) ![j](none.svg)\n";
    let faults = broken_links(&[&top], "PAGE.md", text);
    let named: Vec<&str> = faults.iter().map(|fault| fault.split('`').nth(1).unwrap()).collect();
    assert_eq!(named, ["docs/none.md", "../README.md", "docs/guide.md#none", "#no-heading", "none.svg"]);
}
