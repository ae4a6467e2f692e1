//! Gradients of whole models, beside those of an independent implementation in float64 (`tests/oracle/gradients.py`, whose
//! comments define the fixtures).

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use shohin_core::attention::AttentionPattern;
use shohin_core::cpu::Isa;
use shohin_core::gguf::GgufWriter;
use shohin_core::model::program::{TensorId, TensorRole};
use shohin_core::model::{LoraAdapter, ModelConfig, Positions, RopeScaling};
use shohin_core::pool::{Pool, Serial};
use shohin_core::{BonsaiModel, Format, Gguf};
use shohin_train::batch::Batch;
use shohin_train::gemm::Weight;
use shohin_train::loss::Loss;
use shohin_train::plan::Checkpoints;
use shohin_train::run::{StepOptions, Steps, Tensor};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// What a fixture says of a tensor's gradient.
struct Expected {
    name: String,
    /// Rows and columns.
    shape: [usize; 2],
    norm: f64,
    /// The gradient, or its products with vectors of 1 and -1.
    values: Result<Vec<f32>, Vec<f64>>,
}

#[derive(Default)]
struct Case {
    model: PathBuf,
    /// In place of the file's.
    architecture: Option<String>,
    pattern: AttentionPattern,
    rope: Option<RopeScaling>,
    context: Option<usize>,
    lengths: Vec<usize>,
    tokens: Vec<u32>,
    targets: Vec<u32>,
    weights: Vec<f32>,
    loss: f64,
    tensors: Vec<Expected>,
    /// Rank, alpha, and the factors, in the order of the tensors.
    lora: Option<(usize, f32, Vec<f32>)>,
}

fn numbers<T: std::str::FromStr>(words: &[&str]) -> Vec<T> {
    words.iter().map(|word| word.parse().ok().unwrap()).collect()
}

impl Case {
    fn read(name: &str) -> Case {
        let path = root().join("train/tests/fixtures/gradients").join(name);
        let text = fs::read_to_string(path.with_extension("txt")).unwrap();
        let whole = fs::read(path.with_extension("f32")).unwrap_or_default();
        let mut whole = whole.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
        let mut case = Case::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[0] {
                "model" => case.model = root().join(words[1]),
                "architecture" => case.architecture = Some(words[1].to_string()),
                "attention" => case.pattern = words[1].parse().unwrap(),
                "rope" => case.rope = Some(words[1].parse().unwrap()),
                "lora" => {
                    let factors = fs::read(path.with_extension("factors")).unwrap();
                    let factors = factors.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
                    case.lora = Some((words[1].parse().unwrap(), words[2].parse().unwrap(), factors));
                }
                "context" => case.context = Some(words[1].parse().unwrap()),
                "sequences" => case.lengths = numbers(&words[1..]),
                "tokens" => case.tokens = numbers(&words[1..]),
                "targets" => case.targets = numbers(&words[1..]),
                "weights" => case.weights = numbers(&words[1..]),
                "loss" => case.loss = words[1].parse().unwrap(),
                "tensor" | "project" => {
                    let shape: [usize; 2] = numbers(&words[2..4]).try_into().unwrap();
                    let len = shape.iter().product();
                    let values = match words[0] {
                        "tensor" => Ok(whole.by_ref().take(len).collect()),
                        _ => Err(numbers(&words[5..])),
                    };
                    let norm = words[4].parse().unwrap();
                    case.tensors.push(Expected { name: words[1].to_string(), shape, norm, values });
                }
                other => panic!("{name}: {other}"),
            }
        }
        assert!(whole.next().is_none(), "{name}");
        case
    }

    /// The file of the adapter.
    fn adapter(&self, architecture: &str) -> Option<Vec<u8>> {
        let (_, alpha, factors) = self.lora.as_ref()?;
        let mut w = GgufWriter::new();
        for (key, value) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            w.set(key, value).unwrap();
        }
        w.set("general.architecture", architecture).unwrap();
        w.set("adapter.lora.alpha", *alpha).unwrap();
        let (mut data, mut at) = (Vec::new(), 0);
        for tensor in &self.tensors {
            let [rows, cols] = tensor.shape;
            w.tensor(&tensor.name, &[cols as u64, rows as u64], Format::F32).unwrap();
            let part = &factors[at..at + rows * cols];
            data.push(part.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
            at += rows * cols;
        }
        Some(w.to_vec(data).unwrap())
    }

    fn config(&self, gguf: &Gguf<'_>) -> ModelConfig {
        let mut config = ModelConfig::from_gguf(gguf).unwrap();
        if let Some(scaling) = self.rope {
            match &mut config.positions {
                Positions::Rotary(rotary) => rotary.scaling = scaling,
                other => panic!("{other:?}"),
            }
        }
        match self.context {
            Some(context) => config.for_context(context),
            None => config,
        }
    }
}

