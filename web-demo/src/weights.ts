// The first rows of a low-bit matrix, decoded from the bytes of a GGUF file. Reads the file from its beginning, and no
// further than those rows.

/** The first rows of a matrix: `rows * columns` weights of -1, 0 or +1, times a scale that a group of them shares. */
export interface Patch {
  tensor: string;
  format: string;
  /** The whole matrix, in weights. */
  shape: readonly [rows: number, columns: number];
  rows: number;
  columns: number;
  weights: Int8Array;
  /** Weights that share a scale. */
  group: number;
}

/** Weights and bytes of a block, and how its weights are decoded. */
interface Format {
  name: string;
  length: number;
  bytes: number;
  decode: (block: Uint8Array, weights: Int8Array) => void;
}

/** Q1_0: a 16-bit scale, then a bit for each weight. */
const Q1_0: Format = {
  name: "Q1_0",
  length: 128,
  bytes: 18,
  decode: (block, weights) => weights.forEach((_, j) => (weights[j] = block[2 + (j >> 3)]! & (1 << (j & 7)) ? 1 : -1)),
};

/** Q2_0 and PQ2_0: a 16-bit scale, then two bits for each weight: its value plus one. */
const codes = (name: string, length: number): Format => ({
  name,
  length,
  bytes: 2 + length / 4,
  decode: (block, weights) => weights.forEach((_, j) => (weights[j] = ((block[2 + (j >> 2)]! >> (2 * (j & 3))) & 3) - 1)),
});
const Q2_0 = codes("Q2_0", 64);
const PQ2_0 = codes("PQ2_0", 128);

/** TQ2_0: two bits for each weight, in halves of 128 weights whose bytes hold every 32nd, then a 16-bit scale. */
const TQ2_0: Format = {
  name: "TQ2_0",
  length: 256,
  bytes: 66,
  decode: (block, weights) =>
    weights.forEach((_, j) => (weights[j] = ((block[32 * (j >> 7) + (j & 31)]! >> (2 * ((j >> 5) & 3))) & 3) - 1)),
};

/**
 * TQ1_0 and PTQ1_0: base-3 digits, five to a byte in runs of `a` and `b` bytes, then four to each of `c` bytes, then a 16-bit
 * scale. Digit n of byte m of a run of c bytes is its weight `n * c + m`.
 */
const trits = (name: string, a: number, b: number, c: number): Format => ({
  name,
  length: 5 * (a + b) + 4 * c,
  bytes: a + b + c + 2,
  decode: (block, weights) => {
    let at = 0;
    for (const [first, bytes, digits] of [[0, a, 5], [a, b, 5], [a + b, c, 4]] as const) {
      for (let n = 0; n < digits; n++) {
        for (let m = 0; m < bytes; m++) weights[at++] = ((((block[first + m]! * 3 ** n) & 0xff) * 3) >> 8) - 1;
      }
    }
  },
});

/** The formats by GGUF type, but Q2_0. */
const FORMATS: Record<number, Format> = { 34: trits("TQ1_0", 32, 16, 4), 35: TQ2_0, 41: Q1_0, 142: PQ2_0, 143: trits("PTQ1_0", 16, 8, 2) };

interface Tensor {
  name: string;
  dims: number[];
  type: number;
  offset: number;
}

/** No header is longer: 150,000 words and their merges take 6 MB. */
const MOST = 64 << 20;

/** Bytes of a value in the metadata by its type. */
const SIZES: Record<number, number> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
const [STRING, ARRAY] = [8, 9];
const text = new TextDecoder();

/** The bytes of a stream from its beginning, as far as they have been asked for. */
class Bytes {
  private all = new Uint8Array(1 << 16);
  private view = new DataView(this.all.buffer);
  private have = 0;
  at = 0;

  constructor(private readonly reader: ReadableStreamDefaultReader<Uint8Array>) {}

  /** Waits until `count` more bytes are here. */
  async need(count: number): Promise<void> {
    const end = this.at + count;
    if (!(end <= MOST)) throw new RangeError(`${count} bytes are needed at ${this.at}`);
    while (this.have < end) {
      const { value } = await this.reader.read();
      if (!value) throw new RangeError(`the file ends at ${this.have}`);
      if (this.have + value.length > this.all.length) {
        const more = new Uint8Array(2 * (this.have + value.length));
        more.set(this.all.subarray(0, this.have));
        this.all = more;
        this.view = new DataView(more.buffer);
      }
      this.all.set(value, this.have);
      this.have += value.length;
    }
  }

