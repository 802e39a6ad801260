//! Serves a site with images of drawn people.
use crate::common::files::FileServer;
use std::sync::OnceLock;
pub use testing::people::portrait;

/// Number of portraits on the site: three of each person.
pub const PORTRAITS: usize = 15;

/// Starts the site. The site also has a damaged image, a dead link and a folder that robots.txt
/// disallows.
pub async fn start() -> FileServer {
    serve(None).await
}

/// Starts the site with another image in place of the last portrait.
pub async fn with_last(image: Vec<u8>) -> FileServer {
    serve(Some(image)).await
}

async fn serve(last: Option<Vec<u8>>) -> FileServer {
    static PORTRAIT_FILES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let portraits =
        PORTRAIT_FILES.get_or_init(|| (0..15).map(|number| portrait(number / 3, number % 3)).collect());
    let tags = |numbers: std::ops::Range<usize>| -> String {
        numbers.map(|number| format!("<img src=\"/{number}.jpg\" alt=\"Portrait {number}\">")).collect()
    };
    let home = format!(
        "<a href=\"/team.html\">Team</a> <a href=\"/archive.html\">Archive</a> <a href=\"/private/\">Private</a>{}",
        tags(0..3)
    );
    let archive = format!("{}<img src=\"/damaged.jpg\"><img src=\"/missing.jpg\">", tags(6..PORTRAITS));
    let mut files = vec![
        ("/".to_owned(), home.into_bytes()),
        ("/team.html".to_owned(), tags(0..9).into_bytes()),
        ("/archive.html".to_owned(), archive.into_bytes()),
        ("/robots.txt".to_owned(), b"User-agent: *\nDisallow: /private/\n".to_vec()),
        ("/damaged.jpg".to_owned(), b"no picture at all".to_vec()),
    ];
    files.extend(portraits.iter().enumerate().map(|(number, file)| (format!("/{number}.jpg"), file.clone())));
    if let (Some(image), Some((_, file))) = (last, files.last_mut()) {
        *file = image;
    }
    FileServer::with(files).await
}
