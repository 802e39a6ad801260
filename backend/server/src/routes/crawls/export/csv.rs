//! Writes comma-separated values (RFC 4180): one row per face, and one row per image without faces.
use store::export::ExportedImage;
use store::faces::Face;

const COLUMNS: &str = "image_id,sha256,width,height,format,bytes,image_url,page_url,sources,face_id,x,y,face_width,face_height,\
                       det_score,quality,quality_passed,embedding_model";

/// Returns the header row.
pub(super) fn head(embeddings: bool) -> String {
    format!("{COLUMNS}{}\r\n", if embeddings { ",embedding" } else { "" })
}

/// Returns the rows of an image. `image_url` and `page_url` are the first place where the crawl
/// found the image. `sources` is the number of places; counting stops at 1,000. An embedding is one
/// field, in which spaces separate the components.
pub(super) fn lines(exported: &ExportedImage, embeddings: bool) -> String {
    let image = &exported.image;
    let first = exported.sources.sources.first();
    let about_image = [
        image.id.to_string(),
        hex::encode(&image.sha256),
        image.width.to_string(),
        image.height.to_string(),
        image.format.clone(),
        image.bytes.to_string(),
        first.map(|source| source.image_url.clone()).unwrap_or_default(),
        first.and_then(|source| source.page_url.clone()).unwrap_or_default(),
        exported.sources.total.to_string(),
    ];
    if exported.faces.is_empty() {
        let empty = COLUMNS.split(',').count() + usize::from(embeddings) - about_image.len();
        return row(about_image.into_iter().chain(std::iter::repeat_n(String::new(), empty)));
    }
    (exported.faces.iter())
        .map(|(face, embedding)| {
            let embedding = embeddings.then(|| components(embedding.as_deref().unwrap_or_default()));
            row(about_image.iter().cloned().chain(about_face(face)).chain(embedding))
        })
        .collect()
}

fn about_face(face: &Face) -> impl Iterator<Item = String> + use<> {
    let judged = |key: &str| {
        let value = face.quality.as_ref().and_then(|quality| quality.get(key));
        value.map(ToString::to_string).unwrap_or_default()
    };
    let (quality, passed) = (judged("overall"), judged("passed"));
    let numbers: Vec<String> = face.bbox.iter().chain([&face.det_score]).map(ToString::to_string).collect();
    (std::iter::once(face.id.to_string()).chain(numbers)).chain([
        quality,
        passed,
        face.embedding_model.clone(),
    ])
}

fn components(embedding: &[f32]) -> String {
    embedding.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn row(fields: impl Iterator<Item = String>) -> String {
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
