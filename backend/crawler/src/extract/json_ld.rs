//! Finds images and videos in `<script type="application/ld+json">`.
use serde_json::Value;

/// The kind of file at an address in the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Image,
    /// The file of a video. The page of a video (`embedUrl`) is not a video file.
    Video,
}

/// Calls `on_media` for every image and every video in the data.
///
/// The video of a `VideoObject` is its `contentUrl`.
///
/// Images are the values of `image`, `thumbnailUrl`, `contentUrl`, `photo`, `thumbnail` and similar
/// keys, as text, list or object, at any depth. An `ImageObject` is one image: its `contentUrl`,
/// else its `url`, else its `thumbnailUrl`. Text that is not JSON yields nothing.
pub(super) fn read(text: &str, mut on_media: impl FnMut(Media, &str)) {
    // Some templates wrap the data in a comment or in CDATA for old browsers.
    let text = text.trim().trim_start_matches("<!--").trim_end_matches("-->").trim();
    let text = text.trim_start_matches("//").trim_start_matches("<![CDATA[").trim_start();
    let text =
        text.trim_end_matches("]]>").trim_end().trim_end_matches("//").trim_end().trim_end_matches(';');
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        walk(&value, &mut on_media);
    }
}

/// Properties whose value is an image.
const IMAGE: &[&str] = &["image", "images", "photo", "photos", "thumbnail", "primaryImageOfPage", "logo"];

fn walk(value: &Value, on_media: &mut impl FnMut(Media, &str)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, on_media)),
        Value::Object(object) => {
            if is_a(value, &["ImageObject", "Photograph", "Photo"]) && report_image(value, on_media) {
                // The object's own addresses are already processed. Its other values (author,
                // embedded data) may contain images.
                for (key, inner) in object {
                    if !matches!(key.as_str(), "url" | "contentUrl" | "thumbnailUrl" | "thumbnail" | "image")
                    {
                        walk(inner, on_media);
                    }
                }
                return;
            }
            let is_video = is_a(value, &["VideoObject", "MusicVideoObject", "Clip"]);
            let is_media_file = is_video || is_a(value, &["AudioObject", "MediaObject"]);
            for (key, inner) in object {
                match key.as_str() {
                    key if IMAGE.contains(&key) => report_images(inner, on_media),
                    "thumbnailUrl" | "thumbnailURL" => report_images(inner, on_media),
                    "contentUrl" if is_video => {
                        if let Some(url) = first_text(inner) {
                            on_media(Media::Video, url);
                        }
                    }
                    // The `contentUrl` of a video or a sound is not an image.
                    "contentUrl" if !is_media_file => report_images(inner, on_media),
                    _ => walk(inner, on_media),
                }
            }
        }
        _ => {}
    }
}

/// Reads the value of an image property: text, an object, or a list of them.
fn report_images(value: &Value, on_media: &mut impl FnMut(Media, &str)) {
    match value {
        Value::String(url) => on_media(Media::Image, url),
        Value::Array(items) => items.iter().for_each(|item| report_images(item, on_media)),
        Value::Object(object) if !report_image(value, on_media) => {
            object.values().for_each(|inner| walk(inner, on_media));
        }
        _ => {}
    }
}

/// Calls `on_media` with the best address of an image object. Returns `false` if the object has no
/// address.
fn report_image(value: &Value, on_media: &mut impl FnMut(Media, &str)) -> bool {
    let address = ["contentUrl", "url", "thumbnailUrl", "@id", "@value"]
        .iter()
        .find_map(|key| first_text(value.get(key)?).filter(|text| *key != "@id" || !text.contains('#')));
    // An `@id` with a fragment (`…/#primaryimage`) refers to another node of the graph, which is
    // visited separately.
    if let Some(url) = address {
        on_media(Media::Image, url);
    }
    address.is_some()
}

fn first_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Array(items) => items.iter().find_map(first_text),
        Value::Object(object) => object.get("@id").or_else(|| object.get("@value"))?.as_str(),
        _ => None,
    }
}

fn is_a(value: &Value, types: &[&str]) -> bool {
    let has_type = |t: &Value| {
        t.as_str().is_some_and(|t| types.contains(&t.rsplit(['/', ':', '#']).next().unwrap_or_default()))
    };
    match value.get("@type") {
        Some(Value::Array(names)) => names.iter().any(has_type),
        Some(name) => has_type(name),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media_urls(text: &str, kind: Media) -> Vec<String> {
        let mut urls = Vec::new();
        read(text, |media, url| urls.extend((media == kind).then(|| url.to_owned())));
        urls
    }

    #[test]
    fn json_ld_yields_video_file_without_player_page() {
        for (text, expected) in [
            (r#"{"@type":"VideoObject","contentUrl":"a.mp4","embedUrl":"/player"}"#, &["a.mp4"][..]),
            (r#"{"@graph":[{"video":{"@type":"VideoObject","contentUrl":["a.mp4","b.webm"]}}]}"#, &["a.mp4"]),
            (r#"{"@type":"AudioObject","contentUrl":"a.mp3"}"#, &[]),
            (r#"{"@type":"ImageObject","contentUrl":"a.jpg"}"#, &[]),
            (r#"{"@type":"VideoObject","url":"/watch"}"#, &[]),
        ] {
            assert_eq!(media_urls(text, Media::Video), expected, "{text}");
        }
    }

    #[test]
    fn reads_json_ld_images_in_every_position() {
        for (text, expected) in [
            (r#"{"@type":"Article","image":"a.jpg"}"#, &["a.jpg"][..]),
            (
                r#"{"image":["a.jpg",{"url":"b.jpg"},{"@type":"ImageObject","contentUrl":"c.jpg","thumbnailUrl":"t.jpg"}]}"#,
                &["a.jpg", "b.jpg", "c.jpg"],
            ),
            (
                r#"[{"@graph":[{"@type":"Person","image":{"@id":"p.jpg"}},{"@type":["Thing","ImageObject"],"url":"i.jpg"}]}]"#,
                &["p.jpg", "i.jpg"],
            ),
            (
                r#"{"@type":"VideoObject","thumbnailUrl":["v.jpg","w.jpg"],"contentUrl":"film.mp4"}"#,
                &["v.jpg", "w.jpg"],
            ),
            (r#"{"contentUrl":"a.jpg"}"#, &["a.jpg"]),
            (r#"{"author":{"employee":[{"image":{"url":["deep.jpg"]}}]}}"#, &["deep.jpg"]),
            (
                r#"{"@type":"http://schema.org/ImageObject","url":"a.jpg","author":{"image":"b.jpg"}}"#,
                &["a.jpg", "b.jpg"],
            ),
            (
                r##"{"@graph":[{"image":{"@id":"http://x/#main"}},{"@id":"http://x/#main","@type":"ImageObject","url":"a.jpg"}]}"##,
                &["a.jpg"],
            ),
            (r#"{"image":null,"url":"page.html","name":["x"]}"#, &[]),
            ("<!-- {\"image\":\"a.jpg\"} -->", &["a.jpg"]),
            ("//<![CDATA[\n{\"image\":\"a.jpg\"}\n//]]>", &["a.jpg"]),
            ("{broken", &[]),
            ("", &[]),
        ] {
            assert_eq!(media_urls(text, Media::Image), expected, "{text}");
        }
        // Deeper than the JSON parser's recursion limit.
        let deep = format!("{}\"a.jpg\"{}", "{\"image\":".repeat(500), "}".repeat(500));
        assert!(media_urls(&deep, Media::Image).is_empty());
    }
}
