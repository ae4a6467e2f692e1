export * from "./api.js";
export { clearCache, deleteCache, listCache, type CacheEntry } from "./cache.js";
export { Engine } from "./engine.js";
export { ShohinError, type EngineErrorCode, type ErrorCode, type HostErrorCode } from "./error.js";