fn splitmix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Element `j` of the fixtures' vector `v` of 1 and -1.
fn sign(v: u64, j: u64) -> f64 {
    if splitmix64((v << 32) + j) >> 63 == 1 { -1.0 } else { 1.0 }
}

impl Expected {
    /// The product of the gradient with vector `v` of 1 and -1.
    fn along(&self, v: u64) -> f64 {
        match &self.values {
            Ok(values) => values.iter().zip(0..).map(|(x, j)| f64::from(*x) * sign(v, j)).sum(),
            Err(products) => products[v as usize],
        }
    }

    /// The relative distance of `found`.
    fn distance(&self, found: &[f32]) -> f64 {
        let squared: f64 = match &self.values {
            Ok(values) => {
                assert_eq!(values.len(), found.len(), "{}", self.name);
                values.iter().zip(found).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
            }
            Err(products) => {
                let of =
                    |v: u64| -> f64 { found.iter().zip(0..).map(|(x, j)| f64::from(*x) * sign(v, j)).sum() };
                let squares = products.iter().zip(0..).map(|(p, v)| (p - of(v)).powi(2));
                squares.sum::<f64>() / products.len() as f64
            }
        };
        squared.sqrt() / self.norm
    }
}

/// The tensors of a model as they are in its file: matrices in their format, vectors as floats.
struct Model {
    model: BonsaiModel<Vec<u8>>,
    vectors: Vec<Vec<f32>>,
}

/// The GGUF file of a folder.
#[cfg(not(target_family = "wasm"))]
fn converted(folder: &Path) -> Vec<u8> {
    shohin_convert::in_memory(folder).unwrap().to_vec()
}

#[cfg(target_family = "wasm")]
fn converted(_: &Path) -> Vec<u8> {
    unreachable!("folders are converted where files are mapped")
}

/// The file `bytes` as one of another architecture, with the same keys and tensors.
fn renamed(bytes: &[u8], architecture: &str) -> Vec<u8> {
    let gguf = Gguf::parse(bytes).unwrap();
    let (mut w, mut data) = (GgufWriter::new(), Vec::new());
    let old = gguf.metadata().str("general.architecture").unwrap().unwrap();
    for (key, value) in gguf.metadata().iter() {
        match key.strip_prefix(old) {
            Some(end) => w.set(&[architecture, end].concat(), value).unwrap(),
            None if key == "general.architecture" => w.set(key, architecture).unwrap(),
            None => w.set(key, value).unwrap(),
        };
    }
    for tensor in gguf.tensors() {
        let matrix = gguf.matrix(tensor.name()).unwrap();
        let mut row = vec![0.0; matrix.cols()];
        let mut numbers = Vec::new();
        for i in 0..matrix.rows() {
            matrix.unpack_row(i, &mut row).unwrap();
            numbers.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        }
        w.tensor(tensor.name(), tensor.dims(), Format::F32).unwrap();
        data.push(numbers);
    }
    w.to_vec(data).unwrap()
}

impl Model {
    fn load(case: &Case) -> Model {
        let is_folder = case.model.is_dir();
        let mut bytes = if is_folder { converted(&case.model) } else { fs::read(&case.model).unwrap() };
        if let Some(architecture) = &case.architecture {
            bytes = renamed(&bytes, architecture);
        }
        let config = case.config(&Gguf::parse(&bytes).unwrap());
        let mut model =
            BonsaiModel::load_parts(vec![bytes], &Default::default(), |_| config.clone()).unwrap();
        if let Some(adapter) = case.adapter(model.config().architecture.name) {
            let adapter = Gguf::parse(&adapter).unwrap();
            let adapter = LoraAdapter::from_gguf(&adapter).unwrap();
            model = model.adapt(&[(&adapter, 1.0)], |bytes| bytes).unwrap();
        }
        let program = model.program();
        let vectors = program.tensor_ids().map(|id| {
            let spec = program.tensor(id);
            let mut row = vec![0.0; if spec.role == TensorRole::Vector { spec.cols } else { 0 }];
            if !row.is_empty() {
                model.weights().matrix(id).unwrap().unpack_row(0, &mut row).unwrap();
            }
            row
        });
        let vectors = vectors.collect();
        Model { model, vectors }
    }

