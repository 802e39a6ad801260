//! The facecrawl binary: command line, configuration, telemetry and shutdown.
