// Says what this browser does not keep for the page.
import { keepsConversations } from "./history.js";
import { keepsModels } from "./models.js";
import { page } from "./page.js";

export async function showUnkept(): Promise<void> {
  const [conversations, models] = await Promise.all([keepsConversations(), keepsModels()]);
  if (!conversations) page.chatsKept.textContent = "This browser keeps no conversations of this page: they are gone when it is closed.";
  page.unkept.textContent =
    !conversations && !models ? "This browser keeps nothing for this page: conversations, settings and models are gone when it is closed."
    : !conversations ? "This browser keeps no conversations of this page: they are gone when it is closed."
    : !isSecureContext ? "This page came over plain HTTP: models are not kept, and it does not open offline."
    : "This browser keeps no models for this page.";
  page.unkept.hidden = conversations && models;
}
