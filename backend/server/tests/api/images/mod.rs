mod enhance;
mod quality;
mod stored;
