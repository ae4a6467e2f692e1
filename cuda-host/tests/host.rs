//! The host code with a driver that records what it is asked, and refuses when it is told to.

use shohin_core::device::{ScratchOptions, SessionOptions};
use shohin_core::{Error as CoreError, Format, Gguf, Name, Session};
use shohin_cuda::{Cuda, CudaDevice, CudaFailure, CudaModel, Driver, Error, LaunchSize, Nccl, Result};
use shohin_tests::model::{Model, Shape, Stored};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a driver refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Launch,
    End,
    Replay,
    Read,
}

/// The error of a call that fails.
fn lost() -> Error {
    CudaFailure::Driver { call: "test", problem: Name::new("the device is lost") }.into()
}

type Graph = Vec<&'static str>;

/// Memory of zeros, and launches that compute nothing.
#[derive(Default)]
struct Recorder {
    names: RefCell<Vec<&'static str>>,
    /// Sizes by address.
    live: RefCell<BTreeMap<u64, usize>>,
    next: Cell<u64>,
    /// Allocations that still succeed, if they are limited.
    left: Cell<Option<usize>>,
    /// Calls of this kind before the one that fails.
    fails: Cell<Option<(Call, usize)>>,
    /// A launch panics.
    panics: Cell<bool>,
    recording: RefCell<Option<Graph>>,
    launched: RefCell<Graph>,
    replayed: RefCell<Vec<Graph>>,
}