    fn tensors(&self) -> Vec<Tensor<'_>> {
        let program = self.model.program();
        let tensor = |id: TensorId| match program.tensor(id).role {
            TensorRole::Matrix => Tensor::Matrix(Weight::Packed(self.model.weights().matrix(id).unwrap())),
            TensorRole::Vector => Tensor::Vector(&self.vectors[id.index()]),
        };
        program.tensor_ids().map(tensor).collect()
    }
}

const LOSS: Loss = Loss::CrossEntropy { smoothing: 0.0 };

/// Steps that train the tensors that the fixture has.
fn steps<'p>(
    case: &Case,
    model: &'p Model,
    checkpoints: Checkpoints,
    isa: Isa,
    pool: &'p dyn Pool,
) -> Steps<'p> {
    let program = model.model.program();
    let trained = |id: TensorId| case.tensors.iter().any(|t| t.name == program.tensor(id).name);
    let options = StepOptions {
        rows: case.tokens.len(),
        longest: case.lengths.iter().copied().max().unwrap(),
        checkpoints,
        pattern: case.pattern,
    };
    Steps::new(program, trained, options, isa, pool).unwrap()
}

impl Case {
    fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            lengths: &self.lengths,
            targets: &self.targets,
            weights: &self.weights,
            teacher: None,
            prefix: None,
        }
    }
}

/// The part of a tensor in gradients.
fn part(model: &Model, steps: &Steps<'_>, name: &str) -> Range<usize> {
    let program = model.model.program();
    let id = program.tensor_ids().find(|id| program.tensor(*id).name == name).unwrap();
    steps.range(id).unwrap()
}

/// The loss, and the gradients of the tensors that the fixture has.
fn run(
    case: &Case,
    model: &Model,
    checkpoints: Checkpoints,
    isa: Isa,
    pool: &dyn Pool,
) -> (f64, Vec<Vec<f32>>, u64) {
    let mut steps = steps(case, model, checkpoints, isa, pool);
    let batch = case.batch();
    let mut gradients = vec![0.0; steps.num_trained()];
    let loss = steps.run(&model.tensors(), &batch, &LOSS, batch.total(), &mut gradients).unwrap();
    let of = |t: &Expected| gradients[part(model, &steps, &t.name)].to_vec();
    (loss, case.tensors.iter().map(of).collect(), steps.memory().activations)
}

/// How far gradients may be from those in float64, relative to their norm. Gemma 3's depend on rounding more than others': norms
/// after a block enlarge what is small. PyTorch's in float32 differ by 7e-5.
fn tolerance(name: &str) -> f64 {
    if name.starts_with("gemma3") { 1e-4 } else { 2e-5 }
}

fn check(name: &str) {
    let case = Case::read(name);
    let model = Model::load(&case);
    // Without vectors, the larger models take half a minute.
    let slow = |isa: &Isa| *isa == Isa::SCALAR && name.starts_with("sprout");
    for isa in Isa::available().filter(|isa| !slow(isa)) {
        let (loss, gradients, _) = run(&case, &model, Checkpoints::None, isa, &Serial);
        assert!((loss / case.loss - 1.0).abs() < 1e-6, "{name}: loss {loss}, not {}", case.loss);
        let mut worst = 0.0f64;
        for (t, found) in case.tensors.iter().zip(&gradients) {
            let distance = t.distance(found);
            worst = worst.max(distance);
            assert!(
                distance < tolerance(name),
                "{name} {}: {} differs by {distance:.2e}",
                isa.name(),
                t.name
            );
        }
        println!("{name} {}: {worst:.2e}", isa.name());
    }
}

#[test]
fn of_qwen3_with_yarn() {
    check("qwen3-tied-yarn");
}

#[test]
fn of_qwen3_with_own_output_and_scaled_frequencies() {
    check("qwen3-untied");
    check("qwen3-untied-linear");
    check("qwen3-untied-dynamic");
    check("qwen3-longrope");
    check("qwen3-longrope-short");
}

#[test]
fn with_windows() {
    check("qwen3-tied-yarn-window");
}

#[test]
fn with_alibi() {
    check("qwen3-alibi");
}

#[test]
fn of_llama() {
    check("llama3");
}

