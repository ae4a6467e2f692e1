// Models from URLs by way of kept copies, and the deletion of copies that turn out to be unusable.
import { blamedBy, type EngineErrorCode, type ErrorCode, type HostErrorCode } from "../api/errors.js";
import type { LoadOptions } from "../api/options.js";
import { deleteCopy, deleteOutdated, keptPieces } from "./cache.js";
import { downloadPieces } from "./download.js";
import { filesWithoutCopies, type Files } from "./files.js";
import { partsOf } from "./parts.js";

/** Codes of errors in a file itself, which is then not worth keeping. */
const OF_THE_FILE: ReadonlySet<ErrorCode> = new Set<EngineErrorCode | HostErrorCode>([
  "truncated",
  "malformed",
  "duplicate",
  "missing_key",
  "key_type",
  "key_value",
  "unsupported",
  "missing_tensor",
  "tensor_shape",
  "tensor_type",
  "tensor_range",
]);

/** The files of one attempt, with kept copies if the options ask for them. @internal */
export function filesWithCopies(options: LoadOptions): Files {
  const { cache = true } = options;
  if (!cache) return filesWithoutCopies(options);
  /** The files by their URLs, and whether each is read from a complete copy. */
  const fromCopy = new Map<string, boolean>();
  /** The files that are open. */
  const open = new Set<string>();
  return {
    async open(url, brief) {
      // Other addresses, such as blob:, mean nothing at the next visit.
      if (!/^https?:/i.test(url)) return downloadPieces(url, options, undefined, brief);
      // Two engines that had each other's next file would wait forever: each waits only for files after all it has.
      const patient = [...open].every((other) => other < url);
      const pieces = await keptPieces(url, options, cache === "require", brief, patient);
      fromCopy.set(url, pieces.stage === "read");
      open.add(url);
      const close = () => {
        open.delete(url);
        return pieces.close();
      };
      return { ...pieces, close };
    },
    async repair(error, source) {
      const only = "url" in source && !partsOf(source.url) ? source.url : undefined;
      const guilty = OF_THE_FILE.has(error.code) ? (blamedBy(error) ?? only) : undefined;
      if (guilty !== undefined) {
        // A file that has just been downloaded would be the same again.
        return fromCopy.has(guilty) && (await deleteCopy(guilty).catch(() => false)) && fromCopy.get(guilty) === true;
      }
      if (!OF_THE_FILE.has(error.code) && error.code !== "integrity") return false;
      // A wrong file that has just been downloaded would fail every later load.
      const fresh = error.code === "integrity" ? [...fromCopy].filter(([, complete]) => !complete) : [];
      await Promise.all(fresh.map(([url]) => deleteCopy(url).catch(() => false)));
      // Complete copies are what they were: either the options are wrong, or they mean a newer file on the server.
      const complete = [...fromCopy].filter(([, complete]) => complete);
      const deleted = await Promise.all(complete.map(([url]) => deleteOutdated(url, options).catch(() => false)));
      return deleted.includes(true);
    },
  };
}
