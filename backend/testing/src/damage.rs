//! Damages files at random: truncates or overwrites them, flips bits, removes or duplicates pieces.

/// A random number generator (xorshift64*) that returns the same numbers in every run.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed, which should differ between cases.
    pub fn new(seed: u64) -> Self {
        Self(0x9E37_79B9_7F4A_7C15 ^ seed)
    }

    /// Returns 48 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// Returns a number below `limit`, or 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.bits() as usize % limit.max(1)
    }
}

/// Returns a copy of the file, damaged in one to five places. The result is never empty.
pub fn damage(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(4) {
        // Half of the damage affects the header, which influences decoding most.
        let reach = if random.below(2) == 0 { out.len().min(64) } else { out.len() };
        let at = random.below(reach);
        match random.below(7) {
            0 => out.truncate(at.max(1)),
            1 => out[at] ^= 1 << random.below(8),
            2 => out[at] = random.bits() as u8,
            3 => out[at] = [0, 0xFF, 0x7F, 0x80][random.below(4)],
            4 => {
                let end = (at + 1 + random.below(8)).min(out.len());
                out.drain(at..end);
            }
            5 => {
                let piece = out[at..(at + 1 + random.below(16)).min(out.len())].to_vec();
                let to = random.below(out.len());
                out.splice(to..to, piece);
            }
            _ => {
                let end = (at + 4).min(out.len());
                out[at..end].fill(0xFF);
            }
        }
        if out.is_empty() {
            out.push(0);
        }
    }
    out
}
