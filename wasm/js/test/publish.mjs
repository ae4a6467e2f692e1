// Files in the place of published models.
import { createHash } from "node:crypto";
import { MODELS } from "shohin";

export const sum = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** Gives published models the checksum of `file` in the scripts of a context's pages, so that a test can be the hub. */
export async function publish(context, file) {
  await context.route(/^http:\/\/127\.0\.0\.1.*\.js$/, async (route) => {
    const response = await route.fetch();
    const { "content-encoding": _, "content-length": __, ...headers } = response.headers();
    const body = MODELS.reduce((text, { sha256 }) => text.replaceAll(sha256, sum(file)), await response.text());
    await route.fulfill({ status: response.status(), headers, body });
  });
}
