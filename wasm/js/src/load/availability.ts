// Whether a model can be loaded, and how much of it has to be downloaded first.
import { abortError, toError, type ErrorCode } from "../api/errors.js";
import type { Availability, LoadOptions } from "../api/options.js";
import { isInUse, type CacheEntry } from "./cache.js";
import { partsOf } from "./parts.js";
import type { Open } from "./pieces.js";
import type { RemoteSource } from "./source.js";

/** An availability that can be sent to another thread. @internal */
export type SentAvailability = Omit<Availability, "error"> & { error?: { code: ErrorCode; message: string } };

function namesOf(source: RemoteSource): string[] {
  if ("url" in source) return partsOf(source.url) ?? [source.url];
  return "files" in source ? source.files.flatMap((file) => ("url" in file ? [file.url] : [])) : [];
}

/** Whether a model can be loaded. `open` opens a file past its copy; `copies` are those that loads would use. @internal */
export async function availabilityOf(source: RemoteSource, { signal }: LoadOptions, open: Open, copies: CacheEntry[] | undefined): Promise<SentAvailability> {
  let remaining: number | undefined = 0;
  let status: Availability["status"] = "available";
  for (const name of namesOf(source)) {
    const copy = copies?.find(({ url }) => url === name);
    if (copy?.complete) continue;
    let total = copy?.total;
    if (copies && (await isInUse(name).catch(() => false))) {
      status = "downloading";
    } else {
      try {
        const pieces = await open(name, true);
        await pieces.close();
        // A file on this device.
        if (pieces.stage === "read") continue;
        total = pieces.total;
      } catch (thrown) {
        if (signal?.aborted) throw abortError(signal);
        const { code, message } = toError(thrown);
        return { status: "unavailable", error: { code, message } };
      }
      if (status === "available") status = "downloadable";
    }
    if (signal?.aborted) throw abortError(signal);
    remaining = total === undefined || remaining === undefined ? undefined : remaining + Math.max(0, total - (copy?.bytes ?? 0));
  }
  return { status, ...(remaining !== undefined && { remaining }) };
}
