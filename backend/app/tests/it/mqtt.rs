//! Tests the publisher for MQTT in a running service.
use crate::common::service::{Service, TestFolder, get, wait_until};
use testing::TestDatabase;
use testing::mosquitto::{Mosquitto, PASSWORD, USER};

/// Starts a service that publishes to a broker with this password.
fn start(folder: &TestFolder, database: &TestDatabase, broker: &Mosquitto, password: &str) -> Service {
    let mut command = folder.facecrawl_with(database, &["up", "--port", "0"]);
    command
        .env("MQTT_URL", format!("mqtt://127.0.0.1:{}", broker.port()))
        .env("MQTT_COLLECTIONS", "default")
        .env("MQTT_USER", USER)
        .env("MQTT_PASSWORD", password);
    Service::start(&mut command)
}

async fn is_connected(service: &Service) -> bool {
    let (_, metrics) = get(&format!("{}/metrics", service.base)).await;
    metrics.lines().any(|line| line == "facecrawl_mqtt_connected 1")
}

#[testing::needs(mqtt)]
#[testing::test(flavor = "multi_thread")]
async fn service_keeps_running_without_broker_and_logs_no_password() {
    let (folder, database, mut broker) =
        (TestFolder::new(), TestDatabase::create().await, Mosquitto::start());
    let mut service = start(&folder, &database, &broker, "a wrong password");
    service.wait_for("", "the broker refused the user or the password (MQTT_USER, MQTT_PASSWORD)");
    assert_eq!(get(&format!("{}/health/ready", service.base)).await.0, 200);
    assert!(!is_connected(&service).await);
    let log = service.stop();
    assert!(!log.contains("a wrong password"), "{log}");

    let mut service = start(&folder, &database, &broker, PASSWORD);
    wait_until("the service is connected", async || is_connected(&service).await).await;
    broker.stop();
    wait_until("the service is not connected", async || !is_connected(&service).await).await;
    assert_eq!(get(&format!("{}/health/ready", service.base)).await.0, 200);
    broker.resume();
    wait_until("the service is connected again", async || is_connected(&service).await).await;
    let log = service.stop();
    assert!(!log.contains(PASSWORD), "{log}");

    let mut service = Service::start(&mut folder.facecrawl_with(&database, &["up", "--port", "0"]));
    service.wait_for("", "an MQTT broker may still have messages about people, and MQTT_URL is unset");
    service.stop();
}
