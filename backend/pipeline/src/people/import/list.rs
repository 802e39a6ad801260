//! Names of people, lists of files (CSV), and paths with a folder for each person.
use icu_normalizer::ComposingNormalizerBorrowed;
use std::borrow::Cow;

/// Maximum length of a name in characters.
const MAX_NAME_CHARS: usize = 200;
/// The columns that a list needs.
const NAME: &str = "name";
const FILE: &str = "file";

/// Returns the form in which a name is stored and found: without surrounding white space, and with
/// composed characters (NFC). File systems, archives and keyboards differ in how they write `é`.
pub fn composed_name(name: &str) -> Cow<'_, str> {
    ComposingNormalizerBorrowed::new_nfc().normalize(name.trim())
}

/// Returns the [composed](composed_name) form of a name.
///
/// # Errors
/// Fails with a sentence that states what is allowed.
pub fn normal_name(name: &str) -> Result<String, String> {
    let normal = composed_name(name);
    let length = normal.chars().count();
    if (1..=MAX_NAME_CHARS).contains(&length) && !normal.chars().any(char::is_control) {
        return Ok(normal.into_owned());
    }
    Err(format!("a name needs 1 to {MAX_NAME_CHARS} characters without control characters"))
}

/// Returns the name of the person to whom a file belongs: the first folder of its path. `path` is
/// relative to the folder with the people, and has `/` between its parts. Returns `None` for a file
/// outside the folders.
pub fn person_of_path(path: &str) -> Option<&str> {
    path.split_once('/').map(|(person, _)| person)
}

/// A row of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// Number of the line in the list, from 1.
    pub line: usize,
    pub name: String,
    /// The path of the file, as written.
    pub file: String,
}

/// The reason why a list cannot be read, with the number of the line where there is one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ListError(String);

/// Parses a list: CSV (RFC 4180) in UTF-8 with a header that contains the columns `name` and
/// `file`. Other columns and empty lines are ignored.
///
/// # Errors
/// Fails for text that is not UTF-8 or CSV, a header without these columns, and a row without them.
pub fn parse(text: &[u8]) -> Result<Vec<ListedFile>, ListError> {
    let text = std::str::from_utf8(text).map_err(|_| ListError("the list is not UTF-8".into()))?;
    // Spreadsheets write a byte order mark.
    let mut rows = Rows { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    let missing = || {
        ListError(format!(
            "line 1: the header must contain the columns {NAME} and {FILE}, separated by commas"
        ))
    };
    let (_, header) = rows.next().transpose()?.ok_or_else(missing)?;
    let column = |wanted: &str| header.iter().position(|title| title.trim().eq_ignore_ascii_case(wanted));
    let (name, file) = column(NAME).zip(column(FILE)).ok_or_else(missing)?;
    let mut files = Vec::new();
    for row in rows {
        let (line, mut fields) = row?;
        if matches!(&fields[..], [only] if only.is_empty()) {
            continue;
        }
        if name.max(file) >= fields.len() {
            return Err(ListError(format!("line {line}: it has fewer columns than the header")));
        }
        let [name, file] = [name, file].map(|column| std::mem::take(&mut fields[column]));
        files.push(ListedFile { line, name, file });
    }
    Ok(files)
}

/// The rows of a CSV text, each with the number of its first line.
struct Rows<'a> {
    rest: &'a str,
    line: usize,
}

impl Iterator for Rows<'_> {
    type Item = Result<(usize, Vec<String>), ListError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let line = self.line;
        let row = self.row();
        if row.is_err() {
            self.rest = "";
        }
        Some(row.map(|fields| (line, fields)))
    }
}

impl<'a> Rows<'a> {
    fn row(&mut self) -> Result<Vec<String>, ListError> {
        let mut fields = Vec::new();
        loop {
            let field = match self.rest.strip_prefix('"') {
                Some(rest) => self.quoted(rest)?,
                None => {
                    let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
                    let (field, rest) = self.rest.split_at(end);
                    self.rest = rest;
                    let field = if rest.starts_with(',') { field } else { field.trim_end_matches('\r') };
                    field.to_owned()
                }
            };
            fields.push(field);
            if let Some(rest) = self.rest.strip_prefix(',') {
                self.rest = rest;
                continue;
            }
            let end = self.rest.strip_prefix("\r\n").or_else(|| self.rest.strip_prefix('\n'));
            match end {
                Some(rest) => (self.rest, self.line) = (rest, self.line + 1),
                None if self.rest.is_empty() => {}
                None => return Err(self.error("text follows a quoted field")),
            }
            return Ok(fields);
        }
    }

    /// Reads a field after its opening quote. Two quotes inside it are one quote of the field.
    fn quoted(&mut self, text: &'a str) -> Result<String, ListError> {
        let (mut field, mut rest) = (String::new(), text);
        loop {
            let Some((part, after)) = rest.split_once('"') else {
                return Err(self.error("a quoted field has no end"));
            };
            field.push_str(part);
            self.line += part.matches('\n').count();
            rest = after;
            match rest.strip_prefix('"') {
                Some(after) => (rest, field) = (after, field + "\""),
                None => break,
            }
        }
        self.rest = rest;
        Ok(field)
    }

    fn error(&self, reason: &str) -> ListError {
        ListError(format!("line {}: {reason}", self.line))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pairs(text: &str) -> Vec<(usize, String, String)> {
        parse(text.as_bytes()).unwrap().into_iter().map(|row| (row.line, row.name, row.file)).collect()
    }

    #[test]
    fn list_is_read_with_quotes_and_other_columns() {
        let text =
            "\u{feff}File,Team,Name\r\na.jpg,x,Ada\r\n\r\n\"b,\n\"\"1\"\".jpg\",,\"Lee, Ben\"\nc.jpg,y,Cora";
        let row = |line, name: &str, file: &str| (line, name.to_owned(), file.to_owned());
        let expected = [row(2, "Ada", "a.jpg"), row(4, "Lee, Ben", "b,\n\"1\".jpg"), row(6, "Cora", "c.jpg")];
        assert_eq!(pairs(text), expected);
        assert_eq!(pairs("name,file\n"), []);
    }

    #[test]
    fn error_of_list_states_line() {
        for (text, part) in [
            ("", "name and file"),
            ("name;file\nAda;a.jpg", "separated by commas"),
            ("name,file\nAda", "line 2: it has fewer columns"),
            ("name,file\nAda,\"a.jpg\"x\n", "line 2: text follows"),
            ("name,file\nAda,a.jpg\nBen,\"b.jpg", "line 3: a quoted field has no end"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert!(parse(b"name,file\n\xff,a.jpg").unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn names_are_trimmed_composed_and_limited() {
        assert_eq!(normal_name(" Zoe\u{308} \t"), Ok("Zo\u{eb}".into()));
        assert_eq!(normal_name(&"x".repeat(200)).map(|name| name.len()), Ok(200));
        for name in ["", "  ", "a\u{0}b", "a\nb"] {
            assert!(normal_name(name).is_err(), "{name:?}");
        }
        assert!(normal_name(&"x".repeat(201)).is_err());
    }

    #[test]
    fn person_is_first_folder_of_path() {
        assert_eq!(person_of_path("Ada/2020/a.jpg"), Some("Ada"));
        assert_eq!(person_of_path("a.jpg"), None);
    }
}
