//! Writes rows of comma-separated values (RFC 4180).
use store::images::sources::ExportedFace;

/// Columns that describe a face.
pub(crate) const FACE_COLUMNS: &str =
    "face_id,x,y,face_width,face_height,det_score,quality,quality_passed,embedding_model";

/// Returns a header row. The column of the embeddings is the last one.
pub(crate) fn head(columns: &str, embeddings: bool) -> String {
    format!("{columns}{}\r\n", if embeddings { ",embedding" } else { "" })
}

/// Returns the fields of [`FACE_COLUMNS`].
pub(crate) fn about_face((face, _): &ExportedFace) -> impl Iterator<Item = String> + use<> {
    let judged = |key: &str| {
        let value = face.quality.as_ref().and_then(|quality| quality.get(key));
        value.map(ToString::to_string).unwrap_or_default()
    };
    let (quality, passed) = (judged("overall"), judged("passed"));
    let numbers: Vec<String> = face.bbox.iter().chain([&face.det_score]).map(ToString::to_string).collect();
    let model = face.embedding_model.clone();
    std::iter::once(face.id.to_string()).chain(numbers).chain([quality, passed, model])
}

pub(crate) fn empty(columns: &str) -> impl Iterator<Item = String> + use<> {
    std::iter::repeat_n(String::new(), columns.split(',').count())
}

/// Returns the field of an embedding, in which spaces separate the components. It is empty if the
/// row has no face.
pub(crate) fn embedding(face: Option<&ExportedFace>) -> String {
    let components = face.and_then(|(_, embedding)| embedding.as_deref()).unwrap_or_default();
    components.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

pub(crate) fn number(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

pub(crate) fn row(fields: impl Iterator<Item = String>) -> String {
    let fields: Vec<String> = fields.map(quoted).collect();
    format!("{}\r\n", fields.join(","))
}

/// Quotes a field if necessary. A field that a spreadsheet would read as a formula is prefixed with
/// an apostrophe, because URLs are untrusted input.
fn quoted(field: String) -> String {
    let field = if field.starts_with(['=', '+', '@', '\t', '\r']) { format!("'{field}") } else { field };
    if field.contains(['"', ',', '\r', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_have_to_be() {
        let fields = ["plain", "a,b", "say \"x\"", "two\nlines", "=1+1", "-0.5"];
        let row = row(fields.into_iter().map(str::to_owned));
        assert_eq!(row, "plain,\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",'=1+1,-0.5\r\n");
    }
}
