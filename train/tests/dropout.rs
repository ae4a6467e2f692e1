//! Dropout of the inputs of adapters, against masks that are multiplied into the factors, and bit for bit against itself.

use std::fs;
use std::path::Path;

use shohin_core::attention::AttentionPattern;
use shohin_core::cpu::Isa;
use shohin_core::model::LoraAdapter;
use shohin_core::model::lora::{A, B};
use shohin_core::model::program::{Program, TensorId, TensorRole};
use shohin_core::pool::{Pool, Serial};
use shohin_core::sample::Pcg32;
use shohin_core::{BonsaiModel, Gguf};
use shohin_train::adapter::{AdapterOptions, new_adapter};
use shohin_train::batch::Batch;
use shohin_train::data::{BatchSize, Data, Order};
use shohin_train::dropout::Dropout;
use shohin_train::gemm::Weight;
use shohin_train::loss::Loss;
use shohin_train::optimizer::Optimizer;
use shohin_train::plan::Checkpoints;
use shohin_train::run::{StepOptions, Steps, Tensor};
use shohin_train::schedule::Schedule;
use shohin_train::trainer::{Recipe, Trainer};

/// A small model with an adapter of all its matrices, whose factors are all random.
struct Adapted {
    model: BonsaiModel<Vec<u8>>,
    /// Of vectors and factors.
    floats: Vec<Vec<f32>>,
}

impl Adapted {
    fn new() -> Adapted {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/sprout-nano.gguf");
        let base = BonsaiModel::load(fs::read(path).unwrap()).unwrap();
        let options = AdapterOptions { rank: 4, ..AdapterOptions::default() };
        let adapter = new_adapter(base.program(), base.config().architecture.name, "a", &options).unwrap();
        let adapter = Gguf::parse(&adapter).unwrap();
        let adapter = LoraAdapter::from_gguf(&adapter).unwrap();
        let model = base.adapt(&[(&adapter, 1.0)], |bytes| bytes).unwrap();
        let mut random = Pcg32::new(5);
        let program = model.program();
        let floats = program.tensor_ids().map(|id| {
            let spec = program.tensor(id);
            let mut rows = vec![0.0; spec.cols];
            if learns(program, id) {
                let size = if spec.name.ends_with(A) { 0.05 } else { 0.2 };
                return (0..spec.rows * spec.cols)
                    .map(|_| size * (random.next_u32() as f32 / u32::MAX as f32 - 0.5))
                    .collect();
            }
            match spec.role {
                TensorRole::Vector => model.weights().matrix(id).unwrap().unpack_row(0, &mut rows).unwrap(),
                TensorRole::Matrix => rows.clear(),
            }
            rows
        });
        let floats = floats.collect();
        Adapted { model, floats }
    }

    fn tensors<'f>(&'f self, floats: &'f [Vec<f32>]) -> Vec<Tensor<'f>> {
        let program = self.model.program();
        let tensor = |id: TensorId| match (program.tensor(id).role, learns(program, id)) {
            (TensorRole::Vector, _) => Tensor::Vector(&floats[id.index()]),
            (_, true) => {
                let (data, cols) = (&floats[id.index()][..], program.tensor(id).cols);
                Tensor::Matrix(Weight::Floats { data, cols, fake: None })
            }
            _ => Tensor::Matrix(Weight::Packed(self.model.weights().matrix(id).unwrap())),
        };
        program.tensor_ids().map(tensor).collect()
    }
}

fn learns(program: &Program, id: TensorId) -> bool {
    [A, B].iter().any(|end| program.tensor(id).name.ends_with(end))
}

/// As if there were three workers, in reverse order.
struct Three;

impl Pool for Three {
    fn workers(&self) -> usize {
        3
    }

    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..jobs).rev().for_each(job);
    }
}

