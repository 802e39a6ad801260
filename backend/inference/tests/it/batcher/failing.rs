//! Tests devices that run out of memory, fail, panic or are lost.
use crate::batcher::support::*;
use inference::backend::BackendError;
use inference::batcher::{Batcher, Device, Limits};
use inference::{Priority, RunError};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

#[testing::test(flavor = "multi_thread")]
async fn out_of_memory_lowers_the_batch_size_and_is_remembered() {
    let (gate, controls) = gate();
    let limits = Limits { max_batch: 64, ..ONE_BY_ONE };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device =
        Doubler { gate: Some(gate), sizes: sizes.clone(), memory_for: Some(8), ..Default::default() };
    let batcher = start(vec![device], limits);
    for round in 0..2 {
        let mut tasks = vec![occupy(&batcher, &controls).await];
        for i in 1..=40_u8 {
            tasks.push(ask(&batcher, f32::from(i), Priority::Background).await);
        }
        controls.release();
        // The first round exceeds the memory at 64 and at 32; the second never tries more than 8.
        let runs = if round == 0 { 2 + 5 } else { 5 };
        for _ in 0..runs {
            controls.next();
            controls.release();
        }
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
        }
    }
    assert_eq!(*sizes.lock().unwrap(), [1, 64, 32, 8, 8, 8, 8, 8, 1, 8, 8, 8, 8, 8]);
}

#[testing::test(flavor = "multi_thread")]
async fn a_failing_device_hands_its_requests_to_the_second_one() {
    let failing = |error: BackendError| Doubler { fails_with: Some(error), ..Default::default() };
    let limits = Limits { max_batch: 4, ..ONE_BY_ONE };
    let devices = |error, fallback: Option<Doubler>| {
        vec![Device { primary: Box::new(failing(error)), fallback: fallback.map(|f| Box::new(f) as _) }]
    };
    let ask = Ask { number: 21.0, width: 2 };

    let error = BackendError::Failed("kernel error".into());
    let batcher =
        Batcher::start(Numbers::default(), devices(error.clone(), Some(Doubler::default())), limits).unwrap();
    assert_eq!(batcher.run(ask, Priority::Interactive).await.unwrap().output, 42.0);
    batcher.ready().unwrap();

    let alone = Batcher::start(Numbers::default(), devices(error.clone(), None), limits).unwrap();
    let failed = alone.run(ask, Priority::Interactive).await.unwrap_err().to_string();
    assert!(failed.contains("kernel error"), "without a fallback the request fails: {failed}");

    let both = Batcher::start(
        Numbers::default(),
        devices(error, Some(failing(BackendError::Failed("too".into())))),
        limits,
    );
    let failed = both.unwrap().run(ask, Priority::Interactive).await.unwrap_err().to_string();
    assert!(failed.contains("kernel error") && failed.contains("too"), "{failed}");

    let lost = BackendError::DeviceLost("it fell off the bus".into());
    let batcher =
        Batcher::start(Numbers::default(), devices(lost, Some(Doubler::default())), limits).unwrap();
    batcher.ready().unwrap();
    assert_eq!(
        batcher.run(ask, Priority::Interactive).await.unwrap().output,
        42.0,
        "the request is still answered"
    );
    let reason = batcher.ready().unwrap_err();
    assert!(reason.contains("fell off the bus") && reason.contains("fake:0"), "{reason}");
}

#[testing::test(flavor = "multi_thread")]
async fn a_lost_device_leaves_its_work_to_the_others() {
    for prefetch in [false, true] {
        let lost = BackendError::DeviceLost("it fell off the bus".into());
        let (gate, controls) = gate();
        let devices = vec![
            Doubler { fails_with: Some(lost), gate: Some(gate), ..Default::default() },
            Doubler::default(),
        ];
        let batcher = start(devices, Limits { prefetch, ..ONE_BY_ONE });
        // Requests go to either device until the first one is lost.
        let mut failed = 0;
        while batcher.ready().is_ok() {
            let own = batcher.clone();
            let task =
                tokio::spawn(
                    async move { own.run(Ask { number: 4.0, width: 2 }, Priority::Interactive).await },
                );
            while !task.is_finished() {
                if controls.entered.try_recv().is_ok() {
                    controls.release();
                }
                tokio::task::yield_now().await;
            }
            failed += usize::from(task.await.unwrap().is_err());
        }
        assert!(batcher.ready().unwrap_err().contains("fell off the bus"));
        for i in 0..50_u8 {
            let ask = Ask { number: f32::from(i), width: 2 };
            match batcher.run(ask, Priority::Interactive).await {
                Ok(found) => assert_eq!(found.output, f32::from(i) * 2.0),
                Err(RunError::Failed { reason, .. }) => {
                    assert!(reason.contains("lost"), "{reason}");
                    failed += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        // Only the running request and the prepared request can have failed.
        assert!(failed <= 2, "{failed}");
    }
}

#[testing::test(flavor = "multi_thread")]
async fn one_input_that_the_device_fails_on_does_not_take_the_whole_batch_with_it() {
    for prefetch in [false, true] {
        let (gate, controls) = gate();
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let device =
            Doubler { gate: Some(gate), sizes: sizes.clone(), fails_on: Some(2.0), ..Default::default() };
        let limits = Limits { max_batch: 4, prefetch, ..ONE_BY_ONE };
        let batcher = start(vec![device], limits);
        let ask = |number| {
            let own = batcher.clone();
            tokio::spawn(async move { own.run(Ask { number, width: 3 }, Priority::Background).await })
        };
        let first = ask(9.0);
        assert_eq!(controls.next(), [9.0]);
        // Sent in this order: each request is sent after the previous one is queued or written.
        let mut tasks = Vec::new();
        for (at, number) in [1.0, 2.0, 3.0, 4.0].into_iter().enumerate() {
            tasks.push(ask(number));
            while batcher.waiting() + batcher.model().written.load(Ordering::SeqCst) < at + 2 {
                tokio::task::yield_now().await;
            }
        }
        for _ in 0..3 {
            controls.release();
            controls.next();
        }
        controls.release();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap().map(|found| found.output).ok());
        }
        assert_eq!(answers, [None, None, Some(6.0), Some(8.0)], "prefetch {prefetch}");
        assert_eq!(first.await.unwrap().unwrap().output, 18.0);
        // After the first request, the device runs the batch and its halves, each padded to the
        // batch size 4. No request runs alone.
        assert_eq!(*sizes.lock().unwrap(), [1, 4, 4, 4]);
        batcher.ready().unwrap();
    }
}
