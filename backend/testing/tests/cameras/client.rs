//! Tests of the RTSP camera with a small client that sees each packet.
use super::{fast, rtsp};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use testing::camera::{DescribeFault, Garbage, RtspCamera, RtspOptions};

/// A client of RTSP that does as little as possible.
struct Client {
    stream: BufReader<TcpStream>,
    url: String,
    sequence: u32,
}

/// A packet of RTP or RTCP.
struct Packet {
    channel: u8,
    bytes: Vec<u8>,
}

impl Packet {
    fn sequence(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }

    fn timestamp(&self) -> u32 {
        u32::from_be_bytes(self.bytes[4..8].try_into().unwrap())
    }

    fn ends_frame(&self) -> bool {
        self.bytes[1] & 0x80 != 0
    }
}

impl Client {
    fn connect(camera: &RtspCamera) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", camera.port())).unwrap();
        Self { stream: BufReader::new(stream), url: camera.url(), sequence: 0 }
    }

    fn send(&mut self, method: &str, header: &str) {
        self.sequence += 1;
        let (url, sequence) = (&self.url, self.sequence);
        let request = format!("{method} {url} RTSP/1.0\r\nCSeq: {sequence}\r\n{header}\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// Returns the first lines of an answer.
    fn answer(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.stream.read_line(&mut head).unwrap() > 0, "{head}");
        }
        head
    }

    fn play(&mut self) {
        self.send("SETUP", "Transport: RTP/AVP/TCP;unicast;interleaved=4-5\r\n");
        assert!(self.answer().contains("interleaved=4-5;ssrc="));
        self.send("PLAY", "");
        assert!(self.answer().contains("rtptime="));
    }

    fn packet(&mut self) -> Packet {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).unwrap();
        assert_eq!(header[0], b'$');
        let mut bytes = vec![0; usize::from(u16::from_be_bytes([header[2], header[3]]))];
        self.stream.read_exact(&mut bytes).unwrap();
        Packet { channel: header[1], bytes }
    }

    /// Returns the next packet of RTP.
    fn media_packet(&mut self) -> Packet {
        loop {
            let packet = self.packet();
            if packet.channel == 4 {
                return packet;
            }
        }
    }

    /// Returns the timestamps of the next `count` frames.
    fn timestamps(&mut self, count: usize) -> Vec<u32> {
        let packets = std::iter::repeat_with(|| self.media_packet());
        packets.filter(Packet::ends_frame).map(|packet| packet.timestamp()).take(count).collect()
    }
}

#[testing::needs(video)]
#[test]
fn packets_are_numbered_and_reports_match_their_frames() {
    let camera = rtsp(RtspOptions { packet_size: 500, ..RtspOptions::default() });
    camera.flood(true);
    let mut client = Client::connect(&camera);
    client.play();
    let mut previous: Option<Packet> = None;
    let (mut reports, mut fragments) = (0, 0);
    while reports < 3 {
        let packet = client.packet();
        if packet.channel == 5 {
            reports += 1;
            assert_eq!(packet.bytes[1], 200);
            let timestamp = u32::from_be_bytes(packet.bytes[16..20].try_into().unwrap());
            assert_eq!(timestamp, previous.as_ref().unwrap().timestamp());
            continue;
        }
        assert!(packet.bytes.len() <= 12 + 500);
        fragments += u32::from(packet.bytes[12] & 0x1f == 28);
        if let Some(previous) = &previous {
            assert_eq!(packet.sequence(), previous.sequence().wrapping_add(1));
            let ticks = packet.timestamp().wrapping_sub(previous.timestamp());
            assert_eq!(ticks, if previous.ends_frame() { 3_600 } else { 0 });
        }
        previous = Some(packet);
    }
    assert!(fragments > 20, "{fragments}");
}

#[testing::needs(video)]
#[test]
fn timestamps_jump_while_the_camera_lies() {
    let camera = rtsp(fast());
    let mut client = Client::connect(&camera);
    client.play();
    let regular = |times: &[u32]| times.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == 3_600);
    assert!(regular(&client.timestamps(20)));
    camera.lie_about_times(true);
    let times = client.timestamps(40);
    let jumps: Vec<i32> = times.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as i32).collect();
    assert!(jumps.iter().any(|jump| *jump > 300_000_000) && jumps.iter().any(|jump| *jump < -300_000_000));
    // The last frames before the end of the lies may still be on their way.
    camera.lie_about_times(false);
    while !regular(&client.timestamps(20)) {}
}

