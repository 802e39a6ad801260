//! Runs a private S3 server (moto, in memory) with one bucket. The server checks signatures as S3
//! does.
use super::service::client;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use store::Blobs;
use testing::ReservedPort;

/// The value of `BLOB_STORE_URL`.
pub const URL: &str = "s3://faces/some/prefix";

/// A server with a bucket. The server stops when this value is dropped.
pub struct Bucket {
    server: Child,
    port: ReservedPort,
    pub endpoint: String,
    key: String,
    secret: String,
}

impl Bucket {
    /// Starts a server. The test must declare `#[needs(s3)]`.
    pub async fn start() -> Self {
        let port = ReservedPort::new();
        let endpoint = format!("http://{}", port.address());
        let mut bucket =
            Self { server: start(&port), port, endpoint, key: String::new(), secret: String::new() };
        bucket.create_bucket().await;
        bucket
    }

    /// Stops the server. Its port then refuses connections.
    pub fn stop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    /// Starts another server on the same port, with an empty bucket and other credentials.
    pub async fn restart(&mut self) {
        self.server = start(&self.port);
        self.create_bucket().await;
    }

    /// Returns the variables with which a service uses the bucket.
    pub fn variables(&self) -> [(&'static str, String); 6] {
        [
            ("BLOB_STORE_URL", URL.into()),
            ("AWS_ENDPOINT_URL", self.endpoint.clone()),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", self.key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret.clone()),
        ]
    }

    pub fn blobs(&self) -> Blobs {
        Blobs::open_with(URL, &self.variables()[1..]).unwrap()
    }

    /// Creates a user with a key for all operations, and the bucket. The server does not
    /// authenticate its first four requests.
    async fn create_bucket(&mut self) {
        let client = client();
        let policy =
            r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}"#;
        let mut responses = Vec::new();
        for parameters in [
            vec![("Action", "CreateUser")],
            vec![("Action", "CreateAccessKey")],
            vec![("Action", "PutUserPolicy"), ("PolicyName", "all"), ("PolicyDocument", policy)],
        ] {
            let form = url::form_urlencoded::Serializer::new(String::new())
                .extend_pairs(parameters)
                .extend_pairs([("UserName", "facecrawl"), ("Version", "2010-05-08")])
                .finish();
            let request = client
                .post(&self.endpoint)
                .header("authorization", "AWS4-HMAC-SHA256 Credential=none/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0")
                .header("content-type", "application/x-www-form-urlencoded")
                .body(form);
            responses.push(request.send().await.unwrap().error_for_status().unwrap().text().await.unwrap());
        }
        let element_text = |name: &str| {
            let rest = responses[1].split_once(&format!("<{name}>")).unwrap().1;
            rest.split_once('<').unwrap().0.to_owned()
        };
        (self.key, self.secret) = (element_text("AccessKeyId"), element_text("SecretAccessKey"));
        client.put(format!("{}/faces", self.endpoint)).send().await.unwrap().error_for_status().unwrap();
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _result = self.server.kill();
        let _status = self.server.wait();
    }
}

/// Starts a server and waits until it listens.
fn start(port: &ReservedPort) -> Child {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.runtime/python/s3/bin/moto_server");
    assert!(program.is_file(), "the S3 server is not installed; run ./scripts/s3-tools");
    let mut server = Command::new(program)
        .args(["--host", "127.0.0.1", "--port", &port.number().to_string()])
        .env("INITIAL_NO_AUTH_ACTION_COUNT", "4")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("Running on ")), "the server does not listen");
    // The output is read to the end, because a full pipe would block the server.
    std::thread::spawn(move || lines.for_each(drop));
    server
}
