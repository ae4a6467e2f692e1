// Runs a LocalEngine for a page. One worker holds one engine; terminating the worker frees all its memory.
import type { Chunk, Progress } from "./api.js";
import { abortError, blamedBy, ShohinError, toError, type EngineErrorCode, type ErrorCode, type HostErrorCode } from "./error.js";
import { deleteCopy, deleteOutdated, keptPieces } from "./cache.js";
import { host } from "./host.js";
import { LocalEngine, type LocalConversation } from "./local.js";
import { partsOf } from "./parts.js";
import { fetchPieces } from "./source.js";
import type { Answer, FromWorker, LoadRequest, Request, ToWorker } from "./protocol.js";

/** The files of the model by their URLs, and whether each is read from a copy that is whole. */
const fromCopy = new Map<string, boolean>();

host.open = async (url, options, brief) => {
  if (!options.cache) return fetchPieces(url, options, brief);
  const pieces = await keptPieces(url, options, options.cache === "require", brief);
  fromCopy.set(url, pieces.stage === "read");
  return pieces;
};

let engine: LocalEngine | undefined;
/** Those beside the engine's own, which has number 0. */
const conversations = new Map<number, LocalConversation>();
let opened = 0;
const aborts = new Map<number, AbortController>();
const wanted = new Map<number, (piece: Uint8Array | undefined) => void>();

const send = (message: FromWorker) => postMessage(message);

// This thread may be waiting for the one that has ended.
host.teamStarted = (lives) => send({ lives });

self.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  if (data.call === "abort") {
    aborts.get(data.id)?.abort();
    wanted.get(data.id)?.(undefined);
  } else if (data.call === "piece") {
    wanted.get(data.id)?.(data.piece);
  } else {
    void answer(data.id, data);
  }
};

async function answer(id: number, request: Request): Promise<void> {
  const abort = new AbortController();
  aborts.set(id, abort);
  try {
    send({ id, done: await run(id, request, abort.signal) });
  } catch (thrown) {
    const { code, message } = toError(thrown);
    send({ id, error: { code, message } });
  } finally {
    aborts.delete(id);
  }
}

async function run(
  id: number,
  request: Request,
  signal: AbortSignal,
): Promise<Answer> {
  if (request.call === "load") {
    engine = await load(id, request, signal);
    return engine.info;
  }
  if (!engine) throw new ShohinError("disposed", "no model is loaded");
  switch (request.call) {
    case "chat":
      return stream(id, find(engine, request.conversation).chat(request.messages, { ...request.options, signal }));
    case "generate":
      return stream(id, find(engine, request.conversation).generate(request.prompt, { ...request.options, signal }));
    case "open": {
      const conversation = await engine.conversation(request.options);
      conversations.set(++opened, conversation);
      return { conversation: opened, context: conversation.context };
    }
    case "close":
      await conversations.get(request.conversation)?.dispose();
      conversations.delete(request.conversation);
      return undefined;
    case "snapshot":
      return find(engine, request.conversation).snapshot();
    case "save":
      await find(engine, request.conversation).save(request.name);
      return undefined;
    case "restore":
      return find(engine, request.conversation).restore(request.from, { ...request.options, signal });
    case "embed":
      return engine.embed(request.text, { ...request.options, signal });
    case "tokenize":
      return engine.tokenize(request.text, { special: request.special });
    case "tokenizeChat":
      return engine.tokenizeChat(request.messages, request.options);
    case "detokenize":
      return engine.detokenize(request.ids);
  }
}

function find(engine: LocalEngine, number: number): LocalEngine | LocalConversation {
  const found = number === 0 ? engine : conversations.get(number);
  if (!found) throw new ShohinError("disposed", "the conversation was disposed");
  return found;
}

async function stream(id: number, chunks: AsyncIterable<Chunk>): Promise<undefined> {
  for await (const chunk of chunks) send({ id, chunk });
  return undefined;
}

/** Codes of what is wrong with a file itself, which then is not worth keeping. */
const OF_THE_FILE: ReadonlySet<ErrorCode> = new Set<EngineErrorCode | HostErrorCode>([
  "truncated",
  "malformed",
  "duplicate",
  "missing_key",
  "key_type",
  "key_value",
  "unsupported",
  "missing_tensor",
  "tensor_shape",
  "tensor_type",
  "tensor_range",
]);

function load(id: number, { source, options }: LoadRequest, signal: AbortSignal): Promise<LocalEngine> {
  const all = { ...options, signal, onProgress: (progress: Progress) => send({ id, progress }) };
  if ("feed" in source) {
    return LocalEngine.read({ stage: "read", total: source.feed, pieces: fed(id, signal), close: () => {} }, all);
  }
  const files = ("files" in source ? source.files : [source]).map((file) => ("url" in file ? file.url : file.blob));
  const attempt = (again: boolean): Promise<LocalEngine> => {
    fromCopy.clear();
    return LocalEngine.load("files" in source ? files : files[0]!, all).catch(async (thrown: unknown) => {
      // What was downloaded just now will not get better.
      if (options.cache && (await mended(toError(thrown))) && !again) return attempt(true);
      throw thrown;
    });
  };
  const only = files.length === 1 && typeof files[0] === "string" && !partsOf(files[0]) ? files[0] : undefined;
  /** Deletes copies that are of no use; says whether others may come of that. */
  const mended = async (error: ShohinError): Promise<boolean> => {
    const guilty = OF_THE_FILE.has(error.code) ? (blamedBy(error) ?? only) : undefined;
    if (guilty !== undefined) {
      return fromCopy.has(guilty) && (await deleteCopy(guilty).catch(() => false)) && fromCopy.get(guilty) === true;
    }
    if (!OF_THE_FILE.has(error.code) && error.code !== "integrity") return false;
    // What has come wrong just now would be found wrong for ever.
    const fresh = error.code === "integrity" ? [...fromCopy].filter(([, whole]) => !whole) : [];
    await Promise.all(fresh.map(([url]) => deleteCopy(url).catch(() => false)));
    // The copies are what they were, so the mistake may be the caller's; or others are meant, which are there by now.
    const whole = [...fromCopy].filter(([, whole]) => whole);
    const deleted = await Promise.all(whole.map(([url]) => deleteOutdated(url, all).catch(() => false)));
    return deleted.includes(true);
  };
  return attempt(false);
}

/** The pieces the page sends. */
async function* fed(id: number, signal: AbortSignal): AsyncGenerator<Uint8Array> {
  try {
    for (;;) {
      const piece = await new Promise<Uint8Array | undefined>((resolve) => {
        wanted.set(id, resolve);
        send({ id, want: true });
      });
      if (signal.aborted) throw abortError(signal);
      if (!piece) return;
      yield piece;
    }
  } finally {
    wanted.delete(id);
  }
}
