//! Encodes baseline JPEG (ITU-T T.81) in a JFIF container, with the Huffman tables of the standard.
//! Reading of JPEG is in `decode`.

mod entropy;
mod planes;
mod tables;
mod transform;

use crate::Frame;
use entropy::{BitWriter, HuffmanTables};
use planes::Planes;
use tables::{BASE_QUANTIZATION, BLOCK, COEFFICIENTS, HUFFMAN, ZIGZAG};
use transform::{Quantizer, coefficients};

/// Resolution of the two colour planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chroma {
    /// 4:4:4: as many values as pixels.
    Full,
    /// 4:2:0: one value for two by two pixels.
    Quarter,
}

impl Chroma {
    /// Returns the number of luma blocks along each side of a group of blocks. A group has one
    /// block of each colour plane.
    fn factor(self) -> usize {
        match self {
            Self::Full => 1,
            Self::Quarter => 2,
        }
    }
}

/// Encodes `frame` with the quality scale of the Independent JPEG Group, 1..=100.
///
/// # Panics
/// Panics if a side exceeds 65,535 pixels, the maximum of the format.
pub(super) fn encode(frame: &Frame, quality: u8, chroma: Chroma) -> Vec<u8> {
    let tables = BASE_QUANTIZATION.map(|base| quantization(&base, quality));
    let mut out = Vec::with_capacity(1024 + frame.data().len() / 8);
    write_header(&mut out, frame, &tables, chroma);

    let [luma, colour] = tables.map(|table| Quantizer::new(&table));
    let [luma_codes, colour_codes] = HUFFMAN.each_ref().map(HuffmanTables::new);
    let mut bits = BitWriter::new(out);
    let mut previous = [0; 3];
    let mut planes = Planes::new(frame, chroma);
    for top in (0..frame.height() as usize).step_by(planes.group_side()) {
        planes.read(frame, top);
        for group in 0..planes.groups() {
            for block in planes.luma_blocks(group) {
                bits.block(&coefficients(block, &luma), &mut previous[0], &luma_codes);
            }
            for (block, previous) in planes.colour_blocks(group).into_iter().zip(&mut previous[1..]) {
                bits.block(&coefficients(block, &colour), previous, &colour_codes);
            }
        }
    }
    let mut out = bits.finish();
    out.extend([0xFF, 0xD9]);
    out
}

/// Scales a table of steps by the quality, as the Independent JPEG Group's encoder does.
fn quantization(base: &[u8; COEFFICIENTS], quality: u8) -> [u8; COEFFICIENTS] {
    let quality = u32::from(quality.clamp(1, 100));
    let percent = if quality < 50 { 5000 / quality } else { 200 - 2 * quality };
    base.map(|step| ((u32::from(step) * percent + 50) / 100).clamp(1, 255) as u8)
}

/// Writes everything up to the first scan's data.
fn write_header(out: &mut Vec<u8>, frame: &Frame, tables: &[[u8; COEFFICIENTS]; 2], chroma: Chroma) {
    out.extend([0xFF, 0xD8]);
    let mut segment = |code: u8, parts: &[&[u8]]| {
        let length = 2 + parts.iter().map(|part| part.len()).sum::<usize>();
        out.extend([0xFF, code]);
        out.extend((length as u16).to_be_bytes());
        parts.iter().for_each(|part| out.extend(*part));
    };
    // JFIF 1.2, square pixels, no thumbnail.
    segment(0xE0, &[b"JFIF\0\x01\x02\0\0\x01\0\x01\0\0"]);
    for (id, table) in (0..).zip(tables) {
        segment(0xDB, &[&[id], &ZIGZAG.map(|at| table[usize::from(at)])]);
    }
    let side = |length: u32| u16::try_from(length).expect("a side is at most 65,535 pixels").to_be_bytes();
    let sampling = (chroma.factor() * 0x11) as u8;
    // Components 1 to 3 with their sampling factors and table.
    let components = [1, sampling, 0, 2, 0x11, 1, 3, 0x11, 1];
    segment(0xC0, &[&[BLOCK as u8], &side(frame.height()), &side(frame.width()), &[3], &components]);
    for (id, [dc, ac]) in (0..).zip(&HUFFMAN) {
        segment(0xC4, &[&[id], &dc.counts, dc.values, &[0x10 | id], &ac.counts, ac.values]);
    }
    // Three components with their tables, all coefficients in one scan.
    segment(0xDA, &[&[3, 1, 0x00, 2, 0x11, 3, 0x11, 0, 63, 0]]);
}
