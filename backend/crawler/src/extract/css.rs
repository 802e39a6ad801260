//! Finds images in style sheets and style attributes.

/// Calls `found` with the URL of every image.
///
/// Images are `url(…)` and the strings of `image-set(…)` in backgrounds, borders, lists, masks,
/// generated content and custom properties. Fonts (`src`), `@import` and `@namespace` are ignored.
/// Only the image with the highest density of an `image-set` is reported. `attribute` means that
/// the text is a `style` attribute: declarations without a rule around them.
pub(super) fn images(text: &str, attribute: bool, mut found: impl FnMut(String)) {
    let mut scan = Scan { text, at: 0 };
    let mut property = if attribute { Property::Name(0) } else { Property::Selector };
    // The open `image-set(`, if the scanner is inside one.
    let mut set: Option<Set> = None;
    while let Some(byte) = scan.peek() {
        match byte {
            b'/' if scan.rest().starts_with("/*") => {
                scan.at = scan.rest()[2..].find("*/").map_or(text.len(), |end| scan.at + end + 4);
            }
            b'"' | b'\'' => {
                let string = scan.string();
                if let Some(set) = &mut set
                    && set.depth == 1
                    && property.takes_images()
                {
                    set.last = Some(string);
                }
            }
            b'{' | b';' | b'}' => {
                scan.at += 1;
                if let Some(set) = set.take() {
                    set.finish(&mut found);
                }
                property = Property::Name(scan.at);
            }
            b':' => {
                if let Property::Name(from) = property {
                    property = Property::of(&text[from..scan.at]);
                }
                scan.at += 1;
            }
            b'(' => {
                scan.at += 1;
                if let Some(set) = &mut set {
                    set.depth += 1;
                }
            }
            b')' => {
                scan.at += 1;
                if let Some(open) = &mut set {
                    open.depth -= 1;
                    if open.depth == 0
                        && let Some(set) = set.take()
                    {
                        set.finish(&mut found);
                    }
                }
            }
            b',' => {
                scan.at += 1;
                if let Some(set) = &mut set
                    && set.depth == 1
                {
                    set.settle();
                }
            }
            _ if byte.is_ascii_alphanumeric()
                || matches!(byte, b'-' | b'_' | b'@' | b'.')
                || byte >= 0x80 =>
            {
                let word = scan.word();
                if scan.peek() != Some(b'(') {
                    if let Some(set) = &mut set {
                        set.density(word);
                    }
                } else if word.eq_ignore_ascii_case("url") {
                    scan.at += 1;
                    let url = scan.url();
                    match &mut set {
                        _ if !property.takes_images() => {}
                        Some(set) => set.last = Some(url),
                        None => found(url),
                    }
                } else if set.is_none()
                    && (word.eq_ignore_ascii_case("image-set")
                        || word.eq_ignore_ascii_case("-webkit-image-set"))
                {
                    scan.at += 1;
                    set = Some(Set { depth: 1, last: None, last_density: 1.0, best: None });
                }
            }
            b'\\' => scan.at = (scan.at + 2).min(text.len()),
            _ => scan.at += 1,
        }
        while !text.is_char_boundary(scan.at) {
            scan.at += 1;
        }
    }
    if let Some(set) = set {
        set.finish(&mut found);
    }
}

/// Which declaration the scanner is in.
#[derive(Clone, Copy)]
enum Property {
    /// Before the first brace of a style sheet.
    Selector,
    /// Inside a possible declaration, whose name starts at this offset.
    Name(usize),
    /// In the value of a property that can contain images.
    Image,
    /// In any other value.
    Other,
}

impl Property {
    fn of(name: &str) -> Self {
        let name = name.trim_ascii().to_ascii_lowercase();
        let name = name.rsplit("*/").next().unwrap_or_default().trim_ascii();
        let shows = ["background", "border-image", "list-style", "mask", "-webkit-mask", "content", "--"];
        if shows.iter().any(|p| name.starts_with(p)) { Self::Image } else { Self::Other }
    }

