//! Products by the stand-in of cuBLAS on a simulated GPU.

use crate::products;
use crate::runner::{OnDevice, Runner};
use loadmaster_backends::cuda::simulator::Simulator;
use loadmaster_backends::cuda::{CudaDevice, CudaOptions};
use std::sync::Arc;

#[test]
fn products_by_cublas_agree_with_the_reference_for_every_type_and_shape() {
    for (seed, arch) in [(1, 80), (2, 70)] {
        let Ok(simulator) = Simulator::open_with_kernels(&format!("seed={seed},arch={arch},cublas=1")) else { return };
        {
            let device = CudaDevice::open(CudaOptions::new("cuda:0", 0)).unwrap();
            let runners = [Box::new(OnDevice(Arc::new(device))) as Box<dyn Runner>];
            products::cases().iter().for_each(|case| case.check(&runners));
        }
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
        println!("{:?}", simulator.calls());
    }
}