#[testing::needs(video)]
#[test]
fn endless_frame_has_no_end() {
    let camera = rtsp(fast());
    camera.send_garbage(Garbage::EndlessFrame, u64::MAX);
    camera.flood(true);
    let mut client = Client::connect(&camera);
    client.play();
    let packets: Vec<Packet> = (0..2_000).map(|_| client.media_packet()).collect();
    assert!(packets.iter().all(|packet| packet.timestamp() == packets[0].timestamp()));
    assert!(!packets.iter().any(Packet::ends_frame));
}

#[testing::needs(video)]
#[tokio::test]
async fn paused_camera_answers_after_the_pause() {
    let camera = rtsp(fast());
    let mut playing = Client::connect(&camera);
    playing.play();
    let last_before = *playing.timestamps(20).last().unwrap();
    camera.pause();
    let mut new = Client::connect(&camera);
    new.send("OPTIONS", "");
    camera.wait_for(|counts| counts.connections == 2).await;
    assert_eq!(camera.counts().requests, 2);
    camera.resume();
    assert!(new.answer().contains("Public: OPTIONS, DESCRIBE"));
    let times = playing.timestamps(20);
    assert!(times[0].wrapping_sub(last_before) >= 3_600);
    // The connection of a client that gives up during a pause is closed.
    camera.pause();
    drop((new, playing));
    camera.wait_for(|counts| counts.open_connections == 0).await;
}

#[testing::needs(video)]
#[test]
fn timestamps_show_the_length_of_a_pause() {
    let camera = rtsp(fast());
    let mut client = Client::connect(&camera);
    client.play();
    let mut times = client.timestamps(20);
    camera.pause();
    camera.resume();
    times.extend(client.timestamps(20));
    assert!(times.windows(2).all(|pair| (3_600..90_000 * 600).contains(&pair[1].wrapping_sub(pair[0]))));
}

#[testing::needs(video)]
#[tokio::test]
async fn describe_faults_are_sent() {
    let describe = |fault| {
        let camera = rtsp(RtspOptions { describe_fault: Some(fault), ..fast() });
        let mut client = Client::connect(&camera);
        client.send("DESCRIBE", "");
        (camera, client)
    };
    let (_camera, mut client) = describe(DescribeFault::HugeHeaders);
    let answer = client.answer();
    assert!(answer.len() > 8 << 20 && answer.contains("application/sdp"));
    let (_camera, mut client) = describe(DescribeFault::Redirect("rtsp://192.0.2.1/".into()));
    let answer = client.answer();
    assert!(answer.starts_with("RTSP/1.0 302 ") && answer.contains("Location: rtsp://192.0.2.1/\r\n"));
    for fault in [DescribeFault::EndlessHeader, DescribeFault::EndlessBody] {
        let (camera, mut client) = describe(fault);
        let mut bytes = vec![0; 20 << 20];
        client.stream.read_exact(&mut bytes).unwrap();
        drop(client);
        camera.wait_for(|counts| counts.open_connections == 0).await;
    }
}

#[testing::needs(video)]
#[test]
fn refused_requests_get_the_status_of_the_standard() {
    let camera = rtsp(fast());
    let mut client = Client::connect(&camera);
    for (method, header, status) in [
        ("PLAY", "", 455),
        ("SETUP", "Transport: RTP/AVP;unicast;client_port=4000-4001\r\n", 461),
        ("RECORD", "", 501),
        ("GET_PARAMETER", "Content-Length: 3\r\n\r\nabc", 200),
        ("TEARDOWN", "", 200),
    ] {
        client.send(method, header);
        assert!(client.answer().starts_with(&format!("RTSP/1.0 {status} ")), "{method}");
    }
}

#[testing::needs(video)]
#[test]
fn client_that_connects_again_is_one_player_at_once() {
    let camera = rtsp(fast());
    for _ in 0..100 {
        let mut client = Client::connect(&camera);
        client.play();
        client.timestamps(1);
    }
    let counts = camera.counts();
    assert_eq!((counts.connections, counts.plays), (100, 100));
    assert_eq!((counts.most_connections_at_once, counts.most_players_at_once), (1, 1));
}
