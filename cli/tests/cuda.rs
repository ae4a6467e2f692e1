//! The program on NVIDIA GPUs, one and several: over the libraries of `cuda-host/shim/` in the places of CUDA's and NCCL's, which
//! compute on a CPU.
#![cfg(all(feature = "cuda", target_os = "linux"))]

#[path = "../../cuda-host/tests/shim/build.rs"]
mod build;

use shohin_core::Gguf;
use shohin_tests::lora::Adapter;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");

const GREEDY: [&str; 4] = ["--preset", "greedy", "--max-tokens", "4"];

/// A folder with the libraries; without NCCL's if it is left out.
fn libraries(with_nccl: bool) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (source, name) in [("driver.cpp", "libcuda.so"), ("nccl.cpp", "libnccl.so.2")] {
        if source == "driver.cpp" || with_nccl {
            symlink(build::build(source, name), folder.path().join(name)).unwrap();
        }
    }
    folder
}

/// The program with a GPU, which writes the most likely tokens.
fn command(libraries: &Path, args: &[&str]) -> Command {
    let mut command = program(libraries, args);
    command.args(GREEDY);
    command
}

/// The program with a GPU.
fn program(libraries: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
    command.args(args).args(["-m", MODEL]).env("LD_LIBRARY_PATH", libraries);
    command.env("SHOHIN_WEIGHT_CACHE", "none").env_remove("SHOHIN_DEVICE");
    command
}

/// Runs the program on the GPU, with lines as its input.
fn shohin(libraries: &Path, args: &[&str], input: &str) -> Output {
    let mut command = command(libraries, args);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Runs that fail do not read it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const CUDA: [&str; 2] = ["--device", "cuda"];

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

#[test]
fn cuda_ranks_say_what_one_gpu_says() {
    let folder = libraries(true);
    let ask = with(&["run", "Hi"], &CUDA);
    let want = stdout(shohin(folder.path(), &ask, ""));
    for way in ["tensor:2", "pipeline:3"] {
        assert_eq!(stdout(shohin(folder.path(), &with(&ask, &["--split", way]), "")), want, "{way}");
    }
}

#[test]
fn cuda_adapters_say_what_the_cpu_says() {
    let folder = libraries(false);
    let model = std::fs::read(MODEL).unwrap();
    let adapter = Adapter::random(&Gguf::parse(&model).unwrap(), &["blk."], 4, 0.1, 1);
    let lora = folder.path().join("lora.gguf");
    std::fs::write(&lora, adapter.to_vec()).unwrap();
    let exact = ["run", "Hi", "--act", "f32", "--kv", "f32"];
    let say = |more: &[&str]| stdout(shohin(folder.path(), &with(&exact, more), ""));
    let lora = ["--lora", lora.to_str().unwrap()];
    let want = say(&with(&lora, &["--device", "cpu"]));
    assert_eq!(say(&with(&lora, &CUDA)), want);
    assert_ne!(say(&CUDA), want);
}

/// A file of a conversation, whose keys and values are those of a model that is not split, goes on with other ranks.
#[test]
fn cuda_sessions_go_on_with_other_ranks() {
    let folder = libraries(true);
    let session = |name| folder.path().join(name).to_str().unwrap().to_owned();
    let (one, split) = (session("one"), session("split"));
    let say = |text: &str, file: &str, more: &[&str]| {
        let args = [&["chat", "--session", file], &CUDA[..], more].concat();
        stdout(shohin(folder.path(), &args, text))
    };
    let want = [say("Hi\n", &one, &[]), say("Why?\n", &one, &[])];
    let got =
        [say("Hi\n", &split, &["--split", "tensor:2"]), say("Why?\n", &split, &["--split", "pipeline:2"])];
    assert_eq!(got, want);
    assert_eq!(std::fs::read(one).unwrap(), std::fs::read(split).unwrap());
}

/// What the program remarks on standard error; Mesa, which looks for GPUs too, complains there.
fn remarks(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.lines().filter(|line| line.starts_with('(')).map(String::from).collect()
}

/// The default choice: a line says which device it is.
#[test]
fn cuda_as_the_automatic_choice_is_one_line() {
    let (folder, cache) = (libraries(false), tempfile::tempdir().unwrap());
    let ask = ["run", "Hi", "--weight-cache", cache.path().to_str().unwrap()];
    let first = shohin(folder.path(), &ask, "");
    let said = remarks(&first);
    assert!(said.len() == 1 && said[0].starts_with("(on the CPU: CPU as GPU 0 is slower: "), "{said:?}");
    let want = stdout(first);
    // As if it had been faster: the numbers of the CPU and of the device change places.
    let measured = cache.path().join("measured-devices");
    let swapped: String = std::fs::read_to_string(&measured)
        .unwrap()
        .lines()
        .map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [key, cpu, device] => format!("{key} {device} {cpu}\n"),
            _ => panic!("{line}"),
        })
        .collect();
    std::fs::write(measured, swapped).unwrap();
    let second = shohin(folder.path(), &ask, "");
    assert_eq!(remarks(&second), ["(on CPU as GPU 0)"]);
    assert_eq!(stdout(second), want);
    // Who names the device knows it.
    let named = shohin(folder.path(), &with(&ask, &CUDA), "");
    assert_eq!(String::from_utf8_lossy(&named.stderr), "");
}

