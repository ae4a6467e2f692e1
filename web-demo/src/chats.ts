// The list of kept conversations: beside the page where there is room, in a drawer where there is not.
import { changedElsewhere, currentId, isEmpty, newChat, onList, openChat } from "./chat.js";
import * as format from "./format.js";
import { conversation, conversations, discard, keepsConversations, onChange, restore, type Conversation, type Listed } from "./history.js";
import { showAlert } from "./models.js";
import { icon, make, page } from "./page.js";
import { closes } from "./settings.js";
import { showUnsaved } from "./unkept.js";

const DELETE = "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5";
const WIDE = matchMedia("(min-width: 64rem)");
/** Milliseconds for which a deletion can be undone, and longer while its button is in use. */
const UNDO_FOR = 10_000;

let shown = 0;
/** Whether it was said that a conversation cannot be saved; until all are. */
let warned = false;
/** What was deleted last, and whether it was on the page. */
let undoable: { deleted: Conversation[]; shown: string | undefined; timer: ReturnType<typeof setTimeout> } | undefined;

export async function showList(): Promise<void> {
  const mine = ++shown;
  const all = await conversations();
  // A later list is on its way.
  if (mine !== shown) return;
  const focused = page.chatList.contains(document.activeElement) ? document.activeElement?.id : undefined;
  page.chatList.replaceChildren(...all.map(item));
  if (focused) document.getElementById(focused)?.focus();
  page.noChats.hidden = all.length > 0;
  page.forgetChats.parentElement!.hidden = all.length === 0;
  const unsaved = all.find(({ unsaved }) => unsaved);
  // Where nothing is saved at all, the page has said so.
  const keeps = await keepsConversations();
  if (mine !== shown) return;
  showUnsaved(unsaved !== undefined && keeps);
  if (unsaved && keeps && !warned) showAlert(`“${unsaved.title}” could not be saved: there is no storage left for this page. The conversation is lost when the page is closed. Delete a model or other conversations to make room.`);
  warned = unsaved !== undefined;
}

/** Deletes conversations, and offers to undo it. */
async function remove(ids: string[], words: string): Promise<void> {
  const deleted = (await Promise.all(ids.map(conversation))).filter((found) => found !== undefined);
  const shown = ids.find((id) => id === currentId());
  for (const id of ids) await discard(id);
  if (shown) newChat();
  else await showList();
  page.status.textContent = page.undoText.textContent = words;
  clearTimeout(undoable?.timer);
  undoable = { deleted, shown, timer: setTimeout(expire, UNDO_FOR) };
  page.undo.hidden = false;
  // The button that was pressed is gone.
  page.undoButton.focus();
}

function expire(): void {
  if (undoable && page.undo.matches(":hover, :has(:focus-visible)")) undoable.timer = setTimeout(expire, UNDO_FOR);
  else closeUndo();
}

function closeUndo(): void {
  clearTimeout(undoable?.timer);
  undoable = undefined;
  if (page.undo.contains(document.activeElement)) page.newChat.focus();
  page.undo.hidden = true;
}

async function undo(): Promise<void> {
  if (!undoable) return;
  const { deleted, shown } = undoable;
  closeUndo();
  for (const conversation of deleted) await restore(conversation);
  if (shown && isEmpty()) await openChat(shown);
  await showList();
  page.status.textContent = deleted.length > 1 ? "The conversations are back" : `“${deleted[0]?.title}” is back`;
  document.getElementById(`chat-${shown ?? deleted[0]?.id}`)?.focus();
}

function item({ id, title, unsaved }: Listed): HTMLLIElement {
  const isCurrent = id === currentId();
  const open = make("button", { type: "button", id: `chat-${id}`, class: "open", title, ...(isCurrent && { "aria-current": "true" }) }, title);
  const mark = unsaved && make("span", { id: `unsaved-${id}`, class: "unsaved" }, "not saved");
  if (mark) open.setAttribute("aria-describedby", mark.id);
  open.addEventListener("click", () => {
    page.drawer.close();
    void openChat(id).then(() => page.prompt.focus());
  });
  const bin = make("button", { type: "button", class: "icon", title: "Delete", "aria-label": `Delete “${title}”` }, icon(DELETE));
  bin.addEventListener("click", () => void remove([id], `Deleted “${title}”`));
  return make("li", {}, open, mark, bin);
}

/** Puts the list where it belongs at this width. */
function place(): void {
  if (page.drawer.open) page.drawer.close();
  if (page.chats.parentElement !== document.body) document.querySelector(".skip")?.after(page.chats);
}

export function initChats(): void {
  onList.change = () => void showList();
  onChange((id) => {
    void changedElsewhere(id);
    void showList();
  });
  page.newChat.addEventListener("click", () => {
    page.drawer.close();
    newChat();
    page.prompt.focus();
  });
  page.openChats.addEventListener("click", () => {
    page.drawer.append(page.chats);
    page.drawer.showModal();
  });
  closes(page.drawer, page.closeDrawer);
  page.drawer.addEventListener("close", place);
  WIDE.addEventListener("change", place);
  page.undoButton.addEventListener("click", () => void undo());
  // Asked twice: it is much at once.
  let sure: ReturnType<typeof setTimeout> | undefined;
  const calm = () => {
    clearTimeout(sure);
    sure = undefined;
    page.forgetChats.textContent = "Delete all";
  };
  page.forgetChats.addEventListener("click", async () => {
    if (sure === undefined) {
      page.forgetChats.textContent = "Press again to delete all";
      sure = setTimeout(calm, 4000);
      return;
    }
    calm();
    const all = await conversations();
    await remove(all.map(({ id }) => id), `Deleted ${format.plural(all.length, "conversation")}`);
  });
  void showList();
}