/// All architectures that are there as folders.
#[cfg(not(target_family = "wasm"))]
const FOLDERS: [&str; 6] = ["qwen2", "smollm3", "granite", "gemma3", "bitnet-b158", "bitnet"];

#[cfg(not(target_family = "wasm"))]
#[test]
fn of_other_architectures() {
    for name in FOLDERS {
        check(name);
        check_tangents(name);
        check_bits(name);
        check_prefix(name);
        check_parts(name);
    }
}

/// A window of a layer and one that is asked for are both in force; blocks are not for such models.
#[cfg(not(target_family = "wasm"))]
#[test]
fn windows_of_layers_and_patterns() {
    let case = Case::read("gemma3");
    let model = Model::load(&case);
    let loss = |pattern: &str| {
        let pattern: AttentionPattern = pattern.parse().unwrap();
        let (rows, longest) = (case.tokens.len(), case.tokens.len());
        let options = StepOptions { rows, longest, checkpoints: Checkpoints::None, pattern };
        let mut steps = Steps::new(model.model.program(), |_| false, options, Isa::detect(), &Serial)?;
        let batch = case.batch();
        steps.loss(&model.tensors(), &batch, &LOSS, batch.total())
    };
    let full = loss("full").unwrap();
    assert!((full / case.loss - 1.0).abs() < 1e-6);
    assert_eq!(loss("window:17"), Ok(full));
    assert_ne!(loss("window:7"), Ok(full));
    assert_ne!(loss("window:7"), loss("window:4"));
    let error = loss("dilated:2:2").unwrap_err().to_string();
    assert!(error.contains("windows of its own"), "{error}");
}

#[test]
fn of_mixtures_of_experts() {
    check("qwen3moe");
    check("qwen3moe-plain");
}

#[test]
fn weights_of_experts_are_not_trained() {
    let case = Case::read("qwen3moe");
    let model = Model::load(&case);
    let options =
        StepOptions { rows: 8, longest: 8, checkpoints: Checkpoints::None, pattern: AttentionPattern::Full };
    let program = model.model.program();
    for of in ["gate", "up", "down"] {
        let trained = |id: TensorId| program.tensor(id).name == format!("blk.1.ffn_{of}_exps.weight");
        let error = Steps::new(program, trained, options, Isa::detect(), &Serial).unwrap_err();
        assert!(error.to_string().contains("training the weights of experts"), "{error}");
    }
}

/// Of the factors of an adapter; the model's own weights are frozen.
fn check_adapter(name: &str) {
    let case = Case::read(name);
    let (rank, alpha, _) = case.lora.as_ref().unwrap();
    let factor = f64::from(*alpha) / *rank as f64;
    let model = Model::load(&case);
    for isa in Isa::available() {
        let (loss, gradients, _) = run(&case, &model, Checkpoints::None, isa, &Serial);
        assert!((loss / case.loss - 1.0).abs() < 1e-6, "{name}: loss {loss}, not {}", case.loss);
        let mut worst = 0.0f64;
        for (t, found) in case.tensors.iter().zip(&gradients) {
            // The program has `B` times the factor.
            let factor = if t.name.ends_with(".lora_b") { factor } else { 1.0 };
            let found: Vec<f32> = found.iter().map(|x| (f64::from(*x) * factor) as f32).collect();
            let distance = t.distance(&found);
            worst = worst.max(distance);
            assert!(distance < tolerance(name), "{name} {} {}: {distance:.2e}", isa.name(), t.name);
        }
        println!("{name} {}: {worst:.2e}", isa.name());
    }
}

#[test]
fn of_adapters() {
    check_adapter("qwen3-untied-lora");
}

#[cfg(not(target_family = "wasm"))]
#[test]
fn of_adapters_of_other_architectures() {
    for name in ["qwen2-lora", "granite-lora", "gemma3-lora"] {
        check_adapter(name);
    }
}

#[test]
fn of_packed_models() {
    check("sprout");
    check("sprout-q1");
}

