// The interface of the Prompt API, which browsers with a built-in model have, over a model of choice.
export { createLanguageModel, type LanguageModelClass, type LanguageModelSettings } from "./prompt-api/create.js";
export type { EventHandler } from "./prompt-api/event-handlers.js";
export type { LanguageModel } from "./prompt-api/language-model.js";
export type { CreateMonitor, DownloadProgressEvent } from "./prompt-api/monitor.js";
export type * from "./prompt-api/options.js";
