// Models by name: published ones, and any file of a repository on the Hugging Face Hub.
import { ShohinError } from "../api/errors.js";

/** A published model that `Engine.load` knows by its name. */
export interface PublishedModel {
  name: string;
  /** Repository on the hub, `owner/name`. */
  repository: string;
  file: string;
  /** Size of the file when it was published. */
  bytes: number;
  /** SHA-256 of the file in hexadecimal digits. */
  sha256: string;
}

const bonsai = (size: string, bytes: number, sha256: string): PublishedModel => ({
  name: `bonsai-${size.toLowerCase()}`,
  repository: `prism-ml/Bonsai-${size}-gguf`,
  file: `Bonsai-${size}-Q1_0.gguf`,
  bytes,
  sha256,
});
const ternary = (size: string, bytes: number, sha256: string): PublishedModel => ({
  name: `ternary-bonsai-${size.toLowerCase()}`,
  repository: `prism-ml/Ternary-Bonsai-${size}-gguf`,
  file: `Ternary-Bonsai-${size}-Q2_0.gguf`,
  bytes,
  sha256,
});

/** The models that `Engine.load` knows by name, smallest first. */
export const MODELS: readonly PublishedModel[] = [
  bonsai("1.7B", 248_302_272, "3d7c6c90dd98717a203adb22d5eacd2581850e40aa5327e144b97766cae5f7e3"),
  ternary("1.7B", 463_290_464, "d97d94eb564590c9f0300e54d3f87bbbb25a78693d0ade9f6e177973dcb8228a"),
  bonsai("4B", 572_270_624, "4524b3f997f0f06444e568d1f26e2efd69effa3218c7ad3047432fb171e42168"),
  ternary("4B", 1_074_969_344, "4e0bf8b737b0431552f8c2c97695ab7c0cb214c94bcdeb4f5f267e67ddf28b8b"),
  bonsai("8B", 1_158_654_496, "284a335aa3fb2ced3b1b01fcb40b08aa783e3b70832767f0dd2e3fdfa134bd54"),
  ternary("8B", 2_182_184_672, "3c8d70470a5d97e5a2b9410ddd899cb740116591462626c60cb2fead6448f60b"),
];

/** Base address of the hub unless the option `hub` names another. @internal */
export const hub = { address: "https://huggingface.co" };

/** `hf:owner/repository/file`, also with `@revision` and a file in folders. */
const HUB_FILE = /^hf:([^/@]+)\/([^/@]+)(?:@([^/]+))?\/([^?#]*[^?#/])$/;

/** A word without slash, colon or file extension, as names of models are. A dot between digits is part of a version. */
const WORD = /^[a-z](?:[\w-]|(?<=\d)\.(?=\d))*$/i;

function encoded(part: string): string {
  try {
    // A slash in a revision is written as %2F.
    return encodeURIComponent(decodeURIComponent(part));
  } catch {
    return encodeURIComponent(part);
  }
}

/** The published model that a string names, if any. @internal */
export function publishedModel(name: string): PublishedModel | undefined {
  return MODELS.find((model) => model.name === name.toLowerCase());
}

/** The address that a string names: a published model, a file on the hub, or the string itself. @internal */
export function addressOf(name: string, base: string | URL = hub.address): string {
  if (name.startsWith("hf:")) {
    if (!/^https?:\/\//.test(String(base))) throw new ShohinError("argument", `the hub is ${base}, but must be an http or https address`);
    const [, owner, repository, revision = "main", file] = HUB_FILE.exec(name) ?? [];
    if (file === undefined) {
      throw new ShohinError("argument", `${name} does not name a file on the hub; expected hf:owner/repository/file or hf:owner/repository@revision/file`);
    }
    const path = file.split("/").map(encoded).join("/");
    return `${String(base).replace(/\/+$/, "")}/${encoded(owner!)}/${encoded(repository!)}/resolve/${encoded(revision)}/${path}`;
  }
  if (!WORD.test(name)) return name;
  const model = publishedModel(name);
  if (model) return addressOf(`hf:${model.repository}/${model.file}`, base);
  throw new ShohinError("argument", `there is no model named ${name}; there are ${MODELS.map(({ name }) => name).join(", ")} (for a file of this name write ./${name})`);
}
