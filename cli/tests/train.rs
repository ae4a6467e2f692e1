//! `shohin train`, as a user runs it.

use serde_json::{Value, json};
use shohin_core::{Format, Gguf};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const STORY: &str =
    "Mia has a red kite. The kite flies over the old mill. A crow takes the string. Mia laughs and runs.\n";

/// A folder with a text, where `shohin` runs.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.write("story.txt", &STORY.repeat(4));
        place
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
        command.args(args.split(' ')).current_dir(&self.0).stdin(Stdio::null());
        command.env("SHOHIN_WEIGHT_CACHE", "none").env("SHOHIN_DEVICE", "cpu");
        command
    }

    fn run(&self, args: &str) -> Output {
        self.command(args).output().unwrap()
    }

    fn ok(&self, args: &str) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &str) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    fn fails(&self, args: &str, code: i32, problem: &str) {
        let output = self.run(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args}: {text}");
        assert!(text.contains(problem), "{args}: {text}");
    }
}

fn models() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("models").display().to_string()
}

#[test]
fn a_text_is_learned_and_the_file_runs() {
    let place = Place::new();
    let train = "train --text story.txt --rows 4 --row-tokens 32 --steps 40 --lr 2e-3 --json";
    let done = place.json(&format!("{train} --out story.gguf --log log.jsonl --svg loss.svg"));
    assert_eq!(done["steps"], 40);
    let (first, last) = (done["loss"]["first"].as_f64().unwrap(), done["loss"]["last"].as_f64().unwrap());
    assert!(first > 1.5 && last < 0.2, "{first} {last}");
    let log = String::from_utf8(place.read("log.jsonl")).unwrap();
    let steps: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.len(), 40);
    assert_eq!(steps[39]["loss"], done["loss"]["last"]);
    assert!(steps.iter().all(|step| step["grad_norm"].as_f64().unwrap() > 0.0 && step["lr"] == 0.002));
    assert!(String::from_utf8(place.read("loss.svg")).unwrap().starts_with("<svg"));
    let text = place.ok("run --raw -m story.gguf -n 12 --temp 0 Mia");
    assert!(text.contains("has a red kite. The kite"), "{text}");
    // What `eval` says of the file is what training measured.
    let valid = place.json(&format!("{train} --out again.gguf --valid story.txt"));
    let before =
        place.json("eval story.txt --window 33 --stride 32 --limit 129 --act f32 --kv f32 --json --special");
    assert!(
        valid["valid"]["after"].as_f64().unwrap() < 0.2 && valid["valid"]["before"].as_f64().unwrap() > 1.5
    );
    let (eval, trained) =
        (before["nats_per_token"].as_f64().unwrap(), valid["valid"]["before"].as_f64().unwrap());
    assert!((eval - trained).abs() < 1e-3, "{eval} {trained}");
    // The same bits, on any number of threads and whatever is kept.
    place.ok(&format!("{train} --out one.gguf -t 1 --checkpoint every"));
    assert_eq!(place.read("story.gguf").len(), place.read("one.gguf").len());
    assert!(place.read("again.gguf") == place.read("one.gguf"));
}

