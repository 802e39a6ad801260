//! Writes frames as Matroska (RFC 8794, RFC 9559).
