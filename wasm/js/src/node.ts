// The package in Node: on the calling thread, models also by file path.
import { open, readFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import { cacheArguments, checkAddress } from "./api/arguments.js";
import { ShohinError } from "./api/errors.js";
import type { CacheOptions } from "./api/options.js";
import { downloadPieces } from "./load/download.js";
import { filesWithoutCopies } from "./load/files.js";
import { hub } from "./load/names.js";
import type { Pieces } from "./load/pieces.js";
import { FIRST_READ_SIZE, READ_SIZE } from "./load/source.js";
import { host, MAX_THREADS } from "./wasm/host.js";
import { THREAD } from "./wasm/start-thread.js";

export * from "./local.js";

/** Node keeps no copies. */
export async function clearCache(): Promise<void> {}

/** Node keeps no copies. */
export async function listCache(url?: string | URL, options: CacheOptions = {}): Promise<[]> {
  cacheArguments(options);
  if (url !== undefined) checkAddress(url);
  return [];
}

/** Node keeps no copies. */
export async function deleteCache(url: string | URL, options: CacheOptions = {}): Promise<boolean> {
  cacheArguments(options);
  checkAddress(url);
  return false;
}

hub.address = process.env["HF_ENDPOINT"] || hub.address;

host.cores = () => Math.min(availableParallelism(), MAX_THREADS);

const { module, threadsModule, trainModule } = host;
host.trainModule = async () => readFile(trainModule() as URL);
host.threadsModule = async (simd) => readFile(threadsModule(simd) as URL);
host.module = async (simd, given) => {
  const found = String(module(simd, given));
  return isUrl(found) ? found : readFile(pathOf(found));
};

host.startThread = (script, message) => {
  const worker = new Worker(script, { workerData: THREAD });
  const ready = new Promise<boolean>((resolve, reject) => {
    worker.once("message", (holds: boolean) => {
      worker.unref(); // a program may end while its threads sleep
      resolve(holds);
    });
    worker.once("error", reject);
  });
  worker.postMessage(message);
  return { ready, terminate: () => worker.terminate() };
};

host.files = (options) =>
  filesWithoutCopies(options, async (name, brief) => (isUrl(name) ? downloadPieces(name, options, undefined, brief) : filePieces(pathOf(name), brief)));

function isUrl(name: string): boolean {
  return /^(https?|data|blob):/.test(name);
}

function pathOf(name: string): string {
  return name.startsWith("file:") ? fileURLToPath(name) : name;
}

/** Reads a file in growing slices, from small ones on if `brief`. */
async function filePieces(path: string, brief: boolean): Promise<Pieces> {
  const fail = (cause: unknown) =>
    new ShohinError("read", `${path} could not be read: ${(cause as Error).message}`, { cause });
  const file = await open(path).catch((cause: unknown) => {
    throw fail(cause);
  });
  const { size } = await file.stat().catch(async (cause: unknown) => {
    await file.close();
    throw fail(cause);
  });
  return {
    stage: "read",
    total: size,
    pieces: (async function* () {
      let buffer = new Uint8Array(brief ? FIRST_READ_SIZE : READ_SIZE);
      try {
        for (;;) {
          const { bytesRead } = await file.read(buffer);
          if (bytesRead === 0) return;
          yield buffer.subarray(0, bytesRead);
          if (buffer.length < READ_SIZE) buffer = new Uint8Array(2 * buffer.length);
        }
      } catch (cause) {
        throw fail(cause);
      } finally {
        await file.close();
      }
    })(),
    close: () => file.close(),
  };
}
