//! Huffman coding of quantised blocks.

use super::tables::{COEFFICIENTS, Huffman};

/// A Huffman code: the bits and their number.
#[derive(Clone, Copy, Default)]
struct Code {
    bits: u16,
    length: u8,
}

/// The codes of a plane.
pub(super) struct HuffmanTables {
    /// Codes of the sizes of differences between the first coefficients.
    dc: [Code; 16],
    /// Codes of the other coefficients, by 16 times the number of zeros before it plus its size.
    ac: [Code; 256],
}

impl HuffmanTables {
    /// Assigns the codes of the tables for the first and for the other coefficients.
    pub(super) fn new([dc, ac]: &[Huffman; 2]) -> Self {
        Self { dc: codes(dc), ac: codes(ac) }
    }
}

/// Assigns codes in increasing order of length (T.81, annex C).
fn codes<const LENGTH: usize>(table: &Huffman) -> [Code; LENGTH] {
    let mut codes = [Code::default(); LENGTH];
    let mut values = table.values.iter();
    let mut bits = 0;
    for (length, count) in (1..).zip(table.counts) {
        for value in values.by_ref().take(usize::from(count)) {
            codes[usize::from(*value)] = Code { bits, length };
            bits += 1;
        }
        bits <<= 1;
    }
    codes
}

/// A run of sixteen zeros before the next coefficient.
const SIXTEEN_ZEROS: usize = 0xF0;
/// All remaining coefficients are zero.
const END_OF_BLOCK: usize = 0;

/// Writes bits, the highest first.
pub(super) struct BitWriter {
    out: Vec<u8>,
    /// The lowest `count` bits are not written yet.
    pending: u64,
    /// Less than 32 between calls.
    count: u32,
}

impl BitWriter {
    /// Creates a writer that appends to `out`.
    pub(super) fn new(out: Vec<u8>) -> Self {
        Self { out, pending: 0, count: 0 }
    }

    /// Writes a block of coefficients in zigzag order. `previous` is the first coefficient of the
    /// plane's previous block. Levels are in -128..=127, so a difference of first coefficients has
    /// at most 11 bits, and each other coefficient at most 10. The tables have codes for these.
    pub(super) fn block(&mut self, block: &[i16; COEFFICIENTS], previous: &mut i16, tables: &HuffmanTables) {
        let (bits, size) = magnitude(block[0] - *previous);
        *previous = block[0];
        self.coded(tables.dc[size as usize], bits, size);

        let mut present = 0u64;
        for (at, level) in block.iter().enumerate() {
            present |= u64::from(*level != 0) << at;
        }
        present &= !1;
        let mut last = 0;
        while present != 0 {
            let at = present.trailing_zeros() as usize;
            let mut zeros = at - last - 1;
            while zeros > 15 {
                self.coded(tables.ac[SIXTEEN_ZEROS], 0, 0);
                zeros -= 16;
            }
            let (bits, size) = magnitude(block[at % COEFFICIENTS]);
            self.coded(tables.ac[(zeros << 4 | size as usize) & 255], bits, size);
            last = at;
            present &= present - 1;
        }
        if last != COEFFICIENTS - 1 {
            self.coded(tables.ac[END_OF_BLOCK], 0, 0);
        }
    }

    /// Writes a code and the `size` bits that follow it, at most 27 bits together.
    #[inline(always)]
    fn coded(&mut self, code: Code, bits: u32, size: u32) {
        let length = u32::from(code.length) + size;
        self.pending = self.pending << length | u64::from(u32::from(code.bits) << size | bits);
        self.count += length;
        if self.count >= 32 {
            self.count -= 32;
            self.word((self.pending >> self.count) as u32);
        }
    }

    /// Writes four bytes. A zero follows each byte of ones, so that it is not mistaken for a
    /// marker.
    fn word(&mut self, word: u32) {
        let inverse = !word;
        // Nonzero if a byte of `inverse` is zero.
        let ones = inverse.wrapping_sub(0x0101_0101) & word & 0x8080_8080;
        if ones == 0 {
            self.out.extend_from_slice(&word.to_be_bytes());
        } else {
            word.to_be_bytes().into_iter().for_each(|byte| self.byte(byte));
        }
    }

    fn byte(&mut self, byte: u8) {
        self.out.push(byte);
        if byte == 0xFF {
            self.out.push(0);
        }
    }

    /// Fills the last byte with ones and returns what was written.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let filled = self.count.next_multiple_of(8);
        let spare = filled - self.count;
        let bits = self.pending << spare | ((1 << spare) - 1);
        for shift in (0..filled).step_by(8).rev() {
            self.byte((bits >> shift) as u8);
        }
        self.out
    }
}

/// Returns the bits of a coefficient and their number. A negative one is written minus one.
#[inline(always)]
fn magnitude(level: i16) -> (u32, u32) {
    let level = i32::from(level);
    let size = 32 - level.unsigned_abs().leading_zeros();
    let bits = (level + (level >> 31)) as u32 & ((1 << size) - 1);
    (bits, size)
}
