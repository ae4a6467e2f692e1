/** Makes a page, and all others of its context that are opened from now on, that of a new visitor of an address: nothing is kept there. */
export async function forget(page, url) {
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Storage.clearDataForOrigin", { origin: new URL(url).origin, storageTypes: "all" });
  await devtools.detach();
}
