//! Tests the limits on connections, and the handling of open connections at shutdown.
use crate::support::App;
use server::Config;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

async fn connect(app: &App) -> TcpStream {
    TcpStream::connect(app.url.strip_prefix("http://").unwrap()).await.unwrap()
}

async fn connect_from(app: &App, address: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
    socket.connect(app.url.strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap()
}

/// Sends a request on an open connection and reads the whole response.
async fn send_request(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"}") {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{}", String::from_utf8_lossy(&bytes));
    }
    String::from_utf8(bytes).unwrap()
}

/// Reads until the server closes the connection. A reset is treated like a close.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _result = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

#[testing::test]
async fn incomplete_and_idle_connections_are_closed_in_time() {
    let app = App::spawn_bare(Config { connection_idle: Duration::from_secs(2), ..Config::default() }).await;
    let mut incomplete = connect(&app).await;
    incomplete.write_all(b"GET /health/live HTTP/1.1\r\nhost: te").await.unwrap();
    let mut silent = connect(&app).await;
    let mut idle = connect(&app).await;
    assert!(send_request(&mut idle).await.starts_with("HTTP/1.1 200"));
    // The reads end only because the server closes the connections.
    for stream in [&mut incomplete, &mut silent, &mut idle] {
        assert_eq!(read_to_end(stream).await, "");
    }
}

#[testing::test]
async fn oversized_request_head_is_rejected() {
    let app = App::spawn_bare(Config::default()).await;
    for (length, status) in [(60 << 10, "200"), (200 << 10, "431"), (400 << 10, "431")] {
        let mut stream = connect(&app).await;
        let filler = "f".repeat(length);
        let head = format!(
            "GET /health/live HTTP/1.1\r\nhost: localhost\r\nx-filler: {filler}\r\nconnection: close\r\n\r\n"
        );
        // The service may respond before it has read everything.
        let _result = stream.write_all(head.as_bytes()).await;
        let mut response = Vec::new();
        let _result = stream.read_to_end(&mut response).await;
        let response = String::from_utf8(response).unwrap();
        // A reset can discard a response that was not read yet.
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status}")) || (status == "431" && response.is_empty()),
            "{length}: {response}"
        );
    }
}

#[testing::test]
async fn excess_connection_waits_until_another_closes() {
    let app = App::spawn_bare(Config { max_connections: 1, ..Config::default() }).await;
    let mut first = connect(&app).await;
    send_request(&mut first).await;
    let mut second = connect(&app).await;
    second.write_all(b"GET /health/live HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await.unwrap();
    // The first connection is still served, so the server works and has not accepted the second
    // one.
    let mut byte = [0];
    for _ in 0..20 {
        send_request(&mut first).await;
        assert!(
            second.try_read(&mut byte).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        );
    }
    drop(first);
    assert!(read_to_end(&mut second).await.starts_with("HTTP/1.1 200"));
}

#[testing::test]
async fn request_during_stop_is_answered_as_last_of_connection() {
    let app = App::spawn_bare(Config::default()).await;
    let mut open = connect(&app).await;
    assert!(!send_request(&mut open).await.contains("connection: close"));
    app.shutdown.cancel();
    let last = send_request(&mut open).await;
    assert!(last.starts_with("HTTP/1.1 200") && last.contains("connection: close"), "{last}");
    assert_eq!(read_to_end(&mut open).await, "");
    app.stop().await.unwrap();
}

#[testing::test]
async fn idle_connection_does_not_delay_stop() {
    let app = App::spawn_bare(Config { drain: Duration::from_secs(600), ..Config::default() }).await;
    let mut idle = connect(&app).await;
    send_request(&mut idle).await;
    app.stop().await.unwrap();
    assert_eq!(read_to_end(&mut idle).await, "");
}

#[testing::test]
async fn connection_accepted_during_stop_is_answered() {
    let app = App::spawn_bare(Config { max_connections: 1, ..Config::default() }).await;
    let mut first = connect(&app).await;
    send_request(&mut first).await;
    // This connection waits in the kernel until the first one is closed, which happens only at
    // shutdown.
    let mut waiting = connect(&app).await;
    waiting.write_all(b"GET /health/live HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    app.shutdown.cancel();
    assert!(send_request(&mut first).await.contains("connection: close"));
    let response = read_to_end(&mut waiting).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.contains("connection: close"), "{response}");
    app.stop().await.unwrap();
}

#[testing::test]
async fn one_address_holds_at_most_three_quarters_of_connections() {
    const LAST: &[u8] = b"GET /health/live HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
    let app = App::spawn_bare(Config { max_connections: 4, ..Config::default() }).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(&app).await;
        send_request(&mut stream).await;
        held.push(stream);
    }
    let mut fourth = connect(&app).await;
    // The service may close the connection before the request is written.
    let _result = fourth.write_all(LAST).await;
    assert_eq!(read_to_end(&mut fourth).await, "");
    let mut other_address = connect_from(&app, "127.0.0.2").await;
    assert!(send_request(&mut other_address).await.starts_with("HTTP/1.1 200"));
    for stream in &mut held {
        send_request(stream).await;
    }
    // A new connection is accepted as soon as the service notices that an old one was closed.
    held.pop();
    loop {
        let mut next = connect(&app).await;
        let _result = next.write_all(LAST).await;
        if read_to_end(&mut next).await.starts_with("HTTP/1.1 200") {
            break;
        }
    }
}
