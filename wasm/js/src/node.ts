// The same engine in Node: on the calling thread, models also by file path.
import { open, readFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { ShohinError } from "./error.js";
import { host, MOST_THREADS } from "./host.js";
import { LocalConversation, LocalEngine } from "./local.js";
import { BEGIN, fetchPieces, SLICE, type Pieces } from "./source.js";

export * from "./local.js";
export { LocalConversation as Conversation, LocalEngine as Engine };

/** Nothing is kept in Node. */
export async function clearCache(): Promise<void> {}

/** Nothing is kept in Node. */
export async function listCache(): Promise<[]> {
  return [];
}

/** Nothing is kept in Node. */
export async function deleteCache(_url: string | URL): Promise<boolean> {
  return false;
}

host.cores = () => Math.min(availableParallelism(), MOST_THREADS);

const { module, teamModule } = host;
host.teamModule = async (simd) => readFile(teamModule(simd) as URL);
host.module = async (simd, given) => {
  const found = String(module(simd, given));
  return isOfTheNet(found) ? found : readFile(pathOf(found));
};

host.open = async (name, options, brief) => {
  return isOfTheNet(name) ? fetchPieces(name, options, brief) : filePieces(pathOf(name), brief);
};

function isOfTheNet(name: string): boolean {
  return /^(https?|data|blob):/.test(name);
}

function pathOf(name: string): string {
  return name.startsWith("file:") ? fileURLToPath(name) : name;
}

/** As `blobPieces`. */
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
      let buffer = new Uint8Array(brief ? BEGIN : SLICE);
      try {
        for (;;) {
          const { bytesRead } = await file.read(buffer);
          if (bytesRead === 0) return;
          yield buffer.subarray(0, bytesRead);
          if (buffer.length < SLICE) buffer = new Uint8Array(2 * buffer.length);
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