/// A driver that compiles the kernels, once it has taken a second, and only then.
#[test]
fn cuda_kernels_that_are_compiled_are_one_line() {
    let folder = libraries(false);
    let ask = with(&["run", "Hi", "--json"], &CUDA);
    let run = |milliseconds: &str| {
        let mut command = command(folder.path(), &ask);
        command.env("SHOHIN_SHIM_COMPILES", milliseconds).stdin(Stdio::null()).output().unwrap()
    };
    let (kept, compiled) = (run("10"), run("1500"));
    assert_eq!(String::from_utf8_lossy(&kept.stderr), "");
    let said = String::from_utf8(compiled.stderr.clone()).unwrap();
    assert!(
        said.starts_with("(the NVIDIA driver compiles the kernels; ") && said.lines().count() == 1,
        "{said}"
    );
    let text = |output| {
        let reply: serde_json::Value = serde_json::from_str(&stdout(output)).unwrap();
        reply["text"].clone()
    };
    assert_eq!(text(compiled), text(kept));
}

#[test]
fn cuda_splits_that_cannot_be_are_refused_in_one_line() {
    let (all, without) = (libraries(true), libraries(false));
    for (folder, device, way, expected) in [
        (&all, "cuda", "tensor:8", "the model is split among 8 GPUs, found 4"),
        (&all, "cuda", "pipeline:4", "at most one per block of the model"),
        (&all, "cuda:1", "tensor:2", "expected the device cuda, whose rank i is on GPU i"),
        (&all, "metal", "tensor:2", "expected a model on the CPU or on NVIDIA GPUs"),
        (&without, "cuda", "tensor:2", "needs NCCL 2.9 or newer (libnccl.so.2), found none; install"),
    ] {
        let output = shohin(folder.path(), &["run", "Hi", "--device", device, "--split", way], "");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{message}");
        assert!(message.contains(expected) && message.trim().lines().count() == 1, "{message}");
    }
}

/// A server, which is ended with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A prompt of more rows than a step on a CPU has, beside another reply.
#[test]
fn cuda_serves_long_prompts_beside_other_replies() {
    let folder = libraries(false);
    let long = "Why? ".repeat(60);
    let want = ["Hi", &long].map(|text| stdout(shohin(folder.path(), &with(&["run", text], &CUDA), "")));
    let mut server = program(folder.path(), &with(&["serve", "--port", "0"], &CUDA));
    let mut server = Server(server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let said = BufReader::new(server.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut address =
        said.filter_map(|line| Some(line.split_once("http://")?.1.split_once("/v1")?.0.to_owned()));
    let url = format!("http://{}/v1/chat/completions", address.next().unwrap());
    let ask = |text: &str| {
        let body = serde_json::json!({
            "messages": [{ "role": "user", "content": text }], "temperature": 0, "max_tokens": 4,
        });
        let answer = ureq::post(&url).send(body.to_string()).unwrap().body_mut().read_to_string().unwrap();
        let reply: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert!(text == "Hi" || reply["usage"]["prompt_tokens"].as_u64().unwrap() > 64, "{reply}");
        reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let got = std::thread::scope(|scope| {
        ["Hi", &long].map(|text| scope.spawn(move || ask(text))).map(|reply| reply.join().unwrap())
    });
    assert_eq!(got, want.map(|text| text.trim().to_owned()));
}
