//! Checks that the source files define the items in the architecture document. Also checks that
//! only the crate `domain` contains the codes of states, reasons and kinds of jobs.
use domain::{ClusteringState, CrawlKind, CrawlState, ImageState, JobKind, PageState, Reason};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::path::Path;
use syn::visit::Visit;
use testing::{TestDatabase, root};

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
    let continues_identifier = |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    KEYWORDS.iter().any(|keyword| {
        text.split(&format!("{keyword} {item}")).skip(1).any(|rest| !continues_identifier(rest))
    })
}

fn row_error(row: &str) -> Option<String> {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let ["", behaviour, file, item, ""] = cells.as_slice() else {
        return Some("the row does not have three cells".to_owned());
    };
    let (Some(file), Some(item)) = (code(file), code(item)) else {
        return Some("the file or the item is not written as code".to_owned());
    };
    if behaviour.is_empty() {
        return Some("the behaviour is empty".to_owned());
    }
    match std::fs::read_to_string(root().join(file)) {
        Err(error) => Some(format!("{file}: {error}")),
        Ok(text) if defines(&text, item) => None,
        Ok(_) => Some(format!("{file} defines no `{item}`")),
    }
}

#[test]
fn every_row_names_existing_file_and_item() {
    let document = std::fs::read_to_string(root().join(DOCUMENT)).unwrap();
    let rows = rows(&document);
    assert!(rows.len() >= MIN_ROWS, "{DOCUMENT} has {} rows, at least {MIN_ROWS} are needed", rows.len());
    let wrong: Vec<String> =
        rows.iter().filter_map(|row| Some(format!("{row}\n  {}", row_error(row)?))).collect();
    assert!(wrong.is_empty(), "wrong rows in {DOCUMENT}:\n{}", wrong.join("\n"));
}

#[test]
fn reports_error_of_wrong_row() {
    let here = "| this test | `backend/app/tests/it/sources.rs` |";
    assert_eq!(row_error(&format!("{here} `defines` |")), None);
    for (row, expected) in [
        (format!("{here} `define` |"), "defines no `define`"),
        (format!("{here} defines |"), "not written as code"),
        (format!("{here} `defines` | more |"), "does not have three cells"),
        ("| gone | `backend/app/tests/gone.rs` | `defines` |".to_owned(), "gone.rs: "),
    ] {
        assert!(row_error(&row).unwrap().contains(expected), "{row}: {:?}", row_error(&row));
    }
}

/// Crates that must not write a code as a literal. The queue has its own states, and `vision` and
/// `inference` do not deal with crawls.
const CRATES: [&str; 6] = ["store", "crawler", "pipeline", "server", "bench", "app"];

/// Files in which a literal that equals a code has another meaning.
const EXCEPTIONS: [(&str, &str); 5] = [
    ("crawler/src/directives.rs", "the names of robots directives"),
    ("pipeline/src/crawls/webhook.rs", "a label of the metric of deliveries"),
    ("server/src/error/code.rs", "the codes of problem documents"),
    ("app/src/cli/jobs.rs", "fields of the JSON output"),
    ("app/src/cli/gpu.rs", "the result of a self-test"),
];

fn codes() -> BTreeSet<String> {
    let mut codes: BTreeSet<String> = Reason::ALL.iter().map(ToString::to_string).collect();
    codes.extend(CrawlState::ALL.map(String::from));
    codes.extend(PageState::ALL.map(String::from));
    codes.extend(ImageState::ALL.map(String::from));
    codes.extend(ClusteringState::ALL.map(String::from));
    codes.extend(JobKind::ALL.map(String::from));
    codes
}

/// Line and value of each string literal, including those in the arguments of macros.
struct Literals {
    found: Vec<(usize, String)>,
}

impl Literals {
    fn visit_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.visit_tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                        self.found.push((literal.span().start().line, text.value()));
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'a> Visit<'a> for Literals {
    fn visit_lit_str(&mut self, literal: &'a syn::LitStr) {
        self.found.push((literal.span().start().line, literal.value()));
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.visit_tokens(call.tokens.clone());
    }

    // Ignores attributes, which contain documentation and examples of the OpenAPI document.
    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}

    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if module.ident != "tests" {
            syn::visit::visit_item_mod(self, module);
        }
    }
}

#[test]
fn codes_are_literals_only_in_domain_crate() {
    let backend = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let codes = codes();
    let (mut files, mut wrong) = (0, Vec::new());
    for folder in CRATES.map(|name| backend.join(name).join("src")) {
        for path in testing::files_below(&folder) {
            let name = path.strip_prefix(backend).unwrap().display().to_string();
            let is_exception = EXCEPTIONS.iter().any(|(file, _)| *file == name);
            if is_exception || !name.ends_with(".rs") || name.ends_with("tests.rs") {
                continue;
            }
            files += 1;
            let mut literals = Literals { found: Vec::new() };
            literals.visit_file(&syn::parse_file(&std::fs::read_to_string(&path).unwrap()).unwrap());
            literals.found.retain(|(_, text)| codes.contains(text));
            wrong.extend(literals.found.into_iter().map(|(line, text)| format!("{name}:{line}: {text:?}")));
        }
    }
    assert!(files > 150, "only {files} files were found");
    assert!(wrong.is_empty(), "codes outside the crate `domain`:\n{}", wrong.join("\n"));
}

#[test]
fn reasons_document_lists_every_reason() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/REASONS.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: BTreeSet<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let row = |reason: &Reason| format!("| `{reason}` | {} |", reason.explanation());
    let expected: BTreeSet<String> = Reason::ALL.iter().map(row).collect();
    assert_eq!(rows, expected.iter().map(String::as_str).collect());
}

#[testing::test]
async fn column_constraints_allow_exactly_enum_states() {
    let database = TestDatabase::create().await;
    for (table, column, states) in [
        ("crawls", "state", CrawlState::ALL.map(String::from).to_vec()),
        ("crawls", "kind", CrawlKind::ALL.map(String::from).to_vec()),
        ("pages", "state", PageState::ALL.map(String::from).to_vec()),
        ("image_urls", "state", ImageState::ALL.map(String::from).to_vec()),
        ("clusterings", "state", ClusteringState::ALL.map(String::from).to_vec()),
    ] {
        let definition: String = sqlx::query_scalar(
            "select pg_get_constraintdef(oid) from pg_constraint
             where conrelid = $1::regclass and conname = $1 || '_' || $2 || '_check'",
        )
        .bind(table)
        .bind(column)
        .fetch_one(database.pool())
        .await
        .unwrap();
        let allowed: BTreeSet<&str> = definition.split('\'').skip(1).step_by(2).collect();
        assert_eq!(allowed, states.iter().map(String::as_str).collect(), "{table}.{column}: {definition}");
    }
}
