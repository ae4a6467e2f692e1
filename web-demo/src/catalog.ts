// The package's published models, with what a visitor wants to know before a download.
import { MODELS } from "shohin";

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

/** Layers by the size in a model's name. Each of them holds 8 keys and values of 128 numbers in f16 for a token: Qwen3's models of all sizes. */
const LAYERS: Record<string, number> = { "1.7b": 28, "4b": 36, "8b": 36 };

const NOTES: Record<string, string> = {
  "bonsai-1.7b": "1-bit, the quickest",
  "ternary-bonsai-1.7b": "ternary, quick, more exact",
  "bonsai-4b": "1-bit, for laptops",
  "ternary-bonsai-4b": "ternary, for laptops, more exact",
  "bonsai-8b": "1-bit, knows the most for its size",
  "ternary-bonsai-8b": "ternary, the best and the slowest",
};

/** All of them, smallest first. */
export const OFFERS: readonly Offer[] = MODELS.map(({ name, repository, file, bytes, sha256 }) => {
  const [layers, note] = [LAYERS[name.split("-").at(-1)!], NOTES[name]];
  if (layers === undefined || note === undefined) throw new Error(`${name} is published, but not described here`);
  return {
    // The repository has it with its capitals: owner/Bonsai-1.7B-gguf.
    name: repository.replace(/^.*\/|-gguf$/g, "").replaceAll("-", " "),
    url: `https://huggingface.co/${repository}/resolve/main/${file}`,
    size: bytes,
    sha256,
    tokenSize: layers * 2 * 8 * 128 * 2,
    note,
  };
});
