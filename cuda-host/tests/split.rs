//! Models split among GPUs: the real host code, down to its calls of CUDA and NCCL, over libraries that do their work on a CPU
//! (`shim/driver.cpp`, `shim/nccl.cpp`).

#[path = "shim/build.rs"]
mod build;

use build::build;
use libloading::Library;
use shohin_core::collective::Collective;
use shohin_core::device::{BlockingDevice, Output, Readout, Run, ScratchOptions, SessionOptions, Wants};
use shohin_core::gguf::ReadOptions;
use shohin_core::model::Split;
use shohin_core::{
    Activations, BonsaiModel, Device, Error as CoreError, Format, Gguf, KvFormat, Result as CoreResult,
};
use shohin_cuda::{
    Communicator, Cuda, CudaDevice, CudaFailure, CudaModel, Driver, Error, Memory, Nccl, Result,
};
use shohin_tests::device::{error, tokens};
use shohin_tests::model::{Model, Shape, Stored};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

/// Rows of a part of a batch.
const BATCH: usize = 5;

/// The libraries that take the places of CUDA's and NCCL's. The tests use them one after the other: a fault that one asks for is
/// for its own ranks.
fn libraries() -> (&'static [Library; 2], MutexGuard<'static, ()>) {
    static LIBRARIES: OnceLock<[Library; 2]> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let libraries = LIBRARIES.get_or_init(|| {
        [("driver.cpp", "libcuda.so"), ("nccl.cpp", "libnccl.so.2")].map(|(source, name)| {
            let built = build(source, name);
            // SAFETY: the library was built from this crate's sources. Those who load `name` from now on get it.
            unsafe { Library::new(&built) }.unwrap_or_else(|e| panic!("{}: {e}", built.display()))
        })
    });
    (libraries, turn)
}

/// Lets a call of NCCL fail.
fn fault(nccl: &Library, rank: usize, call: usize, result: c_int, later: bool) {
    // SAFETY: the function of this name has this type.
    unsafe {
        let fault = nccl.get::<unsafe extern "C" fn(c_int, c_int, c_int, c_int)>(b"shim_nccl_fault").unwrap();
        fault(rank as c_int, call as c_int, result, later.into());
    }
}

/// Ranks that are threads, and may be lost.
struct Threads {
    rank: usize,
    ranks: usize,
    lost: Arc<AtomicBool>,
}

fn lost() -> CoreError {
    CoreError::Device { problem: "a rank is lost" }
}

impl Collective for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn check(&self) -> CoreResult<()> {
        if self.lost.load(SeqCst) { Err(lost()) } else { Ok(()) }
    }

    fn all_gather(&self, _: &[f32], _: &mut [f32]) -> CoreResult<()> {
        unreachable!("floats stay on the GPUs")
    }

    fn send(&self, _: usize, _: &[f32]) -> CoreResult<()> {
        unreachable!("floats stay on the GPUs")
    }

    fn receive(&self, _: usize, _: &mut [f32]) -> CoreResult<()> {
        unreachable!("floats stay on the GPUs")
    }
}

fn options(activations: Activations) -> ScratchOptions {
    ScratchOptions { activations, batch: BATCH, logit_rows: 2, ..ScratchOptions::default() }
}

/// A device and a sequence.
struct On {
    device: CudaDevice<Cuda>,
    cache: <CudaDevice<Cuda> as Device>::Cache,
    position: usize,
}

impl On {
    fn new(mut device: CudaDevice<Cuda>, kv: KvFormat) -> On {
        let options = SessionOptions { kv, ..SessionOptions::default() };
        let cache = CudaDevice::<Cuda>::wait(device.cache(&options)).unwrap();
        On { device, cache, position: 0 }
    }