impl Recorder {
    fn call(&self, call: Call) -> Result<()> {
        match self.fails.get() {
            Some((which, 0)) if which == call => {
                self.fails.set(None);
                Err(lost())
            }
            Some((which, left)) if which == call => {
                self.fails.set(Some((which, left - 1)));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Within one allocation.
    fn check(&self, address: u64, len: usize) {
        let live = self.live.borrow();
        let (start, size) =
            live.range(..=address).next_back().expect("an allocation at or before the address");
        assert!(address + len as u64 <= start + *size as u64, "{len} bytes at {}", address - start);
    }
}

impl Driver for Recorder {
    type Kernel = usize;
    type Graph = Graph;

    fn name(&self) -> &str {
        "recorder"
    }

    fn multiprocessors(&self) -> usize {
        132
    }

    fn block_memory(&self) -> usize {
        48 << 10
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        match self.left.get() {
            Some(0) => return Err(Error::OutOfMemory { need: bytes as u64 }),
            Some(left) => self.left.set(Some(left - 1)),
            None => {}
        }
        let address = self.next.get() + 256;
        self.next.set(address + (bytes as u64).next_multiple_of(256));
        self.live.borrow_mut().insert(address, bytes);
        Ok(address)
    }

    fn free(&self, address: u64) {
        assert!(self.live.borrow_mut().remove(&address).is_some(), "freed once");
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.check(address, bytes.len());
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.call(Call::Read)?;
        self.check(address, bytes.len());
        bytes.fill(0);
        Ok(())
    }

    fn kernel(&self, name: &str) -> Result<usize> {
        let mut names = self.names.borrow_mut();
        names.push(name.to_string().leak());
        Ok(names.len() - 1)
    }

    fn launch(&self, kernel: usize, size: LaunchSize, args: &[u8]) -> Result<()> {
        let LaunchSize { grid, threads, .. } = size;
        self.call(Call::Launch)?;
        assert!(!self.panics.take(), "asked to");
        assert!(grid.iter().all(|&n| n > 0) && threads.is_multiple_of(32) && !args.is_empty());
        let name = self.names.borrow()[kernel];
        self.recording.borrow_mut().as_mut().unwrap_or(&mut self.launched.borrow_mut()).push(name);
        Ok(())
    }

    fn begin(&self) -> Result<()> {
        assert!(self.recording.replace(Some(Graph::new())).is_none(), "the recording before has not ended");
        Ok(())
    }

    fn end(&self) -> Result<Graph> {
        let graph = self.recording.take().expect("a recording");
        self.call(Call::End)?;
        Ok(graph)
    }

    fn replay(&self, graph: &Graph) -> Result<()> {
        self.call(Call::Replay)?;
        self.replayed.borrow_mut().push(graph.clone());
        Ok(())
    }

    fn on_stream(&self, call: &mut dyn FnMut(*mut c_void) -> Result<()>) -> Result<()> {
        call(std::ptr::null_mut())
    }

    fn is_idle(&self) -> Result<bool> {
        Ok(true)
    }
}

#[expect(clippy::arc_with_non_send_sync, reason = "used by one thread, as graphs of CUDA are")]
fn recorder() -> Arc<Recorder> {
    Arc::new(Recorder::default())
}

type On = (CudaDevice<Recorder>, Session<CudaDevice<Recorder>>);

fn open(driver: &Arc<Recorder>, file: &[u8]) -> Result<On> {
    let model = CudaModel::from_gguf(Arc::clone(driver), &Gguf::parse(file)?)?;
    let mut device = model.device(&ScratchOptions { batch: 16, ..ScratchOptions::default() })?;
    let session = Session::new(&mut device, &SessionOptions::default())?;
    Ok((device, session))
}

fn file() -> Vec<u8> {
    Model::new(Shape { layers: 2, ..Shape::tiny() }, Stored::new(Format::Q1_0), 1).to_vec().unwrap()
}

/// A token is one launch of a graph of these kernels, recorded once, five in a layer without experts; a prompt is launched kernel
/// by kernel.
#[test]
fn a_token_is_one_graph_of_known_kernels() {
    let dense = ["tiles_norm_1", "attention", "tiles_one_1", "tiles_norm_1", "tiles_one_1"];
    // The router, its choice, gate and up, down.
    let experts = [&dense[..3], &["product_f32_8", "route", "product_int8_0", "product_int8_0"]].concat();
    let routed = Model::new(Shape::tiny_experts(), Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    for (file, layer) in [(file(), dense.to_vec()), (routed, experts)] {
        let driver = recorder();
        let (mut device, mut session) = open(&driver, &file).unwrap();
        // To put matrices in tiles.
        let uploaded = driver.launched.take();
        assert!(!uploaded.is_empty() && uploaded.iter().all(|name| *name == "retile"));
        session.forward(&mut device, 1).unwrap();
        session.forward(&mut device, 2).unwrap();
        let want = [&["embed"][..], &layer, &layer, &["tiles_norm_1"]].concat();
        let replayed = driver.replayed.borrow();
        assert_eq!(*replayed, [want.clone(), want]);
        assert!(driver.launched.borrow().is_empty());
        drop(replayed);
        session.forward_prefill(&mut device, &[1, 2, 3]).unwrap();
        assert_eq!(driver.replayed.borrow().len(), 2);
        assert!(driver.launched.borrow().contains(&"tiles_few_1"));
    }
}

/// Prompts of more than 8 rows take tensor cores, but for experts and for the logits of the last row. Matrices in tiles do for any
/// number of rows.
#[test]
fn prompts_take_tensor_cores() {
    let model = |shape: Shape, format| Model::new(shape, Stored::new(format), 1).to_vec().unwrap();
    // Of a layer: q, k and v; output; gate and up; down. Of experts, the last two, and the router in floats.
    for (shape, [layer, of_experts]) in [(Shape::tiny(), [4, 0]), (Shape::tiny_experts(), [2, 2])] {
        for (rows, mma) in [(8, false), (9, true)] {
            let launched = |format| {
                let driver = recorder();
                let (mut device, mut session) = open(&driver, &model(shape.clone(), format)).unwrap();
                session.forward_prefill(&mut device, &[1; 16][..rows]).unwrap();
                let launched = driver.launched.borrow().clone();
                move |name| launched.iter().filter(|&launched| *launched == name).count()
            };
            let (dense, others) = (2 * layer, 2 * of_experts);
            let count = launched(Format::Q1_0);
            let tiles = if mma { "tiles_many_1" } else { "tiles_few_1" };
            let names = [tiles, "product_int8_0_mma", "product_int8_0_many", "tiles_norm_1"];
            assert_eq!(names.map(count), [dense, 0, others, 1], "{rows} rows");
            let count = launched(Format::Q5_0);
            let want = if mma { [dense, others] } else { [0, dense + others] };
            let names = ["product_int8_3_mma", "product_int8_3_many"];
            assert_eq!(names.map(&count), want, "{rows} rows");
            assert_eq!(count("product_int8_3"), 1);
        }
    }
}

/// Whichever allocation fails: the error says how much was needed, and everything is freed.
#[test]
fn without_memory_nothing_is_left() {
    let (file, driver) = (file(), recorder());
    drop(open(&driver, &file).unwrap());
    assert!(driver.live.borrow().is_empty());
    let mut allowed = 0;
    loop {
        driver.left.set(Some(allowed));
        match open(&driver, &file) {
            Ok(_) => break,
            Err(error) => {
                assert!(matches!(error, Error::OutOfMemory { need } if need > 0), "{error}");
                assert!(error.to_string().contains("has no room for"), "{error}");
                assert!(matches!(CoreError::from(error), CoreError::Memory { .. }));
            }
        }
        assert!(driver.live.borrow().is_empty(), "after {allowed} allocations");
        allowed += 1;
    }
    assert!(allowed > 40, "{allowed}");
    assert!(driver.live.borrow().is_empty());
}

/// A call that fails is an error; the sequence is as before, and goes on when the device does.
#[test]
fn a_failed_call_leaves_the_sequence_as_it_was() {
    let driver = recorder();
    let (mut device, mut session) = open(&driver, &file()).unwrap();
    for fails in [(Call::Launch, 0), (Call::Launch, 7), (Call::End, 0), (Call::Replay, 0), (Call::Read, 0)] {
        driver.fails.set(Some(fails));
        let before = session.position();
        assert_eq!(session.forward(&mut device, 1).map(|_| ()), Err(lost()), "{fails:?}");
        assert_eq!(session.position(), before);
        assert!(driver.recording.borrow().is_none(), "{fails:?}");
    }
    session.forward(&mut device, 1).unwrap();
    driver.fails.set(Some((Call::Launch, 3)));
    assert_eq!(session.forward_prefill(&mut device, &[1, 2, 3]).map(|_| ()), Err(lost()));
    assert_eq!(session.position(), 1);
    session.forward_prefill(&mut device, &[1, 2, 3]).unwrap();
    assert_eq!(session.position(), 4);
    assert!(lost().to_string().contains("the CUDA driver refused test"));
}

/// Other threads would wait for the end of its recording.
#[test]
fn a_panic_ends_the_recording() {
    let driver = recorder();
    let (mut device, mut session) = open(&driver, &file()).unwrap();
    driver.panics.set(true);
    let panicked = catch_unwind(AssertUnwindSafe(|| session.forward(&mut device, 1).map(|_| ())));
    assert!(panicked.is_err() && driver.recording.borrow().is_none());
    session.forward(&mut device, 1).unwrap();
}

/// On a machine without a driver, which most that run tests are.
#[test]
fn without_a_driver_there_is_one_line() {
    match Cuda::open(0) {
        Ok(_) => println!("SKIPPED: there is a GPU"),
        Err(error) => {
            let line = error.to_string();
            assert!(
                matches!(error, Error::Own(CudaFailure::Absent { .. })) && line.lines().count() == 1,
                "{line}"
            );
            assert!(Cuda::names().is_empty() || line.contains("there is no GPU"), "{line}");
        }
    }
}

/// On a machine without NCCL, which most that run tests are.
#[test]
fn without_nccl_there_is_one_line() {
    match Nccl::load() {
        Ok(_) => println!("SKIPPED: there is NCCL"),
        Err(error) => {
            let line = error.to_string();
            assert!(line.contains("needs NCCL 2.9 or newer (libnccl.so.2), found "), "{line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }
    for (version, text) in [(2804, "found 2.8.4;"), (20_805, "found 2.8.5;")] {
        assert!(CudaFailure::NoNccl { version: Some(version) }.to_string().contains(text), "{version}");
    }
}
