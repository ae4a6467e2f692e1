export * from "./api.js";
export { clearCache, deleteCache, listCache, type CacheEntry } from "./cache.js";
export type * from "./completion.js";
export { Conversation, Engine } from "./engine.js";
export { ShohinError, type EngineErrorCode, type ErrorCode, type HostErrorCode } from "./error.js";
export { deleteSnapshot, listSnapshots } from "./snapshots.js";
