//! Pages in Markdown.

/// The page with each paragraph, and each item of a list, in lines of at most 100 columns. Tables
/// stay as they are.
pub fn wrapped(text: &str) -> String {
    text.lines().map(|line| if line.starts_with('|') { format!("{line}\n") } else { paragraph(line) }).collect()
}

fn paragraph(text: &str) -> String {
    let (indent, mut lines) = (if text.starts_with("- ") { "  " } else { "" }, vec![String::new()]);
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= 100 => line.extend([" ", word]),
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_item_is_wrapped_and_a_table_is_not() {
        let words = "word ".repeat(40);
        let (item, row) = (format!("- {}", words.trim_end()), format!("| {words}|"));
        let found = wrapped(&item);
        assert!(found.lines().all(|line| line.len() <= 100) && found.lines().count() == 3, "{found}");
        assert_eq!(found.split_whitespace().collect::<Vec<_>>(), item.split_whitespace().collect::<Vec<_>>());
        assert_eq!(wrapped(&format!("\n{row}")), format!("\n{row}\n"));
    }
}
