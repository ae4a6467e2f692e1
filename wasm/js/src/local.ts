// The package on the calling thread, for workers of your own and for Node. It computes between `await`s: a page becomes
// unresponsive, and should use `shohin` instead.
import { Conversation } from "./engine/conversation.js";
import { connectBy, Engine } from "./engine/engine.js";
import { InProcess } from "./engine/in-process.js";
import { copies } from "./load/cache.js";
import { filesWithCopies } from "./load/kept.js";
import { host } from "./wasm/host.js";

export type * from "./api/chunk.js";
export { ShohinError, type EngineErrorCode, type ErrorCode, type HostErrorCode } from "./api/errors.js";
export type * from "./api/info.js";
export type * from "./api/message.js";
export type * from "./api/options.js";
export type { Reply } from "./api/reply.js";
export type { Adapters } from "./engine/adapters.js";
export type { ChatSession } from "./engine/chat-session.js";
export { deleteSnapshot, listSnapshots } from "./engine/snapshots.js";
export { clearCache, deleteCache, listCache, type CacheEntry } from "./load/cache.js";
export { MODELS, type PublishedModel } from "./load/names.js";
export type * from "./openai/completion.js";
export { Conversation, Engine };

/** @deprecated Use {@link Engine}; `LocalEngine` will be removed in 0.2. */
export const LocalEngine = Engine;
/** @deprecated Use {@link Engine}. */
export type LocalEngine = Engine;
/** @deprecated Use {@link Conversation}; `LocalConversation` will be removed in 0.2. */
export const LocalConversation = Conversation;
/** @deprecated Use {@link Conversation}. */
export type LocalConversation = Conversation;

// Only workers can keep copies.
if (typeof FileSystemFileHandle === "function" && "createSyncAccessHandle" in FileSystemFileHandle.prototype) {
  Object.assign(host, { files: filesWithCopies, copies } satisfies Partial<typeof host>);
}

connectBy(() => new InProcess());
