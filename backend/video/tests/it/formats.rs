//! Properties of files that change what a frame shows, or when: sound, joined recordings, pixels
//! that are not square, and high dynamic range.

use super::decoder;
use super::frames::{EVERY_FRAME, Shown, all, encode, numbers, short, testing_read};
use std::fs::File;
use testing::film::{Codec, Container, Encoding, Film};
use video::sampling::{MAX_GAP_US, plan};
use video::{Index, Sampling};

#[testing::needs(video)]
#[test]
fn sound_is_not_damage() {
    let folder = tempfile::tempdir().unwrap();
    let (silent, path) = (folder.path().join("silent.mp4"), folder.path().join("film.mp4"));
    Film::short().encode(&Encoding::new(Codec::H264, Container::Mp4), &silent).unwrap();
    let added = std::process::Command::new(testing::ffmpeg())
        .args(["-loglevel", "error", "-i"])
        .arg(&silent)
        .args(["-f", "lavfi", "-i", "sine", "-t", "2", "-c:v", "copy", "-c:a", "aac"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(added.success());
    let (decoder, file) = (decoder(), File::open(&path).unwrap());
    let index = decoder.index(&file).unwrap();
    assert_eq!(index.damage, None);
    let mut frames = decoder.frames(&file, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US)[0]).unwrap();
    let mut count = 0;
    while frames.next_frame().unwrap().is_some() {
        count += 1;
    }
    assert_eq!((count, frames.damage()), (Film::short().length(), None));
}

/// Writes a film with a picture as another stream of video that is not marked as a cover.
fn with_cover(film: &std::path::Path, codec: &str, is_first: bool, path: &std::path::Path) {
    let (first, second) = if is_first { ("1:v", "0:v") } else { ("0:v", "1:v") };
    let cover = if is_first { "-c:v:0" } else { "-c:v:1" };
    let added = std::process::Command::new(testing::ffmpeg())
        .args(["-loglevel", "error", "-i"])
        .arg(film)
        .args(["-f", "lavfi", "-i", "color=red:size=1024x1024:rate=25:duration=0.04"])
        .args(["-map", first, "-map", second, "-c", "copy", cover, codec])
        .arg(path)
        .status()
        .unwrap();
    assert!(added.success(), "{codec} {}", path.display());
}

#[testing::needs(video)]
#[test]
fn a_cover_that_is_not_marked_does_not_hide_the_film() {
    let folder = tempfile::tempdir().unwrap();
    let decoder = decoder();
    let covers = [
        (Container::Mkv, ["mjpeg", "png"].as_slice()),
        (Container::Mp4, &["mjpeg", "png"]),
        (Container::Avi, &["mjpeg", "png", "bmp"]),
    ];
    for (container, codecs) in covers {
        let encoding = Encoding::new(Codec::H264, container);
        let shown = encode(&Film::short(), &encoding);
        let film = folder.path().join("film").with_extension(container.extension());
        std::fs::write(&film, testing_read(&shown.file)).unwrap();
        for (codec, is_first) in codecs.iter().flat_map(|codec| [(codec, true), (codec, false)]) {
            let path = folder.path().join(format!("{codec}-{is_first}.{}", container.extension()));
            with_cover(&film, codec, is_first, &path);
            let shown = Shown { file: File::open(&path).unwrap(), truth: shown.truth.clone() };
            let index = decoder.index(&shown.file).unwrap();
            assert_eq!(
                (index.codec.as_str(), index.width),
                ("h264", 256),
                "{container:?} {codec} {is_first}"
            );
            let found = numbers(&decoder, &shown, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US));
            assert_eq!(found, all(&shown.truth), "{container:?} {codec} {is_first}");
        }
    }
}

