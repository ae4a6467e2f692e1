/** The models of `models/published.json`; set by the build. */
declare const PUBLISHED_MODELS: readonly import("./names.js").PublishedModel[];
