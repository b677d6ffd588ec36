//! Products by the stand-in of cuBLAS on a simulated GPU: results, errors, and what is done without the library.

use crate::products;
use crate::runner::{OnDevice, Runner};
use crate::tensor::{Host, Lay, Random};
use loadmaster_backends::cuda::simulator::Simulator;
use loadmaster_backends::cuda::{CudaDevice, CudaOptions, Products};
use loadmaster_backends::{Call, CommandId, Device, Fault, Operand, Program, Region};
use loadmaster_graph::{Bytes, DType, Op, TensorId};
use std::sync::Arc;

/// A simulated machine; none, with the reason printed, where there is none or real GPUs are tested.
fn simulated(config: &str) -> Option<Simulator> {
    if cfg!(feature = "gpu-tests") {
        println!("skipped: this run is for real GPUs");
        return None;
    }
    Simulator::open_with_kernels(config).map_err(|why| println!("skipped: {why}")).ok()
}

fn gpu() -> CudaDevice {
    CudaDevice::open(CudaOptions::new("cuda:0", 0)).unwrap()
}

/// Calls of a function so far.
fn calls(simulator: &Simulator, name: &str) -> u64 {
    simulator.calls().into_iter().find(|(n, _)| n == name).map_or(0, |(_, n)| n)
}

#[test]
fn products_by_cublas_agree_with_the_reference_for_every_type_and_shape() {
    for (config, most) in [("seed=1,arch=80,cublas=1", 3000), ("seed=2,arch=70,order=lazy,cublas=1", 700)] {
        let Some(simulator) = simulated(config) else { return };
        {
            let runners = [Box::new(OnDevice(Arc::new(gpu()))) as Box<dyn Runner>];
            products::cases().iter().for_each(|case| case.check(&runners));
        }
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{config}");
        let found = calls(&simulator, "cublasGemmEx") + calls(&simulator, "cublasGemmStridedBatchedEx");
        assert!(found > most / 2, "{config}: {found} calls");
    }
}

#[test]
fn without_cublas_the_device_says_why_and_computes_by_itself() {
    let own = CudaOptions { products: Products::Own, ..CudaOptions::new("cuda:0", 0) };
    let plain = || CudaOptions::new("cuda:0", 0);
    for (config, options, words) in [
        ("cublas=rule", plain(), "cuBLAS 12.8 from 32 columns on, 512 for quantized weights"),
        ("cublas=20", plain(), "cuBLAS 12.8 from 20 columns on, 20 for quantized weights"),
        ("cublas=rule", own, "own kernels (cuBLAS: not asked for)"),
        ("cublas=off", plain(), "own kernels (cuBLAS: the stand-in driver offers none)"),
        ("cublas=rule,arch=61", plain(), "(cuBLAS: the GPU's compute capability 6.1 is below 7.0)"),
        ("cublas=wrong", plain(), "(cuBLAS: it failed its test: element 0 of 1 products of F32 is "),
        (
            "cublas=rule,fail=cublasCreate:1",
            plain(),
            "(cuBLAS: it does not start: cublasCreate of cuBLAS says 14: CUBLAS_",
        ),
        (
            "cublas=rule,fail=cublasCreate:1:3",
            plain(),
            "cublasCreate of cuBLAS says 3: CUBLAS_STATUS_ALLOC_FAILED, out of",
        ),
        ("cublas=rule,fail=cublasSetWorkspace:1", plain(), "cublasSetWorkspace of cuBLAS says 14"),
        ("cublas=rule,fail=cublasGemmEx:2:15", plain(), "cublasGemmEx of cuBLAS says 15: CUBLAS_STATUS_NOT_SUPPORTED"),
        ("cublas=rule,memory=64KiB", plain(), "(cuBLAS: it does not start: the driver says 2: "),
    ] {
        let Some(simulator) = simulated(config) else { return };
        {
            let device = CudaDevice::open(options).unwrap();
            assert!(device.products().contains(words), "{config}: {}", device.products());
            let rng = &mut Random(3);
            let w = Host::random(DType::F16, [64, 7, 1, 1], Lay::Packed, rng);
            let x = Host::random(DType::F32, [64, 33, 1, 1], Lay::Packed, rng);
            let before = calls(&simulator, "cublasGemmEx");
            let mut dst = Host::zeros(DType::F32, [7, 33, 1, 1], Lay::Packed);
            let ran = OnDevice(Arc::new(device)).run(Op::MulMat, &[], &[Some(w), Some(x)], &mut dst);
            assert!(ran.is_ok() || config.contains("KiB"), "{config}: {ran:?}");
            let by_library = calls(&simulator, "cublasGemmEx") - before;
            assert_eq!(by_library, u64::from(words.starts_with("cuBLAS 12")), "{config}");
        }
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{config}");
    }
}

/// A product of halves, the result being `t7`, compiled and put into a stream once.
fn product(device: &CudaDevice) -> Result<(), loadmaster_backends::DeviceError> {
    let buffer = device.buffer_type().alloc_buffer(Bytes(4096)).unwrap();
    device.upload(&Region { buffer: Arc::clone(&buffer), offset: Bytes::ZERO, len: buffer.size() }, &[0; 4096])?;
    let mut program = Program::new();
    let slot = program.slot(&buffer);
    let operand = |offset, dtype, unit, ne: [u64; 2]| Operand {
        slot,
        offset: Bytes(offset),
        dtype,
        ne: [ne[0], ne[1], 1, 1],
        nb: [unit, unit * ne[0], unit * ne[0] * ne[1], unit * ne[0] * ne[1]],
    };
    let src = vec![Some(operand(0, DType::F16, 2, [32, 8])), Some(operand(1024, DType::F32, 4, [32, 4]))];
    program.push(TensorId::new(7), Op::MulMat, Vec::new().into(), src, operand(2048, DType::F32, 4, [8, 4]));
    let compiled = device.compile(program)?;
    let stream = device.create_stream()?;
    stream.execute(&compiled, CommandId::new(0)..CommandId::new(1))?;
    stream.synchronize()
}

#[test]
fn a_call_of_cublas_that_fails_names_device_call_and_tensor_and_leaves_nothing_behind() {
    // Six products are the test when the device is opened, each with stream and workspace set.
    for (function, name, nth) in [
        ("cublasGemmEx", "cublasGemmEx", 4),
        ("cublasSetStream", "cublasSetStream", 7),
        ("cublasSetWorkspace", "cublasSetWorkspace", 7),
    ] {
        let Some(simulator) = simulated(&format!("cublas=1,fail={function}:{nth}:13")) else { return };
        {
            let device = gpu();
            let error = product(&device).unwrap_err();
            assert_eq!((&*error.device, error.call, error.tensor), ("cuda:0", Call::Execute, Some(TensorId::new(7))));
            assert!(
                matches!(&error.fault, Fault::Library { library: "cuBLAS", call, code: 13, .. } if *call == name),
                "{error}"
            );
            let text = error.to_string();
            assert!(
                text.starts_with(&format!("cuda:0: execute of t7: {name} of cuBLAS says 13: CUBLAS_STATUS_EXEC")),
                "{text}"
            );
            product(&device).unwrap();
        }
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{function}");
    }
}

#[test]
fn a_gpu_that_dies_in_a_product_says_so() {
    let Some(simulator) = simulated("cublas=1,fail=cublasGemmEx:4:719:sticky") else { return };
    {
        let device = gpu();
        let error = product(&device).unwrap_err();
        assert!(error.is_lost() && error.to_string().contains("719"), "{error}");
        assert!(device.health().is_err());
    }
    assert_eq!(simulator.live(), "");
}