/// Some receivers join recordings as they are, so the timestamps of the second part are earlier.
#[testing::needs(video)]
#[test]
fn joined_recordings_are_read_with_continued_times() {
    let decoder = decoder();
    let folder = tempfile::tempdir().unwrap();
    let encoding = Encoding { keyframe_interval: 20, ..Encoding::new(Codec::H264, Container::Ts) };
    let (one, film) = (encode(&short(), &encoding), all(&short().truth(&encoding)));
    let part = testing_read(&one.file);
    let later = |name: &str, arguments: &[&str]| {
        let (from, to) = (folder.path().join("part.ts"), folder.path().join(name));
        std::fs::write(&from, &part).unwrap();
        let mut command = std::process::Command::new(testing::ffmpeg());
        command.args(["-nostdin", "-y", "-loglevel", "error", "-i"]).arg(&from);
        command.args(["-c", "copy", "-muxdelay", "0"]);
        assert!(command.args(arguments).arg(&to).status().unwrap().success());
        std::fs::read(to).unwrap()
    };
    // Jumps by an hour and by two seconds. ffmpeg treats them differently.
    for offset in ["3600", "3"] {
        let joined = [later("first.ts", &["-output_ts_offset", offset]), part.clone()].concat();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &joined).unwrap();
        let shown = Shown { file, truth: one.truth.clone() };
        let index = decoder.index(&shown.file).unwrap();
        let every = numbers(&decoder, &shown, &index, &plan(&index, EVERY_FRAME, MAX_GAP_US));
        let frames: Vec<u32> = every.iter().map(|(_, number)| *number).collect();
        let expected: Vec<u32> = film.iter().chain(&film).map(|(_, number)| *number).collect();
        assert_eq!(frames, expected, "{offset}");
        assert!(every.windows(2).all(|pair| pair[1].0 - pair[0].0 < 100_000), "{offset}");
        let automatic = plan(&index, Sampling::Auto, 400_000);
        assert_eq!(automatic.len(), 1);
        let found = numbers(&decoder, &shown, &index, &automatic);
        assert!(found.windows(2).all(|pair| pair[1].0 - pair[0].0 <= 480_000), "{offset} {found:?}");
        assert!(found.iter().all(|frame| every.contains(frame)) && found.len() > 20, "{offset} {found:?}");
        assert!((0..100_000).contains(&(index.duration_us.unwrap() - every.last().unwrap().0)));
    }
    // Another channel has other numbers of streams, of which only the first one is read.
    let joined = [part.clone(), later("other.ts", &["-streamid", "0:777"])].concat();
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &joined).unwrap();
    let damage = decoder.index(&file).unwrap().damage.unwrap();
    assert!(damage.message.contains("2 streams of video"), "{damage:?}");
}

/// Writes a film of one second with ffmpeg, from a picture with a white square in its centre.
fn drawn(size: &str, filters: &str, arguments: &[&str], name: &str) -> File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut command = std::process::Command::new(testing::ffmpeg());
    command.args(["-loglevel", "error", "-f", "lavfi", "-i"]).arg(format!(
        "color=black:size={size}:duration=1,drawbox=x=(iw-iw/4)/2:y=(ih-ih/4)/2:w=iw/4:h=ih/4:c=white:t=fill,{filters}"
    ));
    assert!(command.args(arguments).arg(&path).status().unwrap().success());
    File::open(path).unwrap()
}

fn first_frame(file: &File) -> (Index, vision::Frame) {
    let decoder = decoder();
    let index = decoder.index(file).unwrap();
    let every = plan(&index, EVERY_FRAME, MAX_GAP_US);
    let frame = decoder.frames(file, &index, &every[0]).unwrap().next_frame().unwrap().unwrap().frame;
    (index, frame)
}

#[testing::needs(video)]
#[test]
fn pixels_that_are_not_square_are_enlarged() {
    for (aspect, size) in
        [("64/45", (1024, 576)), ("8/9", (720, 648)), ("1", (720, 576)), ("100", (720, 576))]
    {
        for name in ["film.mkv", "film.ts", "film.mp4"] {
            let film = drawn("720x576", &format!("setsar={aspect}:max=100"), &["-c:v", "mpeg4"], name);
            let (index, frame) = first_frame(&film);
            let found = (frame.width(), frame.height());
            assert_eq!((found, (index.width, index.height)), (size, size), "{aspect} {name}");
            let white = |x, y| frame.pixel(x, y)[1] > 128;
            let (left, top) = (size.0 * 3 / 8, size.1 * 3 / 8);
            assert!(white(left + 8, top + 8) && !white(left - 8, top + 8) && !white(left + 8, top - 8));
        }
    }
}

#[testing::needs(video)]
#[test]
fn high_dynamic_range_without_primaries_is_mapped() {
    for colours in ["smpte2084", "arib-std-b67"] {
        for named in ["", ":color_primaries=bt2020", ":colorspace=bt2020nc"] {
            let filters = format!("format=yuv420p10le,setparams=color_trc={colours}{named}");
            let arguments = ["-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none"];
            let (_, frame) = first_frame(&drawn("320x240", &filters, &arguments, "film.mkv"));
            let (white, black) = (frame.pixel(160, 120), frame.pixel(10, 10));
            assert!(white.iter().all(|value| *value > 150), "{colours} {named} {white:?}");
            assert!(black.iter().all(|value| *value < 20), "{colours} {named} {black:?}");
        }
    }
}