  /** Whether these are here; spares the wait, of which a header has hundreds of thousands. */
  has(count: number): boolean {
    return this.at + count <= this.have;
  }

  async u32(): Promise<number> {
    if (!this.has(4)) await this.need(4);
    return this.view.getUint32((this.at += 4) - 4, true);
  }

  async u64(): Promise<number> {
    if (!this.has(8)) await this.need(8);
    return Number(this.view.getBigUint64((this.at += 8) - 8, true));
  }

  async take(count: number): Promise<Uint8Array> {
    if (!this.has(count)) await this.need(count);
    return this.all.subarray(this.at, (this.at += count));
  }
}

async function skip(bytes: Bytes, type: number): Promise<void> {
  if (type === STRING) {
    await bytes.take(await bytes.u64());
  } else if (type === ARRAY) {
    const [inner, count] = [await bytes.u32(), await bytes.u64()];
    const size = SIZES[inner];
    if (size !== undefined) await bytes.take(size * count);
    else for (let i = 0; i < count; i++) await skip(bytes, inner);
  } else {
    const size = SIZES[type];
    if (size === undefined) throw new RangeError(`a value has type ${type}`);
    await bytes.take(size);
  }
}

/** How a tensor is stored; type 42 has groups of 128 in older files, which shows in where the next tensor begins. */
function formatOf(tensor: Tensor, next: Tensor | undefined, alignment: number, plain: boolean): Format | undefined {
  const [columns = 0, rows = 0] = tensor.dims;
  if (tensor.dims.length !== 2) return undefined;
  const ends = ({ length, bytes }: Format) => Math.ceil(((columns / length) * bytes * rows) / alignment) * alignment + tensor.offset === next?.offset;
  // In some files of type 42 the scale ends a group; they have a text where others have a version number.
  return tensor.type === 42 ? (plain ? [Q2_0, PQ2_0].find(ends) : undefined) : FORMATS[tensor.type];
}

/**
 * Decodes at most so many rows and columns of the first low-bit matrix of a GGUF file; none if it has no such matrix, or
 * is no such file. Cancels the stream as soon as it has them.
 */
export async function readPatch(file: ReadableStream<Uint8Array>, rows: number, columns: number): Promise<Patch | undefined> {
  const reader = file.getReader();
  try {
    return await patchOf(new Bytes(reader), rows, columns);
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  } finally {
    await reader.cancel().catch(() => {});
  }
}

async function patchOf(bytes: Bytes, rows: number, columns: number): Promise<Patch | undefined> {
  if (text.decode(await bytes.take(4)) !== "GGUF" || (await bytes.u32()) < 2) return undefined;
  const [count, entries] = [await bytes.u64(), await bytes.u64()];
  let alignment = 32;
  let plain = true;
  for (let i = 0; i < entries; i++) {
    const key = text.decode(await bytes.take(await bytes.u64()));
    const type = await bytes.u32();
    if (key === "general.quantization_version") plain = type !== STRING;
    if (key === "general.alignment" && type === 4) alignment = await bytes.u32();
    else await skip(bytes, type);
  }
  const tensors: Tensor[] = [];
  for (let i = 0; i < count; i++) {
    const name = text.decode(await bytes.take(await bytes.u64()));
    const dims: number[] = [];
    for (let left = await bytes.u32(); left > 0; left--) dims.push(await bytes.u64());
    tensors.push({ name, dims, type: await bytes.u32(), offset: await bytes.u64() });
  }
  const data = Math.ceil(bytes.at / alignment) * alignment;
  tensors.sort((a, b) => a.offset - b.offset);
  for (const [i, tensor] of tensors.entries()) {
    const format = formatOf(tensor, tensors[i + 1], alignment, plain);
    if (!format) continue;
    const shape = [tensor.dims[1]!, tensor.dims[0]!] as const;
    const row = (shape[1] / format.length) * format.bytes;
    const shown = [Math.min(rows, shape[0]), Math.min(columns, shape[1])] as const;
    const blocks = Math.ceil(shown[1] / format.length);
    const weights = new Int8Array(shown[0] * shown[1]);
    const decoded = new Int8Array(blocks * format.length);
    for (let r = 0; r < shown[0]; r++) {
      bytes.at = data + tensor.offset + r * row;
      for (let b = 0; b < blocks; b++) format.decode(await bytes.take(format.bytes), decoded.subarray(b * format.length, (b + 1) * format.length));
      weights.set(decoded.subarray(0, shown[1]), r * shown[1]);
    }
    return { tensor: tensor.name, format: format.name, shape, rows: shown[0], columns: shown[1], weights, group: format.length };
  }
  return undefined;
}
