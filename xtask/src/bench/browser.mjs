// browser.mjs shohin|wllama PACKAGE MODEL.gguf PROMPT REPLY: measures one engine in a page of its own, one thread, on the CPU.
// Prints `prefill TOKENS SECONDS SECONDS` and the same for decode: on the clock, and of the page's process with its workers.
// `cannot REASON` if the engine refuses the model. With a PROMPT of 0 it only loads. CHROME is the browser's path.
import { createReadStream, readFileSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { launch, serve } from "../../../wasm/js/test/chromium.mjs";

const [engine, directory, model, prompt, reply] = process.argv.slice(2);

/** Defines `load(url)` and `ask(text, tokens)`, which returns how many prompt tokens were computed and how many were written. */
const PAGES = {
  shohin: `
    import { Engine } from "/index.js";
    let engine;
    window.load = async (url) => { engine = await Engine.load(url, { context: 512 }); };
    window.ask = async (text, maxTokens) => {
      let finish;
      for await (const chunk of engine.generate(text, { maxTokens, temperature: 0 })) finish = chunk.finish ?? finish;
      const { promptTokens, cachedTokens, completionTokens } = finish.usage;
      return { computed: promptTokens - cachedTokens, written: completionTokens };
    };`,
  wllama: `
    import { Wllama } from "/index.js";
    const engine = new Wllama({ default: "/wasm/wllama.wasm" }, { suppressNativeLog: false });
    window.load = async (url) => {
      const blob = await (await fetch(url)).blob();
      await engine.loadModel([blob], { n_ctx: 512, n_threads: 1, n_gpu_layers: 0 });
      if (engine.isMultithread()) throw new Error("wllama runs several threads");
    };
    window.ask = async (prompt, max_tokens) => {
      // A model with random weights says bytes that are no text, on which wllama fails; it says "0" instead.
      const logit_bias = { 15: 1e6 };
      const said = await engine.createCompletion({ prompt, max_tokens, temperature: 0, logit_bias, cache_prompt: true });
      return { computed: said.timings.prompt_n, written: said.timings.predicted_n };
    };`,
};

/** Tokenizers of this family make one token of each digit. */
const digits = (count, first) => Array.from({ length: count }, (_, i) => (first + i * 7) % 10).join("");

const server = await serve(pathToFileURL(`${directory}/`), {
  "/page": (_, response) =>
    response.writeHead(200, { "Content-Type": "text/html" }).end(`<!doctype html><script type="module">${PAGES[engine]}window.ready = true;</script>`),
  "/model.gguf": (_, response) => {
    response.writeHead(200, { "Content-Length": statSync(model).size });
    createReadStream(model).pipe(response);
  },
});
const browser = await launch();
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(600_000);
  await page.goto(`${server.url}page`);
  await page.waitForFunction("window.ready");
  const { version } = JSON.parse(readFileSync(join(dirname(directory), "package.json"), "utf8"));
  console.log(`version ${engine} ${version}, Chromium ${browser.version()}`);

  const system = await browser.newBrowserCDPSession();
  /** Processor seconds of all renderers; there is one page. */
  const processor = async () => {
    const { processInfo } = await system.send("SystemInfo.getProcessInfo");
    return processInfo.filter((process) => process.type === "renderer").reduce((sum, process) => sum + process.cpuTime, 0);
  };
  const ask = (text, tokens) => page.evaluate(([text, tokens]) => window.ask(text, tokens), [text, tokens]);
  const measure = async (text, tokens) => {
    const [wall, cpu] = [performance.now(), await processor()];
    const done = await ask(text, tokens);
    return { ...done, wall: (performance.now() - wall) / 1e3, cpu: (await processor()) - cpu };
  };

  let refused = await page.evaluate(() => window.load("/model.gguf").then(() => "", String));
  // Compiled by then what is compiled when it has run for a while; and wllama finds some files unreadable only here.
  refused ||= await ask(digits(8, 5), 3).then(() => "", String);
  if (refused) {
    console.log(`cannot ${refused.split("\n")[0].replace("Error: page.evaluate: ", "")}`);
  } else if (Number(prompt) > 0) {
    const text = digits(Number(prompt), 1);
    const read = await measure(text, 1);
    console.log(`prefill ${read.computed} ${read.wall} ${read.cpu}`);
    // The prompt is remembered but for its last token, so all of this is one token at a time.
    const wrote = await measure(text, Number(reply) + 1);
    console.log(`decode ${wrote.computed + wrote.written - 1} ${wrote.wall} ${wrote.cpu}`);
  }
} finally {
  await browser.close();
  await server.close();
}
