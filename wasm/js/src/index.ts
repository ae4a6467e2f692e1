export * from "./api.js";
export { clearCache } from "./cache.js";
export { Engine } from "./engine.js";
export { ShohinError, type EngineErrorCode, type ErrorCode, type HostErrorCode } from "./error.js";