    fn takes_images(self) -> bool {
        matches!(self, Self::Image)
    }
}

/// An open `image-set(`.
struct Set {
    depth: usize,
    last: Option<String>,
    last_density: f64,
    best: Option<(f64, String)>,
}

impl Set {
    /// Reads a density after an image: `2x`, `1.5dppx`, `192dpi`.
    fn density(&mut self, word: &str) {
        let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let per_unit = if word.ends_with("dpi") { 96.0 } else { 1.0 };
        if let Ok(value) = number.parse::<f64>()
            && value.is_finite()
            && self.depth == 1
        {
            self.last_density = value / per_unit;
        }
    }

    fn settle(&mut self) {
        if let Some(url) = self.last.take()
            && self.best.as_ref().is_none_or(|(density, _)| self.last_density > *density)
        {
            self.best = Some((self.last_density, url));
        }
        self.last_density = 1.0;
    }

    fn finish(mut self, found: &mut impl FnMut(String)) {
        self.settle();
        if let Some((_, url)) = self.best {
            found(url);
        }
    }
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest
            .bytes()
            .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'@' | b'.') || b >= 0x80))
            .unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Reads a quoted string, starting at its quote. As in CSS, an unescaped line end also ends it.
    fn string(&mut self) -> String {
        let quote = self.peek();
        self.at += 1;
        let end = |b: u8| Some(b) == quote || b == b'\n';
        self.until(end)
    }

    /// Reads the content of `url(` up to the closing parenthesis, inclusive.
    fn url(&mut self) -> String {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_ascii_start().len();
        let value = match self.peek() {
            Some(b'"' | b'\'') => {
                let value = self.string();
                self.until(|b| b == b')');
                value
            }
            _ => self.until(|b| b == b')'),
        };
        value.trim_ascii().to_owned()
    }

    /// Returns the text up to the first unescaped byte that `end` accepts, with escapes decoded.
    /// That byte is skipped.
    fn until(&mut self, end: impl Fn(u8) -> bool) -> String {
        let mut out = String::new();
        let mut chars = self.rest().char_indices().peekable();
        let mut length = self.rest().len();
        while let Some((at, c)) = chars.next() {
            if c.is_ascii() && end(c as u8) {
                length = at + 1;
                break;
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            // An escape is one to six hexadecimal digits and an optional space, or any single
            // character.
            let mut digits = String::new();
            while let Some((_, d)) = chars.next_if(|(_, d)| d.is_ascii_hexdigit() && digits.len() < 6) {
                digits.push(d);
            }
            if digits.is_empty() {
                out.extend(chars.next().map(|(_, c)| c).filter(|c| *c != '\n'));
            } else {
                chars.next_if(|(_, c)| c.is_ascii_whitespace());
                let code = u32::from_str_radix(&digits, 16).unwrap_or_default();
                out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        self.at += length;
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, attribute: bool) -> Vec<String> {
        let mut urls = Vec::new();
        images(text, attribute, |url| urls.push(url));
        urls
    }

    #[test]
    fn style_attributes() {
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
        ] {
            assert_eq!(read(text, true), expected, "{text}");
        }
    }

    #[test]
    fn style_sheets() {
        let text = "@import url(other.css); @namespace svg url(http://www.w3.org/2000/svg);
            @font-face { font-family: x; src: url(font.woff2) format('woff2'), url('font.ttf') }
            .a:hover > b { background: url(a.jpg) } /* .x { background: url(no.jpg) } */
            @media (min-width: 100px) { .b::before { content: url('b.png'); color: red } }
            ul { list-style-image: url(c.gif) } .d { mask: url(#clip) } .e{border-image:url(e.png) 30";
        assert_eq!(read(text, false), ["a.jpg", "b.png", "c.gif", "#clip", "e.png"]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_style(text in "[a-z:;{}()'\"\\\\/*,ü\n-]{0,60}", attribute in proptest::bool::ANY) {
            read(&text, attribute);
        }
    }
}
