//! Finds images in style sheets and style attributes.
use cssparser::{CowRcStr, ParseError, Parser, ParserInput, Token};

/// Maximum depth of blocks and functions that are read. Deeper ones are skipped, because each level
/// needs stack memory.
const MAX_NESTING: usize = 16;

/// Calls `on_image` with the URL of every image.
///
/// Images are `url(…)` and the strings of `image-set(…)` in backgrounds, borders, lists, masks,
/// generated content and custom properties. Fonts (`src`), `@import` and `@namespace` are ignored.
/// Only the image with the highest density of an `image-set` is reported. `is_attribute` means that
/// the text is a `style` attribute, which contains declarations without a rule around them.
pub(super) fn find_images(text: &str, is_attribute: bool, mut on_image: impl FnMut(String)) {
    // In XHTML, the markers of a CDATA section enclose a style sheet. The parser would read the
    // section as one block.
    let text = text.trim_start();
    let text = text.strip_prefix("<![CDATA[").unwrap_or(text);
    let mut input = ParserInput::new(text);
    let mut report = |url: CowRcStr<'_>| on_image(url.trim_ascii().to_owned());
    read_block(&mut Parser::new(&mut input), is_attribute, MAX_NESTING, &mut report);
}

/// The part of a declaration to which the next token belongs.
#[derive(Clone, Copy)]
enum Part {
    Start,
    /// After the name of a property. The flag is set if its value can contain images.
    Name(bool),
    /// In a value that can contain images.
    Images,
    /// In any other value, or in a selector.
    Other,
}

/// Reads rules and, if `declarations` is set, declarations.
fn read_block<'i>(
    parser: &mut Parser<'i, '_>,
    declarations: bool,
    nesting: usize,
    on_image: &mut dyn FnMut(CowRcStr<'i>),
) {
    let start = if declarations { Part::Start } else { Part::Other };
    let mut part = start;
    while let Ok(token) = parser.next().cloned() {
        part = match (part, &token) {
            (_, Token::Semicolon) => start,
            (_, Token::CurlyBracketBlock) => {
                descend(parser, nesting, |parser, nesting| read_block(parser, true, nesting, on_image));
                start
            }
            (Part::Start, Token::Ident(name)) => Part::Name(can_contain_images(name)),
            (Part::Name(true), Token::Colon) => Part::Images,
            (Part::Images, _) => {
                read_token(parser, &token, nesting, on_image);
                part
            }
            _ => Part::Other,
        };
    }
}

fn can_contain_images(property: &str) -> bool {
    const PROPERTIES: [&str; 7] =
        ["background", "border-image", "list-style", "mask", "-webkit-mask", "content", "--"];
    let property = property.to_ascii_lowercase();
    PROPERTIES.iter().any(|start| property.starts_with(start))
}

/// Reports the images of one token of a value, and of the tokens inside it if it is a function or a
/// block in brackets.
fn read_token<'i>(
    parser: &mut Parser<'i, '_>,
    token: &Token<'i>,
    nesting: usize,
    on_image: &mut dyn FnMut(CowRcStr<'i>),
) {
    match token {
        // Browsers ignore a URL with an unescaped space or quote, but it still refers to an image.
        Token::UnquotedUrl(url) | Token::BadUrl(url) => on_image(url.clone()),
        Token::Function(name) => descend(parser, nesting, |parser, nesting| {
            if name.eq_ignore_ascii_case("url") {
                parser.expect_string_cloned().into_iter().for_each(on_image);
            } else if ["image-set", "-webkit-image-set"].iter().any(|set| name.eq_ignore_ascii_case(set)) {
                read_image_set(parser, nesting, on_image);
            } else {
                read_tokens(parser, nesting, on_image);
            }
        }),
        Token::ParenthesisBlock | Token::SquareBracketBlock => {
            descend(parser, nesting, |parser, nesting| read_tokens(parser, nesting, on_image));
        }
        _ => {}
    }
}

fn read_tokens<'i>(parser: &mut Parser<'i, '_>, nesting: usize, on_image: &mut dyn FnMut(CowRcStr<'i>)) {
    while let Ok(token) = parser.next().cloned() {
        read_token(parser, &token, nesting, on_image);
    }
}

