// Embeddings as the AI SDK requests them.
import type { EmbeddingModelV3 } from "@ai-sdk/provider";
import { givenEngine } from "../api/given-engine.js";
import type { EmbedOptions, Engine } from "../index.js";

/** An embedding model of the AI SDK over an engine: `embed({ model: embeddingModel(engine), value })`. */
export function embeddingModel(engine: Engine, settings: Omit<EmbedOptions, "signal"> = {}): EmbeddingModelV3 {
  givenEngine(engine, "embed");
  return {
    specificationVersion: "v3",
    provider: "shohin",
    modelId: engine.info.model.name || engine.info.model.architecture,
    // An engine computes one text after the other.
    maxEmbeddingsPerCall: Infinity,
    supportsParallelCalls: false,
    async doEmbed({ values, abortSignal, providerOptions }) {
      const options = { ...settings, ...providerOptions?.["shohin"], signal: abortSignal } as EmbedOptions;
      const vectors = await engine.embed(values, options);
      let tokens = 0;
      for (const value of values) tokens += (await engine.tokenize(value)).length;
      return { embeddings: vectors.map((vector) => [...vector]), usage: { tokens }, warnings: [] };
    },
  };
}
