// Says what this browser does not keep for the page.
import { keepsConversations } from "./history.js";
import { keepsModels } from "./models.js";
import { page } from "./page.js";

const NO_CONVERSATIONS = "This browser keeps no conversations of this page: they are gone when it is closed.";

/** Says whether some conversations could not be saved, where others are. */
export function showUnsaved(some: boolean): void {
  if (some) page.chatsKept.textContent = "Conversations marked “not saved” are lost when this page is closed.";
  else if (page.chatsKept.textContent !== NO_CONVERSATIONS) page.chatsKept.textContent = "Conversations stay in this browser.";
}

export async function showUnkept(): Promise<void> {
  const [conversations, models] = await Promise.all([keepsConversations(), keepsModels()]);
  if (!conversations) page.chatsKept.textContent = NO_CONVERSATIONS;
  page.unkept.textContent =
    !conversations && !models ? "This browser keeps nothing for this page: conversations, settings and models are gone when it is closed."
    : !conversations ? NO_CONVERSATIONS
    : !isSecureContext ? "This page came over plain HTTP: models are not kept, and it does not open offline."
    : "This browser keeps no models for this page.";
  page.unkept.hidden = conversations && models;
}
