// Models by name, from a server in place of the hub: `npm run build -w wasm` first.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Engine, MODELS, ShohinError } from "shohin";
import { sum } from "./publish.mjs";

const FILE = await readFile(new URL("../../../models/sprout-nano.gguf", import.meta.url));
/** Of the file that these tests have in place of every model. */
const sha256 = sum(FILE);

describe("a model by name", () => {
  let server, hub;
  const asked = [];
  before(async () => {
    // Answers as the hub does: by sending the client to another address.
    server = createServer((request, response) => {
      asked.push(request.url);
      if (request.url === "/file") response.writeHead(200, { "Content-Length": FILE.length }).end(FILE);
      else response.writeHead(302, { Location: "/file" }).end();
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    hub = `http://127.0.0.1:${server.address().port}`;
  });
  after(() => server.close());

  const load = async (name, options) => {
    asked.length = 0;
    await (await Engine.load(name, { hub, threads: 1, sha256, ...options })).dispose();
    return asked.find((url) => url !== "/file");
  };

  test("is found on the hub", async () => {
    assert.equal(await load("bonsai-1.7b"), "/prism-ml/Bonsai-1.7B-gguf/resolve/main/Bonsai-1.7B-Q1_0.gguf");
    assert.equal(await load("Ternary-Bonsai-8B", { hub: new URL(`${hub}/`) }), "/prism-ml/Ternary-Bonsai-8B-gguf/resolve/main/Ternary-Bonsai-8B-Q2_0.gguf");
    assert.equal(await load("hf:you/yours/folder/model.gguf", { hub: `${hub}/mirror/` }), "/mirror/you/yours/resolve/main/folder/model.gguf");
    assert.equal(await load("hf:you/yours@refs%2Fpr%2F1/a model.gguf"), "/you/yours/resolve/refs%2Fpr%2F1/a%20model.gguf");
    for (const { name, repository, file, bytes } of MODELS) {
      assert.equal(await load(name), `/${repository}/resolve/main/${file}`);
      assert.ok(/^[a-z\d.-]+$/.test(name) && bytes > 1e8);
    }
    await assert.rejects(Engine.load("hf:you/yours/model-00001-of-00002.gguf", { hub, bytes: 5 }), { code: "argument" });
  });

  test("is refused if the hub has another file under that name, unless it is asked for as a file", async () => {
    const [{ name, repository, file }] = MODELS;
    await assert.rejects(load(name, { sha256: undefined }), (error) => error.code === "integrity" && error.message.includes(sha256));
    await load(`hf:${repository}/${file}`, { sha256: undefined });
    await load(name, { sha256: undefined, bytes: FILE.length });
  });

  test("is found on the hub that HF_ENDPOINT names", async () => {
    asked.length = 0;
    const script = `import { Engine } from "shohin"; console.log(await Engine.load("bonsai-4b", { threads: 1, sha256: "${sha256}" }).then((engine) => engine.dispose(), ({ message }) => message));`;
    const run = async (endpoint) => {
      const options = { cwd: fileURLToPath(new URL("./", import.meta.url)), env: { ...process.env, HF_ENDPOINT: endpoint } };
      return (await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", script], options)).stdout.trim();
    };
    assert.equal(await run("mirror.example"), "the hub is mirror.example, but must be an http or https address");
    assert.equal(await run(hub), "undefined");
    assert.equal(asked[0], "/prism-ml/Bonsai-4B-gguf/resolve/main/Bonsai-4B-Q1_0.gguf");
  });

  test("is refused if there is none", async () => {
    const refused = async (name, message, options) => {
      asked.length = 0;
      const error = await Engine.load(name, { hub, ...options }).catch((error) => error);
      assert.ok(error instanceof ShohinError && error.code === "argument" && message.test(error.message), `${name}: ${error}`);
      assert.deepEqual(asked, []);
    };
    for (const name of ["bonsai", "bonsai-1.8b", "gpt-4"]) await refused(name, /no model named .* there are bonsai-1\.7b, .*, ternary-bonsai-8b \(/);
    for (const name of ["hf:you", "hf:you/yours", "hf:you/yours/", "hf:you/yours@/model.gguf", "hf:/yours/model.gguf"]) await refused(name, /expected hf:owner\/repository\/file/);
    for (const hub of ["huggingface.co", "file:///models", 5]) await refused("bonsai-1.7b", /^hub is .* http or https/, { hub });
  });

  test("is still an address or a path if it looks like one", async () => {
    for (const name of ["sprout.gguf", "./bonsai-1.7b", "models/bonsai", "bonsai-1.7b.gguf"]) {
      await assert.rejects(Engine.load(name, { hub }), (error) => error.code === "read" && error.message.startsWith(name));
    }
  });
});
