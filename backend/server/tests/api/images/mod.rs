mod quality;
mod stored;