/// Reports the image with the highest density of an `image-set`.
fn read_image_set<'i>(parser: &mut Parser<'i, '_>, nesting: usize, on_image: &mut dyn FnMut(CowRcStr<'i>)) {
    let mut best: Option<(f32, CowRcStr<'i>)> = None;
    let mut at_end = false;
    while !at_end {
        let (mut image, mut density) = (None, 1.0);
        loop {
            match parser.next().cloned() {
                Ok(Token::Comma) => break,
                Ok(Token::QuotedString(url)) => image = Some(url),
                // `2x`, `1.5dppx`, `192dpi`.
                Ok(Token::Dimension { value, unit, .. }) => {
                    density = if unit.eq_ignore_ascii_case("dpi") { value / 96.0 } else { value };
                }
                Ok(token) => read_token(parser, &token, nesting, &mut |url| image = Some(url)),
                Err(_) => {
                    at_end = true;
                    break;
                }
            }
        }
        if let Some(image) = image
            && best.as_ref().is_none_or(|(highest, _)| density > *highest)
        {
            best = Some((density, image));
        }
    }
    best.into_iter().for_each(|(_, image)| on_image(image));
}

/// Reads the content of the block or function whose first token was read last.
fn descend<'i>(parser: &mut Parser<'i, '_>, nesting: usize, read: impl FnOnce(&mut Parser<'i, '_>, usize)) {
    if let Some(nesting) = nesting.checked_sub(1) {
        // An error only means that some content was not read.
        let _rest: Result<(), ParseError<'i, ()>> = parser.parse_nested_block(|parser| {
            read(parser, nesting);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, is_attribute: bool) -> Vec<String> {
        let mut urls = Vec::new();
        find_images(text, is_attribute, |url| urls.push(url));
        urls
    }

    #[test]
    fn reads_image_urls_from_style_attributes() {
        for (text, expected) in [
            ("background-image: url(a.jpg)", &["a.jpg"][..]),
            ("background:#fff url( 'a b.jpg' ) no-repeat, URL(\"c.jpg\")", &["a b.jpg", "c.jpg"]),
            ("color: red; background-image:url(a\\).jpg); --bg: url(b.jpg)", &["a).jpg", "b.jpg"]),
            ("background-image:url(\\61 \\62.jpg)", &["ab.jpg"]),
            (
                "background: url(data:image/png;base64,AA==) , url(b.jpg)",
                &["data:image/png;base64,AA==", "b.jpg"],
            ),
            ("background: /* url(no.jpg) */ url(yes.jpg)", &["yes.jpg"]),
            ("/* x */ background: url(yes.jpg)", &["yes.jpg"]),
            (
                "background: image-set(url(a.jpg) 1x, url(b.jpg) 2x, url(c.jpg) 1.5x) , url(d.jpg)",
                &["b.jpg", "d.jpg"],
            ),
            ("background: -webkit-image-set('a.jpg' 96dpi, 'b.jpg' type('image/jpeg') 192dpi)", &["b.jpg"]),
            ("width: 100px; cursor: url(c.cur), auto", &[]),
            ("background: url(a.jpg", &["a.jpg"]),
            ("background: url(", &[""]),
            ("background: linear-gradient(red, blue), url(ü.jpg)", &["ü.jpg"]),
            ("--x: (url(a.jpg)) [url(b.jpg)]", &["a.jpg", "b.jpg"]),
        ] {
            assert_eq!(read(text, true), expected, "{text}");
        }
    }

    #[test]
    fn reads_image_urls_from_style_sheets() {
        let text = "@import url(other.css); @namespace svg url(http://www.w3.org/2000/svg);
            @font-face { font-family: x; src: url(font.woff2) format('woff2'), url('font.ttf') }
            .a:hover > b { background: url(a.jpg) } /* .x { background: url(no.jpg) } */
            @media (min-width: 100px) { .b::before { content: url('b.png'); color: red } }
            ul { list-style-image: url(c.gif) } .d { mask: url(#clip) } .e{border-image:url(e.png) 30";
        assert_eq!(read(text, false), ["a.jpg", "b.png", "c.gif", "#clip", "e.png"]);
        assert_eq!(read("\n<![CDATA[ .a { background: url(a.jpg) } ]]>", false), ["a.jpg"]);
    }

    #[test]
    fn reads_damaged_style_sheets_within_depth_limit() {
        let text = "<!-- .a { background: url(a.jpg) } --> } .b { width: (; background: url(no.jpg) }
            background: url(no.jpg) ) }; .c { color: red; & > p { background: url(c.jpg) }; mask: url(d.svg)";
        assert_eq!(read(text, false), ["a.jpg", "c.jpg", "d.svg"]);
        for open in ["a{", "background:f(", "a{b:[", "background:image-set("] {
            let text = open.repeat(200_000);
            assert_eq!(read(&format!("{text}url(a.jpg)"), true), [""; 0], "{open}");
        }
        let text = "a{".repeat(15);
        assert_eq!(read(&format!("{text}background:url(a.jpg)"), false), ["a.jpg"]);
    }

    proptest::proptest! {
        #[test]
        fn parsing_arbitrary_css_does_not_panic(text in "[a-z:;{}()'\"\\\\/*,ü\n-]{0,60}", is_attribute in proptest::bool::ANY) {
            read(&text, is_attribute);
        }
    }
}
