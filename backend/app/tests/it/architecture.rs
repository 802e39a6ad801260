//! Checks the section "Where is ...?" of the architecture document against the source files.

use testing::root;

const DOCUMENT: &str = "docs/explanation/ARCHITECTURE.md";
/// The line before the tables.
const SECTION: &str = "\n## Where is ...?\n";
/// The first two lines of every table.
const HEAD: [&str; 2] = ["| Behaviour | File | Item |", "|---|---|---|"];
/// The keywords before the name of an item in its definition.
const KEYWORDS: [&str; 6] = ["fn", "struct", "enum", "const", "macro_rules!", "trait"];
/// Minimum number of rows. If there are fewer rows, the section is missing or its form has changed.
const MIN_ROWS: usize = 40;

/// Returns the rows of all tables in the section, without their heads.
fn rows(document: &str) -> Vec<&str> {
    let (_, rest) = document.split_once(SECTION).unwrap();
    let section = rest.split("\n## ").next().unwrap();
    section.lines().filter(|line| line.starts_with('|') && !HEAD.contains(line)).collect()
}

/// Returns the text of a cell that contains only code.
fn code(cell: &str) -> Option<&str> {
    let text = cell.strip_prefix('`')?.strip_suffix('`')?;
    (!text.is_empty() && !text.contains('`')).then_some(text)
}

/// Returns whether the text of a source file defines an item of this name.
fn defines(text: &str, item: &str) -> bool {
    let goes_on = |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    KEYWORDS.iter().any(|keyword| text.split(&format!("{keyword} {item}")).skip(1).any(|rest| !goes_on(rest)))
}

fn fault(row: &str) -> Option<String> {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let ["", behaviour, file, item, ""] = cells.as_slice() else {
        return Some("it has not three cells".to_owned());
    };
    let (Some(file), Some(item)) = (code(file), code(item)) else {
        return Some("its file or its item is not written as code".to_owned());
    };
    if behaviour.is_empty() {
        return Some("it names no behaviour".to_owned());
    }
    match std::fs::read_to_string(root().join(file)) {
        Err(error) => Some(format!("{file}: {error}")),
        Ok(text) if defines(&text, item) => None,
        Ok(_) => Some(format!("{file} defines no `{item}`")),
    }
}

#[test]
fn every_row_names_a_file_and_an_item_that_it_defines() {
    let document = std::fs::read_to_string(root().join(DOCUMENT)).unwrap();
    let rows = rows(&document);
    assert!(rows.len() >= MIN_ROWS, "{DOCUMENT} has {} rows, at least {MIN_ROWS} are needed", rows.len());
    let wrong: Vec<String> =
        rows.iter().filter_map(|row| Some(format!("{row}\n  {}", fault(row)?))).collect();
    assert!(wrong.is_empty(), "wrong rows in {DOCUMENT}:\n{}", wrong.join("\n"));
}

#[test]
fn a_wrong_row_is_reported_with_its_fault() {
    let here = "| this test | `backend/app/tests/it/architecture.rs` |";
    assert_eq!(fault(&format!("{here} `defines` |")), None);
    for (row, said) in [
        (format!("{here} `define` |"), "defines no `define`"),
        (format!("{here} defines |"), "not written as code"),
        (format!("{here} `defines` | more |"), "not three cells"),
        ("| gone | `backend/app/tests/gone.rs` | `defines` |".to_owned(), "gone.rs: "),
    ] {
        assert!(fault(&row).unwrap().contains(said), "{row}: {:?}", fault(&row));
    }
}
