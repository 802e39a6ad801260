//! Decodes images of formats for which only ffmpeg has a decoder, in the same sandbox as videos.
use crate::arguments::Plane;
use crate::cpu::CpuBudget;
use crate::error::VideoError;
use crate::frames::Pam;
use crate::messages::Messages;
use crate::{Decoder, arguments, child, frames};
use std::io::{self, Read};
use std::sync::{Arc, LazyLock};
use vision::decode::{CodedPictures, read_coded_image};
use vision::{DecodeError, Decoded, Format, Limits};

/// Messages of ffmpeg if it has no decoder or no reader for a format.
const NO_DECODER: [&str; 5] = [
    "no decoder found",
    "Decoder not found",
    "Unknown input format",
    "Invalid data found when processing input: unknown format",
    "hardware accelerated AV1 decoding",
];

/// The error of an image that was not decoded.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file is damaged, too large, or has an unsupported format.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The decoder could not be run, or was killed from outside.
    #[error(transparent)]
    Decoder(VideoError),
}

type OpenDecoder = Box<dyn FnOnce() -> Option<Decoder> + Send>;

/// Decodes images with a [`Decoder`] that is opened for the first image that needs it. Cloning it
/// is cheap. The default has no decoder.
#[derive(Clone, Debug)]
pub struct ImageDecoder(Arc<LazyLock<Option<Decoder>, OpenDecoder>>);

impl Default for ImageDecoder {
    fn default() -> Self {
        Self::new(|| None)
    }
}

impl ImageDecoder {
    /// Creates a decoder of images that calls `open` once, for the first image. `open` returns
    /// `None` if there is no usable ffmpeg. Later images do not call it again.
    pub fn new(open: impl FnOnce() -> Option<Decoder> + Send + 'static) -> Self {
        Self(Arc::new(LazyLock::new(Box::new(open))))
    }

    /// Decodes an image; see [`Decoder::image`].
    ///
    /// # Errors
    /// Fails with [`DecodeError::NeedsFfmpeg`] if there is no decoder, and with the errors of
    /// [`Decoder::image`].
    pub fn decode(&self, bytes: &[u8], limits: &Limits) -> Result<Decoded, ImageError> {
        let needs_ffmpeg =
            || DecodeError::NeedsFfmpeg { format: Format::sniff(bytes).map_or("the file's", Format::name) };
        LazyLock::force(&self.0).as_ref().ok_or_else(needs_ffmpeg)?.image(bytes, limits)
    }
}

impl Decoder {
    /// Decodes an image of a format with [`Format::needs_ffmpeg`], as it is shown: rotated,
    /// cropped, and with its alpha composed on white. Blocks. ffmpeg is killed if the calling
    /// thread ends.
    ///
    /// # Errors
    /// Fails with [`ImageError::Decode`] if the file is damaged, exceeds the limits, or has a
    /// format that this ffmpeg cannot decode.
    pub fn image(&self, bytes: &[u8], limits: &Limits) -> Result<Decoded, ImageError> {
        let image = read_coded_image(bytes, limits)?;
        let format = image.header.format;
        let mut assembly = image.assemble();
        let pixels = image.colour.pixels() + image.alpha.as_ref().map_or(0, CodedPictures::pixels);
        let budget = CpuBudget::for_image(pixels, self.config().limits.max_cpu);
        let decode = |pictures: &_, plane, add: &mut AddPicture<'_>| {
            self.decode_pictures(format, pictures, plane, &budget, add)
        };
        decode(&image.colour, Plane::Colour, &mut |size, samples| assembly.add_colour(size, samples))?;
        if let Some(alpha) = &image.alpha {
            decode(alpha, Plane::Alpha, &mut |size, samples| assembly.add_alpha(size, samples))?;
        }
        Ok(assembly.finish()?)
    }

    /// Decodes pictures, and passes size and samples of each one to `add`.
    fn decode_pictures(
        &self,
        format: Format,
        pictures: &CodedPictures<'_>,
        plane: Plane,
        budget: &CpuBudget,
        add: &mut AddPicture<'_>,
    ) -> Result<(), ImageError> {
        let stream = pictures.stream(format)?;
        let file = child::memory_file(&stream).map_err(|error| ImageError::Decoder(error.into()))?;
        let arguments = arguments::image(pictures, plane, stream.len());
        drop(stream);
        let to_image_error = |error| image_error(format, error);
        let mut process = self.start(&arguments, Some(&file), budget).map_err(to_image_error)?;
        let (mut samples, mut count) = (Vec::new(), 0);
        loop {
            let header = frames::read_pam_header(&mut process.pixels);
            let header = header.map_err(|error| to_image_error(process.read_error(error)))?;
            let Some(Pam { width, height, channels }) = header else { break };
            let pixels = u64::from(width) * u64::from(height);
            if pixels > pictures.max_pixels() || count == pictures.count() {
                return Err(to_image_error(VideoError::Output("a picture too large or too many")));
            }
            samples.resize((pixels * u64::from(channels)) as usize, 0);
            match process.pixels.read_exact(&mut samples) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(to_image_error(process.read_error(error))),
                Ok(()) => add((width, height), &samples)?,
            }
            count += 1;
        }
        let (status, messages) = process.finish().map_err(to_image_error)?;
        if count < pictures.count() {
            return Err(missing_pictures_error(format, &messages, status).into());
        }
        Ok(())
    }
}

/// Receives the size and the samples of a picture.
type AddPicture<'a> = dyn FnMut((u32, u32), &[u8]) -> Result<(), DecodeError> + 'a;

/// Returns the error of an image with missing pictures.
fn missing_pictures_error(
    format: Format,
    messages: &Messages,
    status: std::process::ExitStatus,
) -> DecodeError {
    let format = format.name();
    let has_no_decoder = messages.errors().any(|text| NO_DECODER.iter().any(|hint| text.contains(hint)));
    if has_no_decoder {
        return DecodeError::Unsupported { format, reason: "this ffmpeg has no decoder for it".into() };
    }
    let last_error = messages.errors().last().map(str::to_owned);
    let reason = last_error.unwrap_or_else(|| format!("the decoder ended with {status}"));
    DecodeError::Corrupt { format, reason }
}

/// Separates errors that the file causes from those of the machine.
fn image_error(format: Format, error: VideoError) -> ImageError {
    let corrupt = |reason: String| ImageError::Decode(DecodeError::Corrupt { format: format.name(), reason });
    match error {
        VideoError::Stalled(_) | VideoError::CpuLimit(_) => corrupt("decoding it takes too long".into()),
        VideoError::Output(content) => corrupt(format!("the decoder returned {content}")),
        other => ImageError::Decoder(other),
    }
}
