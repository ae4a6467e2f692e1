import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin } from "vite";
import { RELAXED } from "../wasm/js/src/wasm/simd.js";

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
 * What the built page may do, besides running the script in it. Models may come from anywhere over TLS, or from this
 * machine; everything else only from the page's own origin. (The development server needs more, so it goes without.)
 */
const policyWith = (scripts: readonly string[]) => [
  "default-src 'none'",
  ["script-src 'self' 'wasm-unsafe-eval'", ...scripts.map((script) => `'sha256-${createHash("sha256").update(script).digest("base64")}'`)].join(" "),
  "worker-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "manifest-src 'self'",
  "font-src 'self'",
  "connect-src 'self' https: http://localhost:* http://127.0.0.1:*",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");

function policy(): Plugin {
  return {
    name: "content-security-policy",
    transformIndexHtml: {
      order: "post",
      handler: (html, context) => {
        const scripts = new Set([...html.matchAll(/<script>([^]*?)<\/script>/g)].map(([, script = ""]) => script));
        return html.replace("<!-- policy -->", context.server ? "" : `<meta http-equiv="Content-Security-Policy" content="${policyWith([...scripts])}" />`);
      },
    },
  };
}

/**
 * Puts the style sheet before the inline script, for which the parser then waits: else the browser lays out the page once without it.
 * Puts the page's script back to the end of the body: it runs as soon as it is there, in a task of its own, and finds all elements. With
 * `defer` the end of the document and its layout would belong to the same task. After it come the parts, to be fetched at once and
 * run one after the other; the largest that not every visit needs are left out.
 */
function order(): Plugin {
  return {
    name: "order",
    apply: "build",
    transformIndexHtml: {
      order: "post",
      handler: (html, { bundle = {} }) => {
        const parts = Object.keys(bundle).filter((file) => /\.js$/.test(file) && !html.includes(file) && !/\/(formula|highlight|train|worker|threads|webgpu)-/.test(file));
        const preloads = parts.map((file) => `<link rel="modulepreload" fetchpriority="low" crossorigin href="./${file}">\n`).join("");
        const [script = ""] = /<script type="module"[^>]*><\/script>\n?/.exec(html) ?? [];
        const [style = ""] = /<link rel="stylesheet"[^>]*>\n?/.exec(html) ?? [];
        return html
          .replace(style, "")
          .replace("<script>", `${style}<script>`)
          .replace(script, "")
          .replace("</body>", `${script.replace("<script", "<script async")}${preloads}</body>`);
      },
    },
  };
}

/** The address the page is published at. Most sites that show a picture beside a link need its whole address. */
const SITE = process.env["SHOHIN_SITE"];

function preview(): Plugin {
  return {
    name: "preview",
    transformIndexHtml: (html) =>
      SITE === undefined
        ? html
        : html
            .replace('content="./preview.png"', `content="${new URL("preview.png", SITE).href}"`)
            .replace('<meta property="og:type"', `<meta property="og:url" content="${new URL(SITE).href}" />\n    $&`),
  };
}

/** Leaves only one format of KaTeX's fonts, which all browsers that the page is for have. */
function fonts(): Plugin {
  return {
    name: "fonts",
    enforce: "pre",
    transform: { filter: { id: /katex.*\.css$/ }, handler: (css) => css.replace(/,url\([^)]+\.(?:woff|ttf)\) format\("\w+"\)/g, "") },
  };
}

/** With these headers the engine may use threads; without them it does with one. */
const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

/** Writes the service worker with the list of the files of the build. */
function offline(): Plugin {
  return {
    name: "offline",
    apply: "build",
    async writeBundle({ dir = "dist" }) {
      const entries = await readdir(dir, { recursive: true, withFileTypes: true });
      const files = entries
        // The others are not for the page itself; whoever installs it fetches an icon then.
        .filter((entry) => entry.isFile() && !/\.png$|^sw\.js$|^licenses\.md$/.test(entry.name))
        .map((entry) => relative(dir, join(entry.parentPath, entry.name)).split(sep).join("/"))
        .sort();
      const version = createHash("sha256");
      const sums: Record<string, string> = {};
      for (const file of files) {
        const content = await readFile(join(dir, file));
        version.update(file).update(content);
        // The page itself is asked for as a directory.
        if (!file.startsWith("assets/")) sums[file === "index.html" ? "./" : file] = createHash("sha256").update(content).digest("hex");
      }
      const source = await readFile(new URL("src/offline.js", import.meta.url), "utf8");
      const worker = source
        .replace('["@relaxed@"]', JSON.stringify(RELAXED))
        .replace('"@version@"', JSON.stringify(version.digest("hex").slice(0, 16)))
        .replace('["@assets@"]', JSON.stringify(files.filter((file) => file.startsWith("assets/"))))
        .replace('{ "@path@": "@sum@" }', JSON.stringify(sums));
      await writeFile(join(dir, "sw.js"), worker);
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [model(), fonts(), policy(), order(), preview(), offline()],
  build: { target: "es2022", cssTarget: ["chrome123", "firefox125", "safari17.5"], assetsInlineLimit: 0, modulePreload: false, license: { fileName: "licenses.md" } },
  worker: { format: "es" },
  server: { headers: ISOLATED },
  preview: { headers: ISOLATED },
});
