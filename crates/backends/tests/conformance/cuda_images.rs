//! Kernels in the form that a driver takes, where it does not take the first.

use crate::runner::{OnDevice, Runner};
use crate::tensor::{Host, Lay};
use loadmaster_backends::cuda::simulator::Simulator;
use loadmaster_backends::cuda::{CudaDevice, CudaOptions};
use loadmaster_graph::{DType, Op};
use std::sync::Arc;

/// Doubles ones on a GPU whose driver is as `config` says: the outcome, and how often it was given kernels.
fn double(config: &str) -> Option<(Result<Vec<f64>, String>, u64)> {
    let simulator = Simulator::open_with_kernels(config).map_err(|why| println!("skipped: {why}")).ok()?;
    let outcome = {
        let runner = OnDevice(Arc::new(CudaDevice::open(CudaOptions::new("cuda:0", 0)).unwrap()));
        let ones = || Host::floats(DType::F32, [4, 1, 1, 1], Lay::Packed, |_| 1.0);
        let mut dst = Host::zeros(DType::F32, [4, 1, 1, 1], Lay::Packed);
        runner.run(Op::Add, &[], &[Some(ones()), Some(ones())], &mut dst).map(|()| dst.values())
    };
    let loads = simulator.calls().iter().find(|(name, _)| name == "cuModuleLoadData").map_or(0, |(_, n)| *n);
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{config}");
    Some((outcome, loads))
}

#[test]
fn what_a_driver_refuses_as_machine_code_it_is_given_as_ptx() {
    if cfg!(feature = "gpu-tests") {
        return println!("skipped: this run is for real GPUs");
    }
    for code in [200, 209, 222] {
        let Some((found, loads)) = double(&format!("arch=90,fail=cuModuleLoadData:1:{code}")) else { return };
        assert_eq!((found.unwrap(), loads), (vec![2.0; 4], 2), "{code}");
    }
    let Some((found, loads)) = double("arch=90") else { return };
    assert_eq!((found.unwrap(), loads), (vec![2.0; 4], 1));
}

#[test]
fn a_driver_that_takes_neither_is_an_error_that_names_it_and_the_compiler() {
    if cfg!(feature = "gpu-tests") {
        return println!("skipped: this run is for real GPUs");
    }
    let both = "arch=90,fail=cuModuleLoadData:1:209,fail=cuModuleLoadData:2:222";
    let Some((found, loads)) = double(both) else { return };
    let why = found.unwrap_err();
    for words in [
        "cuda:0: compile of t0: the kernels of elementwise cannot be had",
        "the driver, of CUDA ",
        "takes nothing that the stand-in makes",
        "machine code for sm_90: 209",
        "PTX for compute_90: 222",
        "LOADMASTER_NVRTC",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    assert_eq!(loads, 2);
    // A failure of another kind is what it is.
    let Some((found, loads)) = double("fail=cuModuleLoadData:1:999") else { return };
    assert!(found.unwrap_err().contains("the driver says 999"));
    assert_eq!(loads, 1);
}
