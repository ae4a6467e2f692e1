//! The shim finds the mistakes it is made for.

use crate::tested::shim::{Shim, check, compile};
use crate::tested::{Order, download, upload};
use shohin_metal::{Dispatch, Driver, Error, MetalFailure, SOURCE};

/// Kernels over one buffer, after the arguments that all kernels end with.
fn kernels(bodies: &str) -> String {
    let (prelude, _) =
        SOURCE.split_once("// Reading packed weights").expect("weights.metal comes after prelude.metal");
    format!("{prelude}\nstruct Nothing {{ Batch batch; }};\n{bodies}")
}

fn kernel(name: &str, body: &str) -> String {
    format!(
        "kernel void {name}(device float* x [[buffer(0)]], constant Nothing&, THREAD) {{\n\
         uint index = simd_index * 32 + lane;\n\
         {body}\n\
         }}\n"
    )
}

/// What 64 threads of two SIMD groups write, in some order.
fn run(shim: &Shim, name: &str) -> Result<Vec<f32>, Error> {
    let buffer = upload(shim, &[0.0f32; 64]);
    let pipeline = shim.pipeline(name)?;
    let (buffers, parameters) = (vec![&buffer], vec![0; 6]);
    shim.run(&[Dispatch {
        pipeline: &pipeline,
        buffers,
        parameters,
        grid: [1, 1, 1],
        simds: 2,
        shared: 256,
    }])?;
    Ok(download(shim, &buffer, 64))
}

#[test]
fn missing_barriers_show_in_some_order() {
    let reversed = |barrier: &str| {
        let body = format!("shared[index] = float(index);\n{barrier}\nx[index] = shared[63 - index];");
        move |name: &str| kernel(name, &body)
    };
    let right = reversed("threadgroup_barrier(mem_flags::mem_threadgroup);")("right");
    let wrong = reversed("simdgroup_barrier(mem_flags::mem_threadgroup);")("wrong");
    let divergent = kernel("divergent", "if (index < 5) { threadgroup_barrier(mem_flags::mem_none); }");
    let mixed = kernel("mixed", "x[index] = lane < 9 ? simd_sum(1.0f) : simd_max(1.0f);");
    let source = kernels(&[right, wrong, divergent, mixed].concat());
    let want: Vec<f32> = (0..64).rev().map(|i| i as f32).collect();
    let mut differ = 0;
    for order in Order::ALL {
        let shim = Shim::of(compile(&source), order);
        assert_eq!(run(&shim, "right"), Ok(want.clone()));
        // Threadgroup memory begins as NaN.
        differ += usize::from(run(&shim, "wrong") != Ok(want.clone()));
        for (name, problem) in
            [("divergent", "not every thread reaches"), ("mixed", "wait for different operations")]
        {
            let Err(Error::Own(MetalFailure::Driver { problem: found, .. })) = run(&shim, name) else {
                panic!("{name} must fail")
            };
            assert!(found.contains(problem), "{name}: {found}");
        }
        assert!(run(&shim, "absent").is_err());
    }
    assert!(differ > 0);
}

/// A pointer without its address space is an error of the Metal compiler, and of the check.
#[test]
fn pointers_keep_to_their_address_spaces() {
    check(SOURCE).unwrap_or_else(|e| panic!("{e}"));
    let source = kernels(&kernel("mixed", "threadgroup float* y = x; y[index] = 0.0f;"));
    let message = check(&source).expect_err("memory of another kind");
    assert!(message.contains("'threadgroup float *'"), "{message}");
}
