//! Frames and their times: each frame of a drawn film contains its number.
