//! Products by the stand-in of cuBLAS under the executor: several GPUs and streams, repeated runs as graphs, failures.

use crate::cuda::{distance, everything, simulated};
use crate::random::model;
use crate::results::reference;
use loadmaster_backends::cuda::simulator::Simulator;

/// Calls of functions whose name begins so.
fn calls(simulator: &Simulator, prefix: &str) -> u64 {
    simulator.calls().iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum()
}

/// Products are that many while a device is opened.
const TEST_PRODUCTS: u64 = 6;

#[test]
fn random_graphs_with_products_by_cublas_agree_with_the_host_and_race_nowhere() {
    let (mut products, mut graphs) = (0, 0);
    for seed in 0..18 {
        let count = [1, 2, 4][seed as usize % 3];
        let peer = if seed % 2 == 0 { "all" } else { "none" };
        let Some(simulator) = simulated(&format!("devices={count},seed={seed},peer={peer},cublas=1")) else { return };
        let ordinals: Vec<u32> = (0..count).collect();
        let model = model(seed, 16);
        let expected = &reference(&model, 5)[4];
        let found = everything(&ordinals, &model, seed, 5, |_| ()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let distance = distance(&found, expected);
        assert!(distance < 1e-2, "seed {seed}: relative squared error {distance:e}");
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "seed {seed}");
        products += calls(&simulator, "cublasGemm") - TEST_PRODUCTS * u64::from(count);
        graphs += calls(&simulator, "cuGraphLaunch");
    }
    assert!(products > 100 && graphs > 10, "{products} products, {graphs} graphs");
}

#[test]
fn two_devices_on_one_gpu_have_workspaces_of_their_own_and_every_order_gives_the_same_bits() {
    let model = model(3, 8);
    let mut first: Option<Vec<Vec<u8>>> = None;
    for seed in 0..60 {
        let Some(simulator) = simulated(&format!("memory=24MiB,seed={seed},cublas=1")) else { return };
        let found = everything(&[0, 0], &model, 1, 4, |_| ()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(*first.get_or_insert_with(|| found.clone()) == found, "seed {seed} gives other bits");
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "seed {seed}");
    }
}

#[test]
fn every_call_of_cublas_that_fails_is_an_error_or_done_without_it_and_leaks_nothing() {
    let model = model(4, 5);
    let run = || everything(&[0, 1], &model, 1, 2, |_| ());
    let Some(simulator) = simulated("devices=2,cublas=1") else { return };
    let expected = run().unwrap();
    let counts: Vec<_> = simulator.calls().into_iter().filter(|(name, _)| name.starts_with("cublas")).collect();
    drop(simulator);
    let (mut errors, mut without) = (0, 0);
    for (name, count) in counts {
        for (n, how) in (1..=count).flat_map(|n| [(n, ""), (n, ":719:sticky")]) {
            let config = format!("devices=2,cublas=1,fail={name}:{n}{how}");
            let Some(simulator) = simulated(&config) else { return };
            match run() {
                Err(error) => {
                    assert!(how.contains("sticky") || error.contains(&format!("{name} of cuBLAS says 14")), "{error}");
                    errors += 1;
                }
                Ok(found) => {
                    assert!(distance(&found, &expected) < 1e-2, "{config}");
                    without += 1;
                }
            }
            assert_eq!(simulator.live(), "", "{config}");
            assert!(how.contains("sticky") || simulator.report().is_empty(), "{config}: {}", simulator.report());
        }
    }
    assert!(errors > 10 && without > 10, "{errors} errors, {without} without the library");
}
