//! Tests operations on whole images through the analyzer: on a device (simulated by the CPU
//! provider), and when the device fails.

use inference::{DetectionCanvas, Engine, Operation, Priority, StandIn};
use pipeline::{AnalyzeError, AnalyzeOptions, Analyzer, Enhance, Rotate};
use std::sync::Arc;
use testing::picture;
use vision::{Frame, Letterbox, Limits};

async fn analyzer(stand_in: StandIn, force_gpu_only: bool) -> Analyzer {
    let start = move || {
        let gpu_operations = match stand_in {
            StandIn::None => Vec::new(),
            _ => Operation::ALL.to_vec(),
        };
        let config = inference::Config {
            dylib_path: Some(testing::library()),
            gpu_operations,
            gpu_batch_size: 4,
            stand_in,
            force_gpu_only,
            // The canvas that a device uses, so that both sides process the same input.
            detection_canvas: DetectionCanvas::Square,
            ..inference::Config::default()
        };
        Engine::start(&config, &testing::pack()).unwrap()
    };
    let engine = tokio::task::spawn_blocking(start).await.unwrap();
    Analyzer::new(engine, pipeline::Config::default())
}

fn portrait() -> Arc<Frame> {
    Arc::new(vision::decode(&picture("ada_small.jpg"), &Limits::default()).unwrap().frame)
}

#[testing::test]
async fn a_device_that_fails_is_replaced_by_the_cpus_code() {
    let failing = analyzer(StandIn::Failing, false).await;
    let (pixels, frame, priority) = (failing.pixels(), portrait(), Priority::Interactive);
    let statistics = pixels.statistics(frame.clone(), priority).await.unwrap().output;
    assert_eq!(statistics, vision::quality::grey_statistics(&frame));
    let enhanced = pixels.enhance(frame.clone(), priority).await.unwrap().output;
    assert_eq!(enhanced.frame, vision::enhance::enhance(&frame, &Limits::default()).frame);
    let letterbox = Letterbox::fit((frame.width(), frame.height()), (640, 640));
    assert_eq!(
        *pixels.canvas(frame.clone(), letterbox, priority).await.unwrap().output,
        letterbox.draw(&frame)
    );
}

#[testing::test]
async fn a_device_that_is_forced_is_not_replaced() {
    let forced = analyzer(StandIn::Failing, true).await;
    let error = forced.pixels().statistics(portrait(), Priority::Interactive).await.unwrap_err();
    assert!(matches!(error, AnalyzeError::Run(_)), "{error}");
}

#[testing::test]
async fn everything_on_devices_finds_the_faces_of_the_cpu() {
    let device = analyzer(StandIn::Cpu, true).await;
    let cpu = analyzer(StandIn::None, false).await;
    assert!(device.engine().detects_frames());
    let options =
        AnalyzeOptions { rotate: Rotate::Auto, enhance: Enhance::Auto, ..AnalyzeOptions::default() };
    for name in ["ada.jpg", "turned_90.jpg", "small_pair.jpg", "view.jpg"] {
        let [a, b] = [&device, &cpu].map(|analyzer| {
            let bytes = picture(name).into();
            analyzer.analyze(bytes, &options, Priority::Interactive)
        });
        let (a, b) = (a.await.unwrap(), b.await.unwrap());
        assert_eq!((a.faces.len(), a.rotation), (b.faces.len(), b.rotation), "{name}");
        for (a, b) in a.faces.iter().zip(&b.faces) {
            assert!((a.detection.det_score - b.detection.det_score).abs() < 1e-3, "{name}");
            assert!((a.detection.bbox.x - b.detection.bbox.x).abs() < 0.5, "{name}");
            let alike = a.embedding.as_ref().unwrap().similarity(b.embedding.as_ref().unwrap()).unwrap();
            assert!(alike > 0.999, "{name}: {alike}");
        }
    }
}
