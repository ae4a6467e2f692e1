// The package in a browser: the engine runs in a worker.
import { connectBy } from "./engine/engine.js";
import { connectShared } from "./engine/shared-worker.js";
import { WorkerTransport } from "./engine/worker-transport.js";

export type * from "./api/chunk.js";
export { ShohinError, type EngineErrorCode, type ErrorCode, type HostErrorCode } from "./api/errors.js";
export type * from "./api/info.js";
export type * from "./api/message.js";
export type * from "./api/options.js";
export type { Reply } from "./api/reply.js";
export type { Adapters } from "./engine/adapters.js";
export type { ChatSession } from "./engine/chat-session.js";
export { Conversation } from "./engine/conversation.js";
export { Engine } from "./engine/engine.js";
export { deleteSnapshot, listSnapshots } from "./engine/snapshots.js";
export { clearCache, deleteCache, listCache, type CacheEntry } from "./load/cache.js";
export { MODELS, type PublishedModel } from "./load/names.js";
export type * from "./openai/completion.js";

connectBy((workerUrl) => WorkerTransport.own(workerUrl), connectShared);
