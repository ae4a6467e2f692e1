// The published models, with what a visitor wants to know before a download.
import PUBLISHED from "../../models/published.json";

/** A published model. */
export interface Offer {
  name: string;
  url: string;
  /** Bytes of the file. */
  size: number;
  /** SHA-256 of the file. */
  sha256: string;
  /** Bytes of memory a token of context takes. */
  tokenSize: number;
  /** What it is good for. */
  note: string;
}

/** All of them, smallest first. */
export const OFFERS: readonly Offer[] = PUBLISHED.map(({ repository, file, bytes, sha256, layers, note }) => ({
  // The repository has it with its capitals: owner/Bonsai-1.7B-gguf.
  name: repository.replace(/^.*\/|-gguf$/g, "").replaceAll("-", " "),
  url: `https://huggingface.co/${repository}/resolve/main/${file}`,
  size: bytes,
  sha256,
  // Each layer holds 8 keys and values of 128 numbers in f16 for a token: Qwen3's models of all sizes.
  tokenSize: layers * 2 * 8 * 128 * 2,
  note,
}));