    /// What is read out of these tokens.
    fn run(&mut self, tokens: &[u32], wants: Wants) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        let run = Run { tokens, position: self.position, wants };
        CudaDevice::<Cuda>::wait(self.device.run(&[run], &mut [&mut self.cache], &mut |_, _, output| {
            match output {
                Output::Logits(row) | Output::Hidden(row) => all.extend_from_slice(row),
                Output::Top(best) => {
                    all.extend(best.iter().flat_map(|(token, logit)| [*token as f32, *logit]))
                }
            }
        }))?;
        self.position += tokens.len();
        Ok(all)
    }
}

/// One sequence on one GPU.
fn one(file: &[u8], activations: Activations, kv: KvFormat) -> On {
    let driver = Arc::new(Cuda::open(0).unwrap());
    let model = CudaModel::from_gguf(driver, &Gguf::parse(file).unwrap()).unwrap();
    On::new(model.device(&options(activations)).unwrap(), kv)
}

/// The ranks of a model.
fn ranks(
    file: &[u8],
    split: Split,
    activations: Activations,
    kv: KvFormat,
    lost: &Arc<AtomicBool>,
) -> Vec<On> {
    let gpus: Vec<usize> = (0..split.ranks()).collect();
    let group = Communicator::connect(&Nccl::load().unwrap(), &gpus).unwrap();
    let rank = |(rank, communicator): (usize, Communicator)| {
        let parts = vec![file.to_vec()];
        let model = BonsaiModel::load_split(
            parts,
            &ReadOptions::default(),
            |config| config,
            (split, rank),
            |copy| copy,
        );
        let driver = Arc::new(Cuda::open(rank).unwrap());
        let model = CudaModel::from_model(driver, &model.unwrap()).unwrap();
        let threads = Threads { rank, ranks: split.ranks(), lost: Arc::clone(lost) };
        let mut device = model.device(&options(activations)).unwrap();
        device.backend_mut().join_group(Arc::new(communicator), Arc::new(threads)).unwrap();
        On::new(device, kv)
    };
    group.into_iter().enumerate().map(rank).collect()
}

