//! A picture of a terminal for the documentation: its text as SVG, with the colours that the
//! program chose. It has no script, no image and no font of its own, so that every page may show it.

use std::fmt::Write as _;

/// Pixels of one column and of one line, at the size of text below.
const COLUMN_PIXELS: usize = 8;
const LINE_PIXELS: usize = 20;
const FONT_PIXELS: usize = 13;
/// Pixels between the text and the edge.
const MARGIN_PIXELS: usize = 16;

/// The colours follow the reader's scheme; the background is part of the picture, so that the text
/// is readable on any page.
const STYLE: &str = "
rect { fill: #f6f8fa; stroke: #d0d7de }
text { fill: #1f2328; font: FONTpx ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre }
.bold { font-weight: bold }
.red { fill: #cf222e }
.yellow { fill: #7d4e00 }
.cyan { fill: #0b6e80 }
@media (prefers-color-scheme: dark) {
  rect { fill: #0d1117; stroke: #30363d }
  text { fill: #e6edf3 }
  .red { fill: #ff7b72 }
  .yellow { fill: #e3b341 }
  .cyan { fill: #56d4dd }
}
";

/// The attributes of text that `select graphic rendition` sets.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct TextStyle {
    bold: bool,
    color: &'static str,
}

impl TextStyle {
    fn apply_codes(&mut self, codes: &str) {
        for code in codes.split(';') {
            match code {
                "" | "0" => *self = Self::default(),
                "1" => self.bold = true,
                "31" => self.color = "red",
                "33" => self.color = "yellow",
                "36" => self.color = "cyan",
                "22" => self.bold = false,
                "39" => self.color = "",
                other => panic!("the picture has no style for the code {other}"),
            }
        }
    }

    fn class(self) -> String {
        let words = [if self.bold { "bold" } else { "" }, self.color];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

/// Draws `text`, which may have SGR sequences. `title` describes the picture to a reader who does
/// not see it.
pub fn draw_terminal(title: &str, text: &str) -> String {
    let mut style = TextStyle::default();
    let lines: Vec<Vec<(TextStyle, String)>> = text.lines().map(|line| split_line(line, &mut style)).collect();
    let columns = lines.iter().map(|line| line.iter().map(|(_, part)| part.chars().count()).sum()).max().unwrap_or(0);
    let width = columns * COLUMN_PIXELS + 2 * MARGIN_PIXELS;
    let height = lines.len() * LINE_PIXELS + 2 * MARGIN_PIXELS;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" xml:space=\"preserve\">\n<title>{}</title>\n<style>{}</style>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n",
        escape_markup(title),
        STYLE.replace("FONT", &FONT_PIXELS.to_string()),
        width - 1,
        height - 1,
    );
    for (number, line) in lines.iter().enumerate() {
        let baseline = MARGIN_PIXELS + number * LINE_PIXELS + FONT_PIXELS + 1;
        let _ = write!(out, "<text x=\"{MARGIN_PIXELS}\" y=\"{baseline}\">");
        for (style, part) in line {
            let _ = match style.class().as_str() {
                "" => write!(out, "{}", escape_markup(part)),
                class => write!(out, "<tspan class=\"{class}\">{}</tspan>", escape_markup(part)),
            };
        }
        out.push_str("</text>\n");
    }
    out + "</svg>\n"
}

/// The text alone, without its styles.
pub fn remove_styles(text: &str) -> String {
    let mut style = TextStyle::default();
    let plain = |line| split_line(line, &mut style).into_iter().map(|(_, part)| part).collect::<String>() + "\n";
    text.lines().map(plain).collect()
}

/// Splits one line where its style changes.
fn split_line(line: &str, style: &mut TextStyle) -> Vec<(TextStyle, String)> {
    let mut parts: Vec<(TextStyle, String)> = Vec::new();
    let mut rest = line;
    while let Some(next) = rest.chars().next() {
        if let Some(sequence) = rest.strip_prefix("\x1b[") {
            let (codes, after) = sequence.split_once('m').expect("only sequences that set a style are drawn");
            style.apply_codes(codes);
            rest = after;
            continue;
        }
        match parts.last_mut() {
            Some((last, part)) if last == style => part.push(next),
            _ => parts.push((*style, next.to_string())),
        }
        rest = &rest[next.len_utf8()..];
    }
    parts
}

/// Text as markup shows it; a control character is not allowed there, and is shown as an escape.
fn escape_markup(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

#[test]
fn a_picture_has_the_text_and_its_colours() {
    let drawn = draw_terminal("a & b", "plain \x1b[31mred\x1b[m <x>\n\x1b[1;36mhint:\x1b[0m \"y\"\u{7}\n");
    assert!(drawn.contains("<title>a &amp; b</title>"), "{drawn}");
    assert!(drawn.contains(">plain <tspan class=\"red\">red</tspan> &lt;x&gt;</text>"), "{drawn}");
    assert!(drawn.contains("><tspan class=\"bold cyan\">hint:</tspan> &quot;y&quot;\\u{7}</text>"), "{drawn}");
    assert!(drawn.contains("width=\"136\" height=\"72\""), "13 columns and two lines: {drawn}");
    assert!(!drawn.contains('\x1b') && !drawn.contains("script"), "{drawn}");
    assert_eq!(remove_styles("a \x1b[1mb\nc\x1b[m d\n"), "a b\nc d\n");
}
