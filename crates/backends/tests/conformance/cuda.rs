//! The suite on GPUs: simulated ones, or with the feature `gpu-tests` those of this machine.

use crate::runner::{OnDevice, Runner};
use crate::{Case, TOPICS};
use loadmaster_backends::cuda::simulator::Simulator;
use loadmaster_backends::cuda::{CudaDevice, CudaOptions, Products, ProductsFrom, probe};
use std::sync::Arc;

/// The first GPU of this machine; none, with the reason printed, where there is none.
fn real(products: Products) -> Option<CudaDevice> {
    let gpus = probe().map_err(|why| println!("skipped: {why}")).ok()?;
    let Some(gpu) = gpus.first() else {
        println!("skipped: the driver has no GPU");
        return None;
    };
    Some(CudaDevice::open(CudaOptions { products, ..CudaOptions::new("cuda:0", gpu.ordinal) }).unwrap())
}

fn check_all(device: CudaDevice) {
    let runners = [Box::new(OnDevice(Arc::new(device))) as Box<dyn Runner>];
    let cases = TOPICS.iter().flat_map(|topic| topic());
    cases.for_each(|case: Case| case.check(&runners));
}

/// Says what the simulator found when a test fails.
struct Findings<'a>(&'a Simulator);

impl Drop for Findings<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the simulator found:\n{}", self.0.report());
        }
    }
}

#[test]
fn every_operation_agrees_with_its_reference_on_a_gpu() {
    if cfg!(feature = "gpu-tests") {
        // Whoever computes products: our own kernels, cuBLAS where it is worth it, cuBLAS wherever it can.
        let always = Products::Library(ProductsFrom { floats: 1, quantized: 1 });
        for products in [Products::Own, Products::default(), always] {
            let Some(device) = real(products) else { return };
            println!("products by {}", device.products());
            check_all(device);
        }
        return;
    }
    for (seed, order) in [(1, "adversarial,audit=writes"), (2, "lazy")] {
        let simulator = match Simulator::open_with_kernels(&format!("seed={seed},order={order}")) {
            Ok(simulator) => simulator,
            Err(why) => return println!("skipped: {why}"),
        };
        let _findings = Findings(&simulator);
        check_all(CudaDevice::open(CudaOptions::new("cuda:0", 0)).unwrap());
        assert_eq!(simulator.report(), "");
        assert_eq!(simulator.live(), "");
    }
}
