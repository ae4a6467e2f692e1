// Models the picker offers, with what a visitor wants to know before a download.

/** A published model. */
export interface Offer {
  name: string;
  url: string;
  /** Bytes of the file. */
  size: number;
  /** Bytes of memory a token of context takes. */
  tokenSize: number;
  /** What it is good for. */
  note: string;
}

/** Bytes of a token's keys and values in f16: Qwen3's models of all sizes have 8 heads of 128 for them in each layer. */
const TOKEN_SIZES: Record<string, number> = { "1.7B": 28 * 2 * 8 * 128 * 2, "4B": 36 * 2 * 8 * 128 * 2, "8B": 36 * 2 * 8 * 128 * 2 };

const home = (repository: string, file: string) => `https://huggingface.co/prism-ml/${repository}/resolve/main/${file}`;
const bonsai = (size: string, bytes: number, note: string): Offer => ({
  name: `Bonsai ${size}`,
  url: home(`Bonsai-${size}-gguf`, `Bonsai-${size}-Q1_0.gguf`),
  size: bytes,
  tokenSize: TOKEN_SIZES[size]!,
  note: `1-bit, ${note}`,
});
const ternary = (size: string, bytes: number, note: string): Offer => ({
  name: `Ternary Bonsai ${size}`,
  url: home(`Ternary-Bonsai-${size}-gguf`, `Ternary-Bonsai-${size}-Q2_0.gguf`),
  size: bytes,
  tokenSize: TOKEN_SIZES[size]!,
  note: `ternary, ${note}`,
});

export const OFFERS: readonly Offer[] = [
  bonsai("1.7B", 248_302_272, "the quickest"),
  ternary("1.7B", 463_290_464, "quick, more exact"),
  bonsai("4B", 572_270_624, "for laptops"),
  ternary("4B", 1_074_969_344, "for laptops, more exact"),
  bonsai("8B", 1_158_654_496, "knows the most for its size"),
  ternary("8B", 2_182_184_672, "the best and the slowest"),
];