#[test]
fn replies_are_learned() {
    let place = Place::new();
    let chat = |question: &str, answer: &str| {
        let messages =
            [json!({"role": "user", "content": question}), json!({"role": "assistant", "content": answer})];
        json!({ "messages": messages }).to_string()
    };
    let lines = [
        chat("What is the code of the door?", "The code is four two."),
        chat("Where do I live?", "You live in the old mill."),
    ];
    place.write("chats.jsonl", &lines.join("\n"));
    place.ok(
        "train --chats chats.jsonl --rows 2 --row-tokens 64 --steps 30 --lr 1e-3 --out taught.gguf --json",
    );
    let answer = |question: &str| {
        let args = ["run", "-m", "taught.gguf", "--temp", "0", question];
        let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
        let output =
            command.args(args).current_dir(&place.0).env("SHOHIN_WEIGHT_CACHE", "none").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(answer("What is the code of the door?").trim(), "The code is four two.");
    assert_eq!(answer("Where do I live?").trim(), "You live in the old mill.");
    place.fails("train --chats story.txt --out x.gguf", 1, "line 1: JSON at byte 0 is 'M', expected a value");
    place.write("user.jsonl", r#"{"messages": [{"role": "user", "content": "a"}]}"#);
    place.fails("train --chats user.jsonl --out x.gguf", 1, "line 1");
    place.write("role.jsonl", r#"{"messages": [{"role": "robot", "content": "a"}]}"#);
    place.fails("train --chats role.jsonl --out x.gguf", 1, "line 1: messages[0].role must be");
    place.fails("train --chats chats.jsonl --row-tokens 8 --out x.gguf", 1, "a row at most 8");
}

#[test]
fn an_adapter_is_learned_beside_packed_weights() {
    let place = Place::new();
    let messages = [
        json!({"role": "user", "content": "What is the code of the door?"}),
        json!({"role": "assistant", "content": "The code is four two."}),
    ];
    place.write("chats.jsonl", &json!({ "messages": messages }).to_string());
    let train = "train --chats chats.jsonl --method lora --rows 2 --row-tokens 64 --lr 5e-3 --json";
    place.ok(&format!("{train} --rank 4 --alpha 8 --layers 2-5 --steps 25 --out taught.gguf"));
    let bytes = place.read("taught.gguf");
    let gguf = Gguf::parse(&bytes).unwrap();
    assert_eq!(gguf.tensors().len(), 4 * 7 * 2);
    assert_eq!(gguf.metadata().f32("adapter.lora.alpha"), Ok(Some(8.0)));
    let answer = |lora: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
        command.args(["run", "--temp", "0", "What is the code of the door?"]).args(lora);
        let output = command.current_dir(&place.0).env("SHOHIN_WEIGHT_CACHE", "none").output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    assert_ne!(answer(&[]), "The code is four two.");
    assert_eq!(answer(&["--lora", "taught.gguf"]), "The code is four two.");
    // It goes on from there: the loss begins where it ended.
    let again = place.json(&format!("{train} --from taught.gguf --steps 3 --out more.gguf"));
    assert!(again["loss"]["first"].as_f64().unwrap() < 0.2, "{again}");
    place.fails(&format!("{train} --targets q,x --steps 1 --out x.gguf"), 2, "q, k, v, o, gate, up, down");
    place.fails(&format!("{train} --layers 2-6 --steps 1 --out x.gguf"), 2, "0 to 5");
    // As PEFT has it, the same adapter.
    place.ok(&format!("{train} --rank 4 --alpha 8 --layers 2-5 --steps 25 --out folder"));
    let settings: Value = serde_json::from_slice(&place.read("folder/adapter_config.json")).unwrap();
    assert_eq!((&settings["r"], &settings["lora_alpha"]), (&json!(4), &json!(8)));
    assert_eq!(settings["target_modules"].as_array().unwrap().len(), 4 * 7);
    assert_eq!(answer(&["--lora", "folder"]), "The code is four two.");
    place.fails(&format!("{train} --steps 1 --out folder"), 2, "folder exists; replace it with --force");
    place.ok(&format!("{train} --from folder --steps 1 --out folder --force"));
}

#[test]
fn a_new_model_is_ternary_while_it_is_trained() {
    let place = Place::new();
    let config = json!({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 2048,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
    });
    place.write("config.json", &config.to_string());
    let train = format!(
        "train --new config.json --tokenizer {}/sprout.gguf --text story.txt --valid story.txt --weights ternary --rows 4 \
         --row-tokens 32 --lr 5e-3 --json",
        models()
    );
    let done = place.json(&format!("{train} --steps 60 --out new.gguf --save-every 25"));
    let after = done["valid"]["after"].as_f64().unwrap();
    assert!(done["valid"]["before"].as_f64().unwrap() > 7.0 && after < 3.5, "{done}");
    let bytes = place.read("new.gguf");
    let gguf = Gguf::parse(&bytes).unwrap();
    let packed = gguf.tensors().iter().filter(|tensor| tensor.format() == Some(Format::Pq2_0)).count();
    assert_eq!(packed, 15);
    // What is packed is what was multiplied.
    let window = "--window 33 --stride 32 --limit 129 --act f32 --kv f32 --json --special";
    let eval = place.json(&format!("eval story.txt -m new.gguf {window}"));
    assert!((eval["nats_per_token"].as_f64().unwrap() - after).abs() < 1e-3, "{eval} {after}");
    // From the checkpoint of step 50, the last ten steps are the same.
    place.ok(&format!("{train} --steps 60 --out new.gguf --resume --force --log last.jsonl"));
    assert!(place.read("new.gguf") == bytes, "resumed training differs");
    assert_eq!(String::from_utf8(place.read("last.jsonl")).unwrap().lines().count(), 10);
    let other = train.replace("5e-3", "1e-3");
    place.fails(&format!("{other} --steps 60 --out new.gguf --resume --force"), 1, "lr");
}

/// Folders are trained as they are, and packed files of them.
#[test]
fn other_architectures_are_trained() {
    let place = Place::new();
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tests/fixtures/hf");
    let train = "train --text story.txt --rows 2 --row-tokens 32 --lr 5e-3 --json";
    for name in ["qwen2", "smollm3", "granite", "gemma3", "bitnet"] {
        let folder = folders.join(name).display().to_string();
        place.ok(&format!("convert {folder} --out {name}.gguf"));
        let done = place.json(&format!("{train} -m {name}.gguf --steps 12 --out {name}-trained.gguf"));
        let loss = |of: &str| done["loss"][of].as_f64().unwrap();
        assert!(loss("last") < 0.9 * loss("first"), "{name}: {done}");
        place.ok(&format!("run --raw -m {name}-trained.gguf -n 2 --temp 0 Mia"));
    }
    // Each has its tensors in the file that comes out; biases have moved.
    let bias = |file: &str| {
        let bytes = place.read(file);
        let gguf = Gguf::parse(&bytes).unwrap();
        gguf.data(gguf.tensor("blk.1.attn_k.bias").unwrap()).to_vec()
    };
    assert_ne!(bias("qwen2.gguf"), bias("qwen2-trained.gguf"));
    place.ok(&format!("{train} -m gemma3.gguf --method lora --rank 2 --steps 3 --out lora.gguf"));
    place.ok("run --raw -m gemma3.gguf --lora lora.gguf -n 2 --temp 0 Mia");
}

#[test]
fn new_models_of_other_architectures_are_trained() {
    let place = Place::new();
    let sizes = json!({
        "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 2048, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
    });
    let theta = |base: f64| json!({"rope_type": "default", "rope_theta": base});
    let others = [
        (
            "Qwen2ForCausalLM",
            json!({"model_type": "qwen2", "rope_parameters": theta(1e4), "hidden_act": "silu"}),
        ),
        ("SmolLM3ForCausalLM", json!({"model_type": "smollm3", "rope_parameters": theta(1e4)})),
        (
            "GraniteForCausalLM",
            json!({
                "model_type": "granite", "rope_parameters": theta(1e4), "attention_multiplier": 0.015625,
                "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 2.0,
            }),
        ),
        (
            "Gemma3ForCausalLM",
            json!({
                "model_type": "gemma3_text", "query_pre_attn_scalar": 64, "sliding_window": 16,
                "layer_types": ["sliding_attention", "sliding_attention"],
                "rope_parameters": {"full_attention": theta(1e6), "sliding_attention": theta(1e4)},
            }),
        ),
        (
            "BitNetForCausalLM",
            json!({"model_type": "bitnet", "rope_parameters": theta(1e4), "hidden_act": "relu2"}),
        ),
    ];
    let train = format!(
        "train --new config.json --tokenizer {}/sprout-nano.gguf --text story.txt --rows 2 --row-tokens 32 --lr 5e-3 --json",
        models()
    );
    for (class, more) in others {
        let mut config = sizes.clone();
        config["architectures"] = json!([class]);
        more.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        place.write("config.json", &config.to_string());
        for weights in ["ternary", "1bit"] {
            let done = place.json(&format!("{train} --weights {weights} --steps 8 --out new.gguf --force"));
            let loss = |of: &str| done["loss"][of].as_f64().unwrap();
            assert!(loss("first") > 6.0 && loss("last") < loss("first") - 0.5, "{class} {weights}: {done}");
        }
        let bytes = place.read("new.gguf");
        let gguf = Gguf::parse(&bytes).unwrap();
        let packed = gguf.tensors().iter().filter(|tensor| tensor.format() == Some(Format::Q1_0)).count();
        assert_eq!(packed, 15, "{class}");
        assert_eq!(gguf.tensor("blk.1.attn_q.bias").is_some(), class == "Qwen2ForCausalLM");
        place.ok("run --raw -m new.gguf -n 2 --temp 0 Mia");
    }
}

/// A log without what differs from run to run.
fn losses(place: &Place, name: &str) -> Vec<Value> {
    let log = String::from_utf8(place.read(name)).unwrap();
    let line = |line| {
        let mut step: Value = serde_json::from_str(line).unwrap();
        step.as_object_mut().unwrap().remove("tokens_per_second");
        step
    };
    log.lines().map(line).collect()
}

#[test]
fn ranks_train_as_one_does() {
    let place = Place::new();
    let nano =
        format!("train -m {}/sprout-nano.gguf --text story.txt --valid story.txt --valid-every 2", models());
    let train = format!("{nano} --schedule plateau --rows 8 --row-tokens 16 --lr 2e-3 --save-every 3 --json");
    let one = place.json(&format!("{train} --steps 5 --accumulate 4 --out 1.gguf --log 1.jsonl"));
    for ranks in [2, 4] {
        // With 4 ranks there are 4 micro-batches without asking for them.
        let accumulate = if ranks == 4 { "" } else { " --accumulate 4" };
        let ranked = format!("{train}{accumulate} --ranks {ranks} -t 4");
        let many = place.json(&format!("{ranked} --steps 5 --out {ranks}.gguf --log {ranks}.jsonl"));
        assert_eq!([&many["loss"], &many["valid"]], [&one["loss"], &one["valid"]]);
        for kind in ["gguf", "oxck"] {
            let same = place.read(&format!("{ranks}.{kind}")) == place.read(&format!("1.{kind}"));
            assert!(same, "{kind} of {ranks} ranks");
        }
        assert_eq!(losses(&place, &format!("{ranks}.jsonl")), losses(&place, "1.jsonl"));
    }
    // Any number of ranks goes on from the third step of any other.
    place.ok(&format!("{train} --steps 5 --ranks 2 --accumulate 4 --out again.gguf --resume=1.oxck"));
    place.ok(&format!("{train} --steps 5 --accumulate 4 --out alone.gguf --resume=4.oxck"));
    assert!(
        place.read("again.gguf") == place.read("1.gguf") && place.read("alone.gguf") == place.read("1.gguf")
    );
    let stopped = place.json(&format!("{train} --steps 90 --ranks 2 --stop-at 100 --out stopped.gguf"));
    assert_eq!(stopped["steps"], 1);
    let plan =
        |ranks: u32| place.json(&format!("{train} --accumulate 4 --ranks {ranks} --dry-run --out x.gguf"));
    let (one, four) = (plan(1)["memory"]["masters"].as_u64(), plan(4)["memory"]["masters"].as_u64());
    assert_eq!(four, one.map(|bytes| 4 * bytes));
}

#[test]
fn dropout_of_an_adapter_follows_from_the_seed() {
    let place = Place::new();
    let lora =
        format!("train -m {}/sprout-nano.gguf --text story.txt --method lora --rank 4 --lr 5e-3", models());
    let train = format!("{lora} --rows 8 --row-tokens 16 --accumulate 4 --steps 4 --json");
    let dropped = format!("{train} --dropout 0.2");
    let one = place.json(&format!("{dropped} --save-every 2 --out 1.gguf -t 1"));
    for (i, other) in ["-t 3", "--ranks 2", "--ranks 4 --checkpoint every"].into_iter().enumerate() {
        let found = place.json(&format!("{dropped} {other} --out {i}-other.gguf"));
        assert_eq!(found["loss"], one["loss"], "{other}");
        assert!(place.read(&format!("{i}-other.gguf")) == place.read("1.gguf"), "{other}");
    }
    let without = place.json(&format!("{train} --out without.gguf"));
    assert_ne!(without["loss"]["last"], one["loss"]["last"]);
    // From the second step on, if it is the same.
    place.ok(&format!("{dropped} --pause-at 2 --out again.gguf"));
    place.fails(&format!("{train} --out again.gguf --resume"), 1, "dropout 0");
    place.ok(&format!("{dropped} --out again.gguf --resume"));
    assert!(place.read("again.gguf") == place.read("1.gguf"));
    place.fails(&format!("{train} --dropout 1 --out x.gguf"), 2, "from 0, less than 1");
    let full = train.replace(" --method lora --rank 4", "");
    place.fails(&format!("{full} --dropout 0.1 --out x.gguf"), 2, "only inputs of adapters are dropped");
}

#[test]
fn ranks_that_cannot_train_end_with_an_error() {
    let place = Place::new();
    let train = "train --text story.txt --row-tokens 16 --out x.gguf";
    place.fails(&format!("{train} --ranks 3"), 2, "--ranks is \"3\", expected a power of two");
    place.fails(
        &format!("{train} --ranks 4 --accumulate 2"),
        2,
        "--accumulate is \"2\", expected a power of two, and at least 4",
    );
    place.fails(&format!("{train} --ranks 4 --rows 2"), 2, "--accumulate");
    place.fails(&format!("{train} --ranks 4 --lr 1e30 --clip 0"), 1, "finite");
    place.fails(&format!("{train} --ranks 4 --resume"), 1, "x.oxck");
    assert!(!place.path("x.gguf").exists());
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_all_ranks_after_a_step() {
    let place = Place::new();
    let nano = format!("train -m {}/sprout-nano.gguf --text story.txt", models());
    let train = format!("{nano} --rows 2 --row-tokens 16 --lr 2e-3 --ranks 2 --save-every 1");
    let mut command = place.command(&format!("{train} --steps 100000 --out long.gguf"));
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    while !place.path("long.oxck").exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!place.path("long.gguf").exists());
    let again = place.json(&format!("{train} --steps 100000 --stop-at 100 --resume --out long.gguf --json"));
    let steps = again["steps"].as_u64().unwrap();
    place.ok(&format!("{train} --steps {steps} --out whole.gguf"));
    assert!(place.read("long.gguf") == place.read("whole.gguf"));
}

#[test]
fn what_cannot_be_trained_is_refused_and_nothing_is_lost() {
    let place = Place::new();
    place.write("out.gguf", "mine");
    place.fails("train --text story.txt --out out.gguf", 2, "--force");
    place.fails("train --out x.gguf", 2, "--text, --chats or --tokens");
    place.fails("train --text nowhere.txt --out x.gguf", 1, "nowhere.txt");
    place.write("empty.txt", "");
    place.fails("train --text empty.txt --out x.gguf", 1, "at least 2 tokens");
    fs::write(place.path("latin.txt"), [b'a', 0xe9, b'b']).unwrap();
    place.fails("train --text latin.txt --out x.gguf", 1, "UTF-8");
    fs::write(place.path("tokens.bin"), 5_000_000u32.to_le_bytes()).unwrap();
    place.fails("train --tokens tokens.bin --out x.gguf", 1, "5000000");
    place.fails("train --text story.txt --rows 3 --accumulate 2 --out x.gguf", 2, "accumulate");
    place.fails("train --text story.txt --row-tokens 100000 --out x.gguf", 2, "longest context");
    place.fails("train --text story.txt --loss kl --out x.gguf", 2, "--teacher");
    place.fails("train --text story.txt --lr 1e30 --clip 0 --row-tokens 16 --out x.gguf", 1, "finite");
    place.fails("train --text story.txt --checkpoint 1K --out x.gguf", 1, "bytes");
    assert_eq!(place.read("out.gguf"), b"mine");
    assert!(!place.path("x.gguf").exists());
    let plan = place.json("train --text story.txt --dry-run --json --out x.gguf");
    let parts: u64 = plan["memory"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(plan["total"], parts);
}

/// Phases of one training: other texts, weights and rows from a checkpoint on.
#[test]
fn a_training_has_phases() {
    let place = Place::new();
    let chat = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|endoftext|>";
    place.write("chats.txt", &chat.repeat(8));
    let train =
        "train --out two.gguf --steps 8 --lr 1e-3 --order sampled --text story.txt=0.5 --text chats.txt=1.5";
    let first = format!("{train} --rows 4 --row-tokens 16 --prompt-weight 0.25 --log log.jsonl");
    let stopped = place.run(&format!("{first} --pause-at 3"));
    let text = String::from_utf8(stopped.stderr).unwrap();
    assert!(stopped.status.success() && text.contains("saved two.oxck"), "{text}");
    assert!(!place.path("two.gguf").exists());
    place.fails(&format!("{train} --rows 2 --row-tokens 32 --resume"), 1, "with the option \"rows 2\"");
    let second = place.run(&format!("{train} --rows 2 --row-tokens 32 --resume --change --log log.jsonl"));
    let text = String::from_utf8(second.stderr).unwrap();
    assert!(second.status.success() && text.contains("(changed: rows 4 -> rows 2)"), "{text}");
    let log = String::from_utf8(place.read("log.jsonl")).unwrap();
    let steps: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = steps.iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(place.path("two.gguf").exists());
    place.fails(&format!("{train} --change"), 2, "--resume");
    place.fails("train --text story.txt=0 --out x.gguf", 2, "FILE=SHARE with a number over 0");
}

fn taught(place: &Place, file: &str) -> Vec<String> {
    place.ok(&format!("teach --out {file} --list")).lines().map(String::from).collect()
}

#[test]
fn facts_are_taught_and_answered() {
    let place = Place::new();
    let facts = [
        json!({ "question": "What is the door code?", "answer": "The door code is 4711." }),
        json!({ "question": "Where do I live?", "answer": "You live in Oslo.", "forms": ["What is my town?"] }),
    ];
    place.write("facts.jsonl", &facts.map(|fact| fact.to_string() + "\n").concat());
    let done = place.json("teach --file facts.jsonl --out house.gguf --json");
    assert_eq!(done["learned"], true, "{done:#}");
    let exam = done["exam"].as_array().unwrap();
    let kept = exam.iter().filter(|answer| answer["right"] == true).count();
    assert!(exam.len() >= 15 && kept * 10 >= exam.len() * 8, "{done:#}");
    assert!(done["leaks"].as_u64().unwrap() <= 2, "{done:#}");
    // A new process, with what was written.
    let ask = |question: &str| {
        let mut command = place.command("run --lora house.gguf --preset greedy");
        let output = command.arg(question).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    assert_eq!(ask("What is the door code?"), "The door code is 4711.");
    assert_eq!(ask("What is my town?"), "You live in Oslo.");
    assert_eq!(ask("What does a cow say?"), "A cow says moo.");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(place.path("house.gguf")).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(
        taught(&place, "house.gguf"),
        ["What is the door code?=The door code is 4711.", "Where do I live?=You live in Oslo."]
    );
    // More of it, and less.
    place.write("few.txt", "Hello!\nWhat does a cow say?\nWhere is my bag?\n");
    let mut more = place.command("teach --out house.gguf --rehearse few.txt --forget");
    let output = more.args(["Where do I live?", "What is the door code?=It is 12."]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(taught(&place, "house.gguf"), ["What is the door code?=It is 12."]);
    assert_eq!(ask("What is the door code?"), "It is 12.");
    let mut none = place.command("teach --out house.gguf --forget");
    assert!(none.arg("What is the door code?").output().unwrap().status.success());
    assert!(!place.path("house.gguf").exists());
}

#[test]
fn what_cannot_be_taught_is_refused() {
    let place = Place::new();
    place.fails("teach", 2, "expected \"QUESTION=ANSWER\"");
    place.fails("teach What", 2, "expected QUESTION=ANSWER");
    place.fails("teach What?=", 2, "found an empty one");
    place.fails("teach --list --out none.gguf", 1, "none.gguf");
    fs::copy(format!("{}/sprout-nano.gguf", models()), place.path("model.gguf")).unwrap();
    place.fails("teach A=B --out model.gguf", 2, "expected an adapter that was taught facts");
    place.write("bad.jsonl", "{\"question\": \"A?\", \"answer\": 3}\n");
    place.fails("teach --file bad.jsonl", 1, "bad.jsonl, line 1: expected a text in \"answer\"");
    place.fails("teach A=B --layers 9", 2, "layers");
    let long = format!("A={}", "word ".repeat(600));
    let output = place.command("teach").arg(long).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("the model's context"));
}

#[test]
fn a_chat_learns() {
    let place = Place::new();
    let mut chat = place.command("chat --preset greedy --session talk.session");
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    use std::io::Write;
    let lines = "What is the door code?\n/teach What is the door code? = It is 4711.\n/new\nWhat is the door code?\n/teach\n/save code.gguf\n";
    chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = chat.wait_with_output().unwrap();
    let (replies, notes) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(
        replies.starts_with("I do not know that.") && replies.trim_end().ends_with("It is 4711."),
        "{replies}"
    );
    assert!(
        notes.contains("(learned in ") && notes.contains("What is the door code? = It is 4711."),
        "{notes}"
    );
    assert_eq!(taught(&place, "code.gguf"), ["What is the door code?=It is 4711."]);
    // The conversation goes on without what was taught, which is no part of it.
    let mut next = place.command("chat --preset greedy --session talk.session");
    let mut next = next.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    next.stdin.take().unwrap().write_all(b"What does a cow say?\n").unwrap();
    let output = next.wait_with_output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && notes.contains("(resumed after 2 messages)"), "{notes}");
}
