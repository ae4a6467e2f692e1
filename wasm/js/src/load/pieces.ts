// A file as a stream.

/** A model file as a stream of pieces. @internal */
export interface Pieces {
  stage: "download" | "read";
  /** Size in bytes if known. Reported by a server, so only a hint. */
  total: number | undefined;
  /** Whether `total` may be the length of a compressed body, which servers can hide from pages of other origins. */
  vague?: boolean;
  pieces: AsyncIterable<Uint8Array>;
  /** SHA-256 of a complete copy, if it was computed when the copy was made. */
  sha256?: string | undefined;
  /** Tells a copy the SHA-256 of the whole file, before `pieces` ends. */
  summed?: (sha256: string) => void;
  /** Releases the file or connection, at any time and any number of times. */
  close: () => void | Promise<void>;
  /** The files of a model in several parts; read these instead of `pieces`. */
  parts?: NamedPieces[];
}

/** A part, and its name in errors. @internal */
export interface NamedPieces extends Pieces {
  name: string;
}

/** Opens a file by its address. `brief`: perhaps only its beginning is read for a while. @internal */
export type Open = (name: string, brief: boolean) => Promise<Pieces>;
