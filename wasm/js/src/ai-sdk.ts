// Models of the AI SDK over an engine.
export { embeddingModel } from "./ai-sdk/embedding-model.js";
export { languageModel, type LanguageModelSettings } from "./ai-sdk/language-model.js";