/// The formula of `train/src/dropout.rs`.
fn mask(dropout: &Dropout, tensor: usize, row: u64, col: usize) -> f32 {
    let hash = |z: u64| {
        let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    let numbers = [dropout.seed, dropout.step, tensor as u64, row, col as u64];
    let z = numbers.into_iter().fold(0, |key, number| hash(key ^ number));
    let kept = z as f64 / 2f64.powi(64) >= dropout.probability;
    if kept { (1.0 / (1.0 - dropout.probability)) as f32 } else { 0.0 }
}

/// Each row alone is a product with columns of the first factors that are 0 or larger.
#[test]
fn a_row_sees_factors_without_the_columns_that_were_dropped() {
    let adapted = Adapted::new();
    let program = adapted.model.program();
    let (tokens, targets) = ([17u32, 300, 5, 1200, 44], [9u32, 11, 700, 2, 3]);
    let lengths = [1; 5];
    let options =
        StepOptions { rows: 5, longest: 1, checkpoints: Checkpoints::None, pattern: AttentionPattern::Full };
    let mut steps = Steps::new(program, |id| learns(program, id), options, Isa::detect(), &Serial).unwrap();
    let dropout = Dropout { probability: 0.3, seed: 11, step: 4, first_row: 7 };
    let loss = Loss::CrossEntropy { smoothing: 0.0 };
    let batch = |rows: std::ops::Range<usize>| Batch {
        tokens: &tokens[rows.clone()],
        lengths: &lengths[rows.clone()],
        targets: &targets[rows],
        weights: &[],
        teacher: None,
        prefix: None,
    };
    let n = steps.num_trained();
    let tensors = adapted.tensors(&adapted.floats);
    let mut found = vec![0.0; n];
    steps.drop_inputs(Some(dropout));
    let found_loss = steps.run(&tensors, &batch(0..5), &loss, 5.0, &mut found).unwrap();
    // Losses alone have none.
    let plain = steps.loss(&tensors, &batch(0..5), &loss, 5.0).unwrap();
    steps.drop_inputs(None);
    assert_eq!(plain, steps.run(&tensors, &batch(0..5), &loss, 5.0, &mut vec![0.0; n]).unwrap());
    assert!((plain - found_loss).abs() > 1e-3, "{plain} {found_loss}");

    let (mut want, mut want_loss) = (vec![0.0f64; n], 0.0);
    for row in 0..5 {
        let mut floats = adapted.floats.clone();
        let mut masks = vec![1.0; n];
        for id in program.tensor_ids().filter(|id| program.tensor(*id).name.ends_with(A)) {
            let (cols, range) = (program.tensor(id).cols, steps.range(id).unwrap());
            for (i, at) in range.enumerate() {
                let m = mask(&dropout, id.index(), dropout.first_row + row as u64, i % cols);
                masks[at] = m;
                floats[id.index()][i] *= m;
            }
        }
        let mut gradients = vec![0.0; n];
        let tensors = adapted.tensors(&floats);
        want_loss += steps.run(&tensors, &batch(row..row + 1), &loss, 5.0, &mut gradients).unwrap();
        for ((want, gradient), mask) in want.iter_mut().zip(&gradients).zip(&masks) {
            *want += f64::from(*gradient) * f64::from(*mask);
        }
    }
    assert!((found_loss - want_loss).abs() < 1e-5, "{found_loss} {want_loss}");
    let norm = want.iter().map(|x| x * x).sum::<f64>().sqrt();
    let apart = found.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt();
    assert!(norm > 1e-2 && apart < 1e-5 * norm, "{apart} of {norm}");
}

/// The factors after some steps, and their losses.
fn trained(
    adapted: &Adapted,
    accumulate: usize,
    checkpoints: Checkpoints,
    dropout: f64,
    pool: &dyn Pool,
) -> (Vec<f32>, Vec<f64>) {
    let program = adapted.model.program();
    let recipe = Recipe {
        size: BatchSize { rows: 4, row_tokens: 12 },
        accumulate,
        order: Order::Shuffled,
        seed: 3,
        steps: 3,
        optimizer: Optimizer::AdamW { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0 },
        learning_rate: 1e-3,
        schedule: Schedule::Constant { warmup: 0 },
        clip_norm: None,
        clip_value: None,
        loss: Loss::default(),
        fake: None,
        dropout,
        checkpoints,
        pattern: AttentionPattern::Full,
    };
    let tensors = adapted.tensors(&adapted.floats);
    let mut trainer =
        Trainer::new(program, tensors, |id| learns(program, id), recipe, Isa::detect(), pool).unwrap();
    let data = Data::stream((0..400u32).map(|i| i * i % 1900).collect(), Vec::new()).unwrap();
    let before = trainer.evaluate(&data).unwrap();
    let losses = (0..3).map(|_| trainer.step(&data).unwrap().loss).collect();
    // What is measured has none: without a change, it is the same again.
    let after = trainer.evaluate(&data).unwrap();
    assert!(after == trainer.evaluate(&data).unwrap() && after < before);
    let masters = program.tensor_ids().filter_map(|id| trainer.master(id)).flatten().copied().collect();
    (masters, losses)
}

#[test]
fn bits_do_not_depend_on_workers_nor_on_what_is_kept() {
    let adapted = Adapted::new();
    let (want, losses) = trained(&adapted, 2, Checkpoints::None, 0.1, &Serial);
    for pool in [&Serial as &dyn Pool, &Three] {
        for kept in ["none", "every", "nth:2", "sqrt"] {
            let (found, again) = trained(&adapted, 2, kept.parse().unwrap(), 0.1, pool);
            assert!(found == want && again == losses, "{kept}");
        }
    }
    // Sums are rounded in another order, but the masks are the same: others change the loss a hundred times as much.
    for accumulate in [1, 4] {
        let (_, others) = trained(&adapted, accumulate, Checkpoints::None, 0.1, &Serial);
        let apart = losses.iter().zip(&others).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-5, "{accumulate}: {apart}");
    }
    let (_, others) = trained(&adapted, 2, Checkpoints::None, 0.0, &Serial);
    assert!(losses.iter().zip(&others).all(|(a, b)| (a - b).abs() > 1e-4), "{losses:?} {others:?}");
}