/// The derivative along directions of 1 and -1 is the product with the gradients, and that with the fixture's.
fn check_tangents(name: &str) {
    let case = Case::read(name);
    let model = Model::load(&case);
    let (tensors, batch) = (model.tensors(), case.batch());
    let mut steps = steps(&case, &model, Checkpoints::None, Isa::detect(), &Serial);
    let mut gradients = vec![0.0; steps.num_trained()];
    let loss = steps.run(&tensors, &batch, &LOSS, batch.total(), &mut gradients).unwrap();
    let norm = case.tensors.iter().map(|t| t.norm.powi(2)).sum::<f64>().sqrt();
    let (mut worst, mut farthest) = (0.0f64, 0.0f64);
    for v in 0..4 {
        let mut direction = vec![0.0; steps.num_trained()];
        for t in &case.tensors {
            let part = &mut direction[part(&model, &steps, &t.name)];
            part.iter_mut().zip(0..).for_each(|(d, j)| *d = sign(v, j) as f32);
        }
        let (again, found) = steps.tangent(&tensors, &direction, &batch, &LOSS, batch.total()).unwrap();
        assert!(again == loss, "{name}: loss {again}, not {loss}");
        let product = gradients.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d));
        let product: f64 = product.sum();
        // Relative to the norm: products may cancel.
        worst = worst.max((found - product).abs() / norm);
        let want: f64 = case.tensors.iter().map(|t| t.along(v)).sum();
        farthest = farthest.max((found - want).abs() / norm);
    }
    println!("{name}: {worst:.2e} from the gradients, {farthest:.2e} from the fixture");
    assert!(worst < 1e-5 && farthest < tolerance(name), "{name}: {worst:.2e} {farthest:.2e}");
}

#[test]
fn tangents_are_products_with_gradients() {
    for name in ["qwen3-tied-yarn", "qwen3-untied", "qwen3-longrope", "llama3"] {
        check_tangents(name);
    }
    for name in ["qwen3-tied-yarn-window", "qwen3-alibi", "qwen3moe", "qwen3moe-plain"] {
        check_tangents(name);
    }
    for name in ["sprout", "sprout-q1"] {
        check_tangents(name);
    }
}

/// A part of the tensors trained alone has the same gradients. What is not trained has no tangent.
fn check_parts(name: &str) {
    let case = Case::read(name);
    let model = Model::load(&case);
    let program = model.model.program();
    let parts = [
        "attn_k.weight",
        "attn_v.weight",
        "attn_k.bias",
        "attn_q_norm.weight",
        "post_ffw_norm",
        "ffn_sub_norm",
        "ffn_gate_inp.weight",
        "ffn_gate.weight",
        "0.ffn_gate.weight",
        "0.ffn_up.weight",
        "output_norm",
        "token_embd",
    ];
    for part in parts {
        let trained = |id: TensorId| program.tensor(id).name.contains(part);
        if !program.tensor_ids().any(trained) {
            continue;
        }
        let options = StepOptions {
            rows: case.tokens.len(),
            longest: case.lengths.iter().copied().max().unwrap(),
            checkpoints: Checkpoints::None,
            pattern: case.pattern,
        };
        let mut steps = Steps::new(program, trained, options, Isa::detect(), &Serial).unwrap();
        let (batch, mut gradients) = (case.batch(), vec![0.0; steps.num_trained()]);
        steps.run(&model.tensors(), &batch, &LOSS, batch.total(), &mut gradients).unwrap();
        for t in case.tensors.iter().filter(|t| t.name.contains(part)) {
            let id = program.tensor_ids().find(|id| program.tensor(*id).name == t.name).unwrap();
            let distance = t.distance(&gradients[steps.range(id).unwrap()]);
            assert!(distance < tolerance(name), "{name} {}: {distance:.2e}", t.name);
        }
        // Its product with the gradients' own signs does not cancel.
        let direction: Vec<f32> = gradients.iter().map(|g| g.signum()).collect();
        let want: f64 = gradients.iter().map(|g| f64::from(g.abs())).sum();
        let (_, found) = steps.tangent(&model.tensors(), &direction, &batch, &LOSS, batch.total()).unwrap();
        assert!((found / want - 1.0).abs() < 2e-5, "{name} {part}: {found}, not {want}");
        let (memory, tangents) = (steps.memory(), steps.tangent_memory());
        let has_experts = program.mixtures().next().is_some();
        assert!(tangents.total() > 0 && (memory.experts > 0) == has_experts);
        assert!(tangents.experts > memory.experts || !has_experts);
    }
}

#[test]
fn of_a_part() {
    for name in ["qwen3moe", "qwen3-tied-yarn"] {
        check_parts(name);
    }
}

/// Jobs in reverse order, as if there were three workers.
struct Three;

impl Pool for Three {
    fn workers(&self) -> usize {
        3
    }

    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..jobs).rev().for_each(job);
    }
}

