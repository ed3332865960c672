//! Rules of other tools, any text: an error in that text, or a file of ours that
//! loads. The first byte says whose rules they are.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use stockade_policy::{
    ConfigLayer, ImportSource, ImportTool, LayerText, OwnDirectories, PolicySettings, SourceScope, import_policy,
};

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let (tool, name) = match first % 4 {
        0 => (ImportTool::Codex, "a.rules"),
        1 => (ImportTool::Claude, "settings.json"),
        2 => (ImportTool::Gemini, "a.toml"),
        _ => (ImportTool::Gemini, "settings.json"),
    };
    let imported = match import_policy(
        tool,
        &[ImportSource { name: name.to_owned(), text: text.to_owned(), scope: SourceScope::User }],
    ) {
        Ok(imported) => imported,
        // A fault is in the text that was given, never in what it became.
        Err(error) => return assert_eq!(error.file(), Path::new(name), "{error}"),
    };
    let source = imported.to_toml();
    let layer = LayerText { layer: ConfigLayer::User, path: "/imported.toml".into(), source };
    let loaded =
        PolicySettings::from_layers(Path::new("/home/dev"), OwnDirectories::default(), std::slice::from_ref(&layer));
    assert!(loaded.is_ok(), "{loaded:?}\n{}", layer.source);
});
