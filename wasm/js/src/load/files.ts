// How the runtime opens the files of a model: without copies here, with them in a worker (kept.ts).
import type { ShohinError } from "../api/errors.js";
import type { LoadOptions } from "../api/options.js";
import { downloadPieces } from "./download.js";
import type { Open } from "./pieces.js";
import type { RemoteSource } from "./source.js";

/** The files of one attempt to load a model. @internal */
export interface Files {
  open: Open;
  /** After a failure: deletes kept copies that may have caused it; returns whether another attempt may succeed. */
  repair(error: ShohinError, source: RemoteSource): Promise<boolean>;
}

/** Files that are not kept. @internal */
export function filesWithoutCopies(options: LoadOptions, open: Open = (url, brief) => downloadPieces(url, options, undefined, brief)): Files {
  return { open, repair: async () => false };
}
