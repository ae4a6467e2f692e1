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

/** The models that `Engine.load` knows by name, smallest first. */
export const MODELS: readonly PublishedModel[] = PUBLISHED_MODELS;

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
