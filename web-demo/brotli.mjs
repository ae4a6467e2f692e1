// Writes a copy compressed with brotli beside every file of the build that gets smaller by it, for servers that send such copies.
// Not beside the model: a GPU, ranges and the progress bar need the length that such a response hides.
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { brotliCompress, constants } from "node:zlib";

const DIST = fileURLToPath(new URL("dist/", import.meta.url));
/** A copy that is not smaller by this part of the file is not worth decompressing. */
const LEAST = 0.05;

const compress = promisify(brotliCompress);

async function write(path) {
  const content = await readFile(path);
  const params = { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY, [constants.BROTLI_PARAM_SIZE_HINT]: content.length };
  const copy = await compress(content, { params });
  if (copy.length > content.length * (1 - LEAST)) return [0, 0];
  await writeFile(`${path}.br`, copy);
  return [content.length, copy.length];
}

const entries = await readdir(DIST, { recursive: true, withFileTypes: true });
const written = await Promise.all(entries.filter((entry) => entry.isFile() && !/\.(br|gguf)$/.test(entry.name)).map((entry) => write(join(entry.parentPath, entry.name))));
const [from, to] = [0, 1].map((i) => written.reduce((sum, sizes) => sum + sizes[i], 0));
console.log(`brotli: ${(from / 1e6).toFixed(2)} MB are ${(to / 1e6).toFixed(2)} MB`);