/// Calls `work` for each rank on a thread of its own; returns what it returns.
fn each<T: Send>(ranks: &mut [On], work: impl Fn(usize, &mut On) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads = ranks.iter_mut().enumerate().map(|(rank, on)| scope.spawn(move || work(rank, on)));
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A prompt of several parts, the last a single row, with all its logits; rows alone, by a graph recorded for each kind of output and replayed; a short
/// prompt.
const STEPS: [(usize, Wants); 7] = [
    (11, Wants::Each(Readout::Logits)),
    (1, Wants::Last(Readout::Logits)),
    (1, Wants::Last(Readout::Best)),
    (1, Wants::Last(Readout::Logits)),
    (1, Wants::Nothing),
    (1, Wants::Last(Readout::Hidden)),
    (3, Wants::Each(Readout::Best)),
];

/// What the steps read out; `all`: this rank has the head.
fn steps(on: &mut On, all: bool) -> Vec<f32> {
    let tokens = tokens(19, VOCAB);
    let mut rest = &tokens[..];
    let mut out = Vec::new();
    for (count, wants) in STEPS {
        let (now, later) = rest.split_at(count);
        out.extend(on.run(now, if all { wants } else { Wants::Nothing }).unwrap());
        rest = later;
    }
    out
}

/// What rank 0 reads out, and that the others read out nothing.
fn split_steps(file: &[u8], split: Split, activations: Activations, kv: KvFormat) -> Vec<f32> {
    let mut ranks = ranks(file, split, activations, kv, &Arc::default());
    let pipeline = matches!(split, Split::Pipeline(_));
    let mut outputs = each(&mut ranks, |rank, on| steps(on, rank == 0 || !pipeline));
    assert!(outputs[1..].iter().all(Vec::is_empty), "{split}");
    outputs.swap_remove(0)
}

/// Heads that two and four ranks can divide; tokens that they cannot.
fn shape() -> Shape {
    let wide = Shape { heads: 8, kv_heads: 4, head_dim: 32, ..Shape::tiny() };
    Shape { hidden: 128, ffn: 128, layers: 2, vocab: VOCAB, ..wide }
}

const VOCAB: usize = 301;

#[test]
fn split_models_have_the_bits_of_one_gpu() {
    use Format::{F16, Q1_0, Q4_0, Q5_1, Q8_0};
    let (_, _turn) = libraries();
    let mixed = [Q8_0, Q4_0, Q1_0, Q8_0, Q5_1, Q1_0, Q1_0, Q4_0].map(Stored::new).to_vec();
    let experts = Shape { experts: Some([4, 2, 128]), layers: 3, ..shape() };
    let cases = [
        (shape(), vec![Stored::new(Q1_0)], Activations::Int8, KvFormat::F16, &["tensor:2", "tensor:4"][..]),
        (shape(), mixed, Activations::F32, KvFormat::Q8, &["tensor:2", "pipeline:2"]),
        (
            Shape { tied: false, ..shape() },
            vec![Stored::new(F16)],
            Activations::Int8,
            KvFormat::F32,
            &["tensor:2"],
        ),
        (experts, vec![Stored::new(Q1_0)], Activations::Int8, KvFormat::F16, &["pipeline:3"]),
    ];
    for (shape, formats, activations, kv, ways) in cases {
        let file = Model { formats, ..Model::new(shape, Stored::new(Q1_0), 9) }.to_vec().unwrap();
        let want = steps(&mut one(&file, activations, kv), true);
        assert!(want.iter().all(|x| x.is_finite()));
        for way in ways {
            let got = split_steps(&file, way.parse().unwrap(), activations, kv);
            assert!(got == want, "{way}, {activations:?}");
        }
    }
}

/// The order of additions differs: so do the last bits.
#[test]
fn added_columns_differ_in_the_last_bits() {
    let (_, _turn) = libraries();
    let file = Model::new(shape(), Stored::new(Format::Q8_0), 9).to_vec().unwrap();
    let want = steps(&mut one(&file, Activations::F32, KvFormat::F32), true);
    for way in ["tensor-reduce:2", "tensor-reduce:4"] {
        let got = split_steps(&file, way.parse().unwrap(), Activations::F32, KvFormat::F32);
        // Logits of the prompt.
        let error = error(&got[..11 * VOCAB], &want[..11 * VOCAB]);
        assert!(error > 0.0 && error < 1e-5, "{way}: {error}");
    }
}

/// Of a pass: four of each layer, and the logits.
const EXCHANGES: usize = 9;

/// Runs a prompt and two tokens on two ranks after a fault: what each rank says to each.
fn faulty(file: &[u8], rank: usize, call: usize, result: c_int, later: bool) -> Vec<Vec<Result<()>>> {
    let ([_, nccl], _turn) = libraries();
    let way = "tensor:2".parse().unwrap();
    let mut ranks = ranks(file, way, Activations::Int8, KvFormat::F16, &Arc::default());
    fault(nccl, rank, call, result, later);
    // Orders come one after the other.
    let order = Barrier::new(2);
    each(&mut ranks, |_, on| {
        let mut run = |tokens: &[u32]| {
            order.wait();
            on.run(tokens, Wants::Last(Readout::Logits)).map(drop)
        };
        vec![run(&[1, 2, 3]), run(&[4]), run(&[5])]
    })
}

/// Whichever call fails, when it is made or later, while a prompt runs or a graph is recorded: all ranks say why, and go on saying
/// it; none hangs.
#[test]
fn an_exchange_that_fails_is_an_error_of_all_ranks() {
    let file = Model::new(shape(), Stored::new(Format::Q1_0), 9).to_vec().unwrap();
    for (rank, call, later) in [(0, 0, false), (1, 5, false), (1, 10, false), (0, 7, true), (1, 8, true)] {
        let result = if later { 6 } else { 5 };
        let said = faulty(&file, rank, call, result, later);
        let problem = if later { "ncclRemoteError" } else { "ncclInvalidUsage" };
        let first = call / EXCHANGES;
        for said in said {
            for (step, said) in said.into_iter().enumerate() {
                let Err(error) = said else {
                    assert!(step < first, "rank {rank}, call {call}: step {step} went well");
                    continue;
                };
                assert!(step >= first, "rank {rank}, call {call}: step {step}: {error}");
                let line = error.to_string();
                assert!(line.contains(problem) && line.lines().count() == 1, "{line}");
                assert!(CoreError::from(error).to_string().contains(problem));
            }
        }
    }
}

/// A rank whose thread has ended leaves the others waiting on their GPUs, until they are told.
#[test]
fn a_lost_rank_is_an_error() {
    let (_, _turn) = libraries();
    let file = Model::new(shape(), Stored::new(Format::Q1_0), 9).to_vec().unwrap();
    // The launches of the prompt are more than CUDA has room for.
    let prompt = tokens(200, VOCAB);
    for (way, first) in [("tensor:2", 1), ("pipeline:2", 1), ("tensor:2", 200), ("pipeline:2", 200)] {
        let is_lost = Arc::default();
        let mut ranks = ranks(&file, way.parse().unwrap(), Activations::Int8, KvFormat::F16, &is_lost);
        let said = each(&mut ranks, |rank, on| {
            let wants = if rank == 0 { Wants::Last(Readout::Logits) } else { Wants::Nothing };
            if rank == 1 {
                thread::sleep(std::time::Duration::from_millis(20));
                is_lost.store(true, SeqCst);
                return Vec::new();
            }
            vec![on.run(&prompt[..first], wants).map(drop), on.run(&[1, 2], wants).map(drop)]
        });
        assert_eq!(said[0], [Err(Error::Core(lost())); 2], "{way}");
    }
}

#[test]
fn what_cannot_be_split_is_refused_in_one_line() {
    let (_, _turn) = libraries();
    assert_eq!(Cuda::require(4), Ok(()));
    let line = Cuda::require(5).unwrap_err().to_string();
    assert!(line.starts_with("the model is split among 5 GPUs, found 4"), "{line}");
    let nccl = Nccl::load().unwrap();
    let twice = Communicator::connect(&nccl, &[0, 0]).unwrap_err();
    assert!(matches!(twice, Error::Own(CudaFailure::Exchange { call: "ncclCommInitAll", .. })), "{twice}");
    // A rank alone.
    let file = Model::new(shape(), Stored::new(Format::Q1_0), 9).to_vec().unwrap();
    let mut alone = ranks(&file, Split::Tensor(2), Activations::Int8, KvFormat::F16, &Arc::default());
    // Also where its graph is recorded.
    let first = each(&mut alone, |_, on| on.run(&[1], Wants::Last(Readout::Logits)));
    assert!(first.iter().all(Result::is_ok));
    alone[0].device.backend_mut().leave_group();
    let error = alone[0].run(&[1], Wants::Last(Readout::Logits)).unwrap_err();
    assert!(error.to_string().contains("needs the other ranks"), "{error}");
    // Back in a group, without the memory of the recorded exchanges.
    let On { mut device, mut cache, .. } = alone.swap_remove(0);
    let one = |gpus: &[usize], rank| Arc::new(Communicator::connect(&nccl, gpus).unwrap().swap_remove(rank));
    let threads = |rank, ranks| Arc::new(Threads { rank, ranks, lost: Arc::default() });
    device.backend_mut().join_group(one(&[0, 1], 0), threads(0, 2)).unwrap();
    let run = Run { tokens: &[1], position: 1, wants: Wants::Nothing };
    let again = CudaDevice::<Cuda>::wait(device.run(&[run], &mut [&mut cache], &mut |_, _, _| ()));
    assert!(again.unwrap_err().to_string().contains("made by another one"));
    // Groups of other sizes, and other ranks.
    for (gpus, rank, group, expected) in [
        (&[0, 1, 2][..], 0, (0, 2), "ranks of a group has 3 elements, expected 2"),
        (&[0, 1], 0, (0, 3), "ranks of a group has 3 elements, expected 2"),
        (&[0, 1], 0, (1, 2), "it is another rank"),
    ] {
        let mut device = device.backend().model().device(&options(Activations::Int8)).unwrap();
        let joined = device.backend_mut().join_group(one(gpus, rank), threads(group.0, group.1));
        let error = joined.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut stages = ranks(&file, Split::Pipeline(2), Activations::Int8, KvFormat::F16, &Arc::default());
    let other = stages[1].device.backend_mut().join_group(one(&[0, 1], 0), threads(0, 2)).unwrap_err();
    assert!(other.to_string().contains("it is another rank"), "{other}");
}

/// One thread records a graph while others launch, allocate and free on the same GPU.
#[test]
fn sequences_on_several_threads_have_their_own_graphs() {
    let (_, _turn) = libraries();
    let file = Model::new(Shape { layers: 1, ..shape() }, Stored::new(Format::Q1_0), 9).to_vec().unwrap();
    let driver = Arc::new(Cuda::open(1).unwrap());
    let model = CudaModel::from_gguf(driver, &Gguf::parse(&file).unwrap()).unwrap();
    let logits = || {
        let mut all = Vec::new();
        for _ in 0..2 {
            let mut on = On::new(model.device(&options(Activations::Int8)).unwrap(), KvFormat::F16);
            for token in 0..3 {
                all.extend(on.run(&[token], Wants::Last(Readout::Logits)).unwrap());
            }
        }
        all
    };
    let want = logits();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(logits)).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join().unwrap() == want));
    });
}

