//! Packets of RTP and RTCP (RFC 3550, RFC 6184) in the frames of interleaved RTSP (RFC 2326,
//! section 10.12).
use super::recording::AccessUnit;
use std::time::{Duration, SystemTime};

pub(super) const PAYLOAD_TYPE: u8 = 96;
const TICKS_PER_SECOND: u128 = 90_000;
const FRAGMENT: u8 = 28;
const MARKER: u8 = 0x80;

/// What a camera sends instead of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    /// Slices whose contents are random bytes.
    Slices,
    /// Packets whose payloads are random bytes.
    Payloads,
    /// Fragments without a beginning or without an end, and empty payloads.
    Fragments,
    /// Fragments of one frame that never ends.
    EndlessFrame,
}

/// Packs the frames for one client.
pub(super) struct Packer {
    channel: u8,
    packet_size: usize,
    ssrc: u32,
    sequence: u16,
    first_timestamp: u32,
    packets: u32,
    octets: u32,
    random: u64,
    endless_timestamp: Option<u32>,
}

impl Packer {
    /// `channel` is the interleaved channel of RTP; that of RTCP is the next one. `packet_size` is
    /// the largest payload in bytes. The numbers of the first packet depend on `seed`.
    pub(super) fn new(channel: u8, packet_size: usize, seed: u64) -> Self {
        let mut packer = Self {
            channel,
            // A fragment has 2 bytes of headers, and the length of a packet has 16 bits.
            packet_size: packet_size.clamp(16, 65_000),
            ssrc: 0,
            sequence: 0,
            first_timestamp: 0,
            packets: 0,
            octets: 0,
            // The generator needs a number other than 0.
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            endless_timestamp: None,
        };
        packer.ssrc = packer.random() as u32;
        // Clients ignore the values 0 and 1, because many cameras announce them wrongly.
        packer.sequence = (packer.random() as u16).max(2);
        packer.first_timestamp = packer.random() as u32;
        packer
    }

    pub(super) fn ssrc(&self) -> u32 {
        self.ssrc
    }

    /// Returns the sequence number of the next packet.
    pub(super) fn sequence(&self) -> u16 {
        self.sequence
    }

    /// Returns the timestamp of a time since the first frame.
    pub(super) fn timestamp(&self, time: Duration) -> u32 {
        // Times have only whole nanoseconds, so this rounds.
        let ticks = (time.as_nanos() * TICKS_PER_SECOND + 500_000_000) / 1_000_000_000;
        self.first_timestamp.wrapping_add(ticks as u32)
    }

    /// Returns the packets of a frame. The NAL units `before` come before it.
    pub(super) fn frame(&mut self, before: &[Vec<u8>], unit: &AccessUnit, timestamp: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let count = before.len() + unit.nal_units.len();
        for (at, nal_unit) in before.iter().chain(&unit.nal_units).enumerate() {
            let is_last = at + 1 == count;
            if nal_unit.len() <= self.packet_size {
                self.packet(&mut out, &[nal_unit], timestamp, is_last);
                continue;
            }
            let (header, body) = (nal_unit[0], &nal_unit[1..]);
            let chunks = body.chunks(self.packet_size - 2);
            let last = chunks.len() - 1;
            for (at, chunk) in chunks.enumerate() {
                let bounds = u8::from(at == 0) << 7 | u8::from(at == last) << 6;
                let fragment = [header & 0xe0 | FRAGMENT, header & 0x1f | bounds];
                self.packet(&mut out, &[&fragment, chunk], timestamp, is_last && at == last);
            }
        }
        out
    }

    /// Returns packets that a client cannot decode, in place of a frame.
    pub(super) fn garbage(&mut self, kind: Garbage, timestamp: u32) -> Vec<u8> {
        let mut out = Vec::new();
        match kind {
            Garbage::Slices => {
                let mut slice = self.random_bytes(1000);
                slice[0] = if self.random().is_multiple_of(4) { 0x65 } else { 0x41 };
                self.packet(&mut out, &[&slice], timestamp, true);
            }
            Garbage::Payloads => {
                let length = 1 + self.random() as usize % 1000;
                let payload = self.random_bytes(length);
                let is_last = self.random().is_multiple_of(2);
                self.packet(&mut out, &[&payload], timestamp, is_last);
            }
            Garbage::Fragments => {
                let bytes = self.random_bytes(500);
                let bounds = [0, 0x80, 0x40][self.random() as usize % 3];
                self.packet(&mut out, &[&[0x60 | FRAGMENT, 5 | bounds], &bytes], timestamp, false);
                self.packet(&mut out, &[], timestamp, true);
            }
            Garbage::EndlessFrame => {
                let bounds = if self.endless_timestamp.is_none() { 0x80 } else { 0 };
                let timestamp = *self.endless_timestamp.get_or_insert(timestamp);
                let bytes = self.random_bytes(self.packet_size - 2);
                self.packet(&mut out, &[&[0x60 | FRAGMENT, 5 | bounds], &bytes], timestamp, false);
            }
        }
        out
    }

    /// Returns a sender report: the frame with this timestamp is sent now.
    pub(super) fn report(&self, timestamp: u32) -> Vec<u8> {
        // Times of NTP begin in 1900, in units of 2^-32 s.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = (now.as_secs() + 2_208_988_800) as u32;
        let fraction = ((u64::from(now.subsec_nanos()) << 32) / 1_000_000_000) as u32;
        let mut body = vec![0x80, 200, 0, 6];
        for field in [self.ssrc, seconds, fraction, timestamp, self.packets, self.octets] {
            body.extend(field.to_be_bytes());
        }
        // A report must be followed by a description of the source. Its length is in words,
        // minus 1.
        body.extend([0x81, 202, 0, 4]);
        body.extend(self.ssrc.to_be_bytes());
        body.extend(*b"\x01\x06camera\0\0\0\0");
        let mut out = vec![b'$', self.channel + 1];
        out.extend((body.len() as u16).to_be_bytes());
        out.extend(body);
        out
    }

    /// Adds a packet whose payload consists of these parts.
    fn packet(&mut self, out: &mut Vec<u8>, parts: &[&[u8]], timestamp: u32, is_last: bool) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        out.extend([b'$', self.channel]);
        out.extend((12 + length as u16).to_be_bytes());
        out.extend([0x80, PAYLOAD_TYPE | if is_last { MARKER } else { 0 }]);
        out.extend(self.sequence.to_be_bytes());
        out.extend(timestamp.to_be_bytes());
        out.extend(self.ssrc.to_be_bytes());
        parts.iter().for_each(|part| out.extend(*part));
        self.sequence = self.sequence.wrapping_add(1);
        self.packets = self.packets.wrapping_add(1);
        self.octets = self.octets.wrapping_add(length as u32);
    }

    /// Returns a number from a generator with the method xorshift64.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn random_bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.random() as u8).collect()
    }
}
