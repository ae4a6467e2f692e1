import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin } from "vite";

const MODEL = process.env["SHOHIN_MODEL"] ?? fileURLToPath(new URL("../models/sprout.gguf", import.meta.url));

/** Serves the embedded model beside the page, and puts it into the build. */
function model(): Plugin {
  return {
    name: "model",
    configureServer(server) {
      server.middlewares.use("/sprout.gguf", async (_request, response) => {
        response.setHeader("Content-Type", "application/octet-stream");
        response.end(await readFile(MODEL));
      });
    },
    async generateBundle() {
      if (!existsSync(MODEL)) this.error(`${MODEL} is missing; SHOHIN_MODEL can name another GGUF file`);
      this.emitFile({ type: "asset", fileName: "sprout.gguf", source: await readFile(MODEL) });
    },
  };
}

/**
 * What the built page may do. Models may come from anywhere over TLS, or from this machine; everything else only from
 * the page's own origin. (The development server needs more, so it goes without.)
 */
const POLICY = [
  "default-src 'none'",
  "script-src 'self' 'wasm-unsafe-eval'",
  "worker-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self' https: http://localhost:* http://127.0.0.1:*",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");

function policy(): Plugin {
  return {
    name: "content-security-policy",
    transformIndexHtml: {
      order: "post",
      handler: (html, context) =>
        html.replace("<!-- policy -->", context.server ? "" : `<meta http-equiv="Content-Security-Policy" content="${POLICY}" />`),
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [model(), policy()],
  build: { target: "es2022", cssTarget: ["chrome123", "firefox120", "safari17.5"], assetsInlineLimit: 0, modulePreload: false },
  worker: { format: "es" },
  // Pre-bundling would lose the package's worker and WebAssembly file.
  optimizeDeps: { exclude: ["shohin"] },
});
