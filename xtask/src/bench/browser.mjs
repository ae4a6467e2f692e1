// browser.mjs ENGINE PACKAGE MODEL PROMPT REPLY [THREADS]: measures an engine in a page of its own, on the CPU: `shohin`, `wllama`, or
// `transformers`, whose MODEL is a directory of as_onnx.py. Prints, each with seconds on the clock and of the page's process with its workers:
// `prefill TOKENS` and `decode TOKENS`; `first 1`, from nothing to the first token of a model that the browser has kept; and `payload BYTES
// GZIPPED`, what else a page fetches for that. `cannot REASON` if the engine refuses the model. With a PROMPT of 0 it only loads. CHROME is
// the browser's path.
import { createReadStream, readFileSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";
import { launch, longestTask, serve } from "../../../wasm/js/test/chromium.mjs";

const [engine, directory, model, prompt, reply, threads = "1"] = process.argv.slice(2);

/** Defines `load(url)` and `ask(text, tokens)`, which returns how many prompt tokens were computed and how many were written. */
const PAGES = {
  shohin: `
    import { Engine } from "/index.js";
    let engine;
    window.load = async (url) => { engine = await Engine.load(url, { context: 512, threads: ${threads}, cache: true }); };
    window.ask = async (text, maxTokens) => {
      let finish;
      for await (const chunk of engine.generate(text, { maxTokens, temperature: 0 })) finish = chunk.finish ?? finish;
      if (engine.info.threads !== ${threads}) throw new Error("shohin runs " + engine.info.threads + " threads");
      const { promptTokens, cachedTokens, completionTokens } = finish.usage;
      return { computed: promptTokens - cachedTokens, written: completionTokens };
    };`,
  wllama: `
    import { Wllama } from "/index.js";
    const engine = new Wllama({ default: "/wasm/wllama.wasm" }, { suppressNativeLog: false });
    window.load = async (url) => {
      await engine.loadModelFromUrl(new URL(url, location.href).href, { n_ctx: 512, n_threads: ${threads}, n_gpu_layers: 0 });
      if (engine.isMultithread() !== ${threads > 1}) throw new Error("wllama runs another number of threads");
    };
    window.ask = async (prompt, max_tokens) => {
      // A model with random weights says bytes that are no text, on which wllama fails; it says "0" instead.
      const logit_bias = { 15: 1e6 };
      const said = await engine.createCompletion({ prompt, max_tokens, temperature: 0, logit_bias, cache_prompt: true });
      return { computed: said.timings.prompt_n, written: said.timings.predicted_n };
    };`,
  transformers: `
    import { AutoModelForCausalLM, env, Tensor } from "/@huggingface/transformers/dist/transformers.web.js";
    Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/models/" });
    Object.assign(env.backends.onnx.wasm, { wasmPaths: "/onnxruntime-web/dist/", numThreads: ${threads} });
    let model, ids;
    window.load = async () => {
      ids = await (await fetch("/models/model/digits.json")).json();
      model = await AutoModelForCausalLM.from_pretrained("model", { dtype: "q4", device: "wasm" });
    };
    window.ask = async (text, max_new_tokens) => {
      const tensor = (data) => new Tensor("int64", BigInt64Array.from(data, BigInt), [1, data.length]);
      const prompt = [...text].map((digit) => ids[digit]);
      const said = await model.generate({ input_ids: tensor(prompt), attention_mask: tensor(prompt.map(() => 1)), max_new_tokens, do_sample: false });
      return { computed: prompt.length, written: said.dims[1] - prompt.length };
    };`,
};
const IMPORTS = { "onnxruntime-common": "/onnxruntime-common/dist/esm/index.js", "onnxruntime-web/webgpu": "/onnxruntime-web/dist/ort.webgpu.bundle.min.mjs" };

/** Tokenizers of this family make one token of each digit. */
const digits = (count, first) => Array.from({ length: count }, (_, i) => (first + i * 7) % 10).join("");

const isolation = threads > 1 ? { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" } : {};
const html = `<!doctype html><script type="importmap">${JSON.stringify({ imports: IMPORTS })}</script><script type="module">${PAGES[engine]}window.ready = true;</script>`;
const send = (file) => (request, response) => {
  const { size } = statSync(file);
  const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "") ?? [];
  const [start, end] = from === undefined ? [0, size - 1] : [Number(from), Math.min(Number(to || size - 1), size - 1)];
  const range = from === undefined ? {} : { "Content-Range": `bytes ${start}-${end}/${size}` };
  response.writeHead(from === undefined ? 200 : 206, { ...isolation, ...range, "Content-Length": end + 1 - start, ETag: '"1"' });
  if (request.method === "HEAD") return response.end();
  createReadStream(file, { start, end }).pipe(response);
};
const parts = ["config.json", "generation_config.json", "digits.json", "onnx/model_q4.onnx", "onnx/model_q4.onnx_data"];
const routes =
  engine === "transformers"
    ? Object.fromEntries(parts.map((name) => [`/models/model/${name}`, send(join(model, name))]))
    : { "/model.gguf": send(model) };
const server = await serve(
  pathToFileURL(`${directory}/`),
  { ...routes, "/favicon.ico": (_, response) => response.writeHead(204).end(), "/page": (_, response) => response.writeHead(200, { ...isolation, "Content-Type": "text/html" }).end(html) },
  isolation,
);
const browser = await launch();
try {
  const context = await browser.newContext();
  let page;
  /** What the page fetches besides the model. */
  let fetched = new Set();
  const open = async () => {
    await page?.close();
    page = await context.newPage();
    page.setDefaultTimeout(600_000);
    fetched = new Set();
    context.removeAllListeners("request");
    context.on("request", (request) => {
      const { origin, pathname } = new URL(request.url());
      if (request.url().startsWith(`${origin}/`)) fetched.add(pathname);
    });
    page.on("pageerror", (error) => console.error(error));
    page.on("console", (message) => message.type() === "error" && console.error(message.text()));
    await page.goto(`${server.url}page`);
    await page.waitForFunction("window.ready");
  };
  await open();
  const home = engine === "transformers" ? join(directory, "@huggingface/transformers") : dirname(directory);
  const { version } = JSON.parse(readFileSync(join(home, "package.json"), "utf8"));
  console.log(`version ${{ transformers: "transformers.js" }[engine] ?? engine} ${version}, Chromium ${browser.version()}`);

  const system = await browser.newBrowserCDPSession();
  /** Processor seconds of all renderers; there is one page. */
  const processor = async () => {
    const { processInfo } = await system.send("SystemInfo.getProcessInfo");
    return processInfo.filter((process) => process.type === "renderer").reduce((sum, process) => sum + process.cpuTime, 0);
  };
  const ask = (text, tokens) => page.evaluate(([text, tokens]) => window.ask(text, tokens), [text, tokens]);
  const measure = async (work) => {
    const [wall, cpu] = [performance.now(), await processor()];
    const done = await work();
    return { ...done, wall: (performance.now() - wall) / 1e3, cpu: (await processor()) - cpu };
  };

  const load = () => page.evaluate(() => window.load("/model.gguf").then(() => "", String));
  let refused = await load();
  // Compiled by then what is compiled when it has run for a while; and wllama finds some files unreadable only here.
  refused ||= await ask(digits(8, 5), 3).then(() => "", String);
  if (refused) {
    console.log(`cannot ${refused.split("\n")[0].replace("Error: page.evaluate: ", "")}`);
  } else if (Number(prompt) > 0) {
    const text = digits(Number(prompt), 1);
    const read = await measure(() => ask(text, 1));
    console.log(`prefill ${read.computed} ${read.wall} ${read.cpu}`);
    const wrote = await measure(() => ask(text, Number(reply) + 1));
    // The prompt is remembered but for its last token, so all of this is one token at a time; transformers.js computes it again.
    const again = wrote.computed === read.computed ? read : { computed: 0, written: 1, wall: 0, cpu: 0 };
    const tokens = wrote.computed - again.computed + wrote.written - 1;
    console.log(`decode ${tokens} ${wrote.wall - again.wall} ${wrote.cpu - again.cpu}`);

    const { task } = await longestTask(browser, page, () => ask(digits(16, 2), 9));
    console.log(`main ${task}`);

    // As when the page is opened again: the browser has its files and the model's.
    await open();
    const first = await measure(async () => {
      const refused = await load();
      if (refused) throw new Error(refused);
      return ask(digits(8, 3), 1);
    });
    console.log(`first 1 ${first.wall} ${first.cpu}`);
    const files = [...fetched].filter((path) => path !== "/page" && !/model|favicon/.test(path)).map((path) => readFileSync(join(directory, path)));
    const sum = (sizes) => sizes.reduce((a, b) => a + b, 0);
    console.log(`payload ${sum(files.map((file) => file.length))} ${sum(files.map((file) => gzipSync(file).length))}`);
  }
} finally {
  await browser.close();
  await server.close();
}