#[test]
fn bits_do_not_depend_on_what_is_kept_nor_on_workers() {
    for name in ["sprout", "qwen3-tied-yarn-window", "llama3", "qwen3moe", "qwen3moe-plain"] {
        check_bits(name);
    }
}

fn check_bits(name: &str) {
    let case = Case::read(name);
    let model = Model::load(&case);
    let isa = Isa::detect();
    let (loss, want, most) = run(&case, &model, Checkpoints::None, isa, &Serial);
    let (_, _, least) = run(&case, &model, Checkpoints::Every, isa, &Serial);
    // The others have two blocks.
    assert!(least < most || name != "sprout", "{name}: {least} {most}");
    let between = Checkpoints::Bytes(least.midpoint(most));
    let all = [Checkpoints::Every, Checkpoints::EveryNth(2), Checkpoints::Sqrt, between];
    for checkpoints in [Checkpoints::None].into_iter().chain(all) {
        for pool in [&Serial as &dyn Pool, &Three] {
            let (again, found, bytes) = run(&case, &model, checkpoints, isa, pool);
            assert!(again == loss && found == want, "{name} {checkpoints}");
            assert!(bytes <= most, "{name} {checkpoints}: {bytes} over {most}");
        }
    }
    let tangents = [&Serial as &dyn Pool, &Three].map(|pool| {
        let mut steps = steps(&case, &model, Checkpoints::None, isa, pool);
        let (batch, direction) = (case.batch(), vec![1.0; steps.num_trained()]);
        steps.tangent(&model.tensors(), &direction, &batch, &LOSS, batch.total()).unwrap()
    });
    assert!(tangents[0] == tangents[1] && tangents[0].0 == loss, "{name}");
}

#[test]
fn bits_do_not_depend_on_who_computes_the_prefix() {
    for name in ["sprout", "qwen3-tied-yarn-window", "llama3", "qwen3moe"] {
        check_prefix(name);
    }
}

/// What is before all that is trained may be given instead of computed.
fn check_prefix(name: &str) {
    let case = Case::read(name);
    let model = Model::load(&case);
    let program = model.model.program();
    for checkpoints in [Checkpoints::None, Checkpoints::Every, Checkpoints::EveryNth(2)] {
        let options = StepOptions {
            rows: case.tokens.len(),
            longest: case.lengths.iter().copied().max().unwrap(),
            checkpoints,
            pattern: case.pattern,
        };
        for part in ["blk.1.attn_q.weight", "blk.1.attn_norm", "blk.0.attn_v.weight", "output_norm"] {
            let trained = |id: TensorId| program.tensor(id).name.contains(part);
            if !program.tensor_ids().any(trained) {
                continue;
            }
            let mut steps = Steps::new(program, trained, options, Isa::detect(), &Serial).unwrap();
            let mut prefix = Vec::new();
            assert!(steps.prefix(&model.tensors(), &case.batch(), &mut prefix).unwrap(), "{name} {part}");
            let mut with = |prefix: Option<&[f32]>| {
                let batch = Batch { prefix, ..case.batch() };
                let mut gradients = vec![0.0; steps.num_trained()];
                let loss = steps.run(&model.tensors(), &batch, &LOSS, batch.total(), &mut gradients).unwrap();
                (loss, gradients, steps.largest())
            };
            let want = with(None);
            assert!(with(Some(&prefix)) == want, "{name} {part} {checkpoints}");
            // It is read.
            let other: Vec<f32> = prefix.iter().map(|x| x * 1.5 + 0.25).collect();
            assert!(with(Some(&other)).1 != want.1, "{name} {part} {checkpoints}");
            let short = Batch { prefix: Some(&prefix[1..]), ..case.batch() };
            let mut gradients = vec![0.0; steps.num_trained()];
            assert!(steps.run(&model.tensors(), &short, &LOSS, 1.0, &mut gradients).is_err());
        }
    }
    let (rows, longest) = (case.tokens.len(), case.tokens.len());
    let options = StepOptions { rows, longest, checkpoints: Checkpoints::None, pattern: case.pattern };
    let embedding = |id: TensorId| program.embedding() == Some(id);
    let mut steps = Steps::new(program, embedding, options, Isa::detect(), &Serial).unwrap();
    let mut prefix = vec![1.0];
    assert!(!steps.prefix(&model.tensors(), &case.batch(), &mut prefix).unwrap() && prefix.is_empty());
}
