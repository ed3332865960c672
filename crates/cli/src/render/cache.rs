//! The caches of workspaces as text.

use stockade_native::caches::WorkspaceCaches;

use super::network::format_size;

/// Formats a workspace on one line: its path, the size of its caches, and the size for each tool.
pub fn format_line(caches: &WorkspaceCaches) -> String {
    let tools = caches.tools.iter().filter(|(_, bytes)| *bytes > 0);
    let tools: Vec<String> = tools.map(|(tool, bytes)| format!("{tool} {}", format_size(*bytes))).collect();
    let used = match caches {
        WorkspaceCaches { is_used: true, .. } => "   in use",
        WorkspaceCaches { is_gone: true, .. } => "   workspace deleted: removed within a day",
        _ => "",
    };
    let tools = if tools.is_empty() { "nothing in them".to_owned() } else { tools.join(", ") };
    format!("{}   {}   {tools}{used}\n", caches.workspace.to_escaped(), format_size(caches.allocated_bytes()))
}

/// Describes the removed caches of a workspace.
pub fn format_removal(caches: &WorkspaceCaches) -> String {
    format!("removed {} of {}\n", format_size(caches.allocated_bytes()), caches.workspace.to_escaped())
}

/// Describes the removed caches of several workspaces on one line.
pub fn all_removed(all: &[WorkspaceCaches]) -> String {
    match all {
        [one] => format_removal(one),
        _ => {
            let bytes = all.iter().map(WorkspaceCaches::allocated_bytes).sum();
            format!("removed {} of {} workspaces\n", format_size(bytes), all.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_largest_entries() {
        let caches = WorkspaceCaches {
            key: "k".to_owned(),
            workspace: "/w/a\x1bb".into(),
            is_used: true,
            is_gone: false,
            used_ms: 0,
            tools: vec![("cargo".to_owned(), 3 << 20), ("uv".to_owned(), 0)],
        };
        let expected = format!("{}   3.0 MiB   cargo 3.0 MiB   in use\n", caches.workspace.to_escaped());
        assert_eq!(format_line(&caches), expected);
        assert!(!format_line(&caches).contains('\x1b'));
        let gone = WorkspaceCaches { is_used: false, is_gone: true, ..caches };
        assert!(format_line(&gone).ends_with("workspace deleted: removed within a day\n"));
    }
}