/// A thread that reads, or frees memory, waits for its own work only; others give the GPU more meanwhile.
#[test]
fn a_thread_that_waits_holds_up_no_other() {
    extern "C" fn held(release: *mut std::ffi::c_void) {
        // SAFETY: the test keeps it until the work is done.
        let release = unsafe { &*release.cast::<AtomicBool>() };
        while !release.load(SeqCst) {
            thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    type Held = extern "C" fn(*mut std::ffi::c_void);
    type Launch = unsafe extern "C" fn(*mut std::ffi::c_void, Held, *const AtomicBool) -> c_int;
    let ([cuda, _], _turn) = libraries();
    let driver = Arc::new(Cuda::open(2).unwrap());
    let [memory, freed] = [0, 1].map(|_| Memory::new(&driver, 4).unwrap());
    driver.write(memory.address(), &[1; 4]).unwrap();
    let (release, done) = (AtomicBool::new(false), AtomicBool::new(false));
    // SAFETY: the function of this name has this type; `release` outlives the work.
    let launched = driver.on_stream(&mut |stream| unsafe {
        assert_eq!(cuda.get::<Launch>(b"cuLaunchHostFunc").unwrap()(stream, held, &release), 0);
        Ok(())
    });
    launched.unwrap();
    thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut bytes = [0; 4];
            driver.read(memory.address(), &mut bytes).unwrap();
            assert!(release.load(SeqCst));
            bytes
        });
        let free = scope.spawn(|| drop(freed));
        // Where they hold it up, only this ends it.
        scope.spawn(|| {
            for _ in 0..5000 {
                thread::sleep(std::time::Duration::from_millis(1));
                if done.load(SeqCst) {
                    return;
                }
            }
            release.store(true, SeqCst);
        });
        thread::sleep(std::time::Duration::from_millis(50));
        // After what the others wait for.
        driver.write(memory.address(), &[2; 4]).unwrap();
        done.store(true, SeqCst);
        assert!(!release.load(SeqCst) && !read.is_finished() && !free.is_finished());
        release.store(true, SeqCst);
        read.join().unwrap();
        free.join().unwrap();
    });
}
