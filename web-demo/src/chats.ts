// The list of kept conversations: beside the page where there is room, in a drawer where there is not.
import { changedElsewhere, currentId, newChat, onList, openChat } from "./chat.js";
import { conversations, discard, onChange, type Conversation } from "./history.js";
import { icon, make, page } from "./page.js";
import { closes } from "./settings.js";

const DELETE = "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5";
const WIDE = matchMedia("(min-width: 64rem)");

let shown = 0;

async function showList(): Promise<void> {
  const mine = ++shown;
  const all = await conversations();
  // A later list is on its way.
  if (mine !== shown) return;
  const focused = page.chatList.contains(document.activeElement) ? document.activeElement?.id : undefined;
  page.chatList.replaceChildren(...all.map(item));
  if (focused) document.getElementById(focused)?.focus();
  page.noChats.hidden = all.length > 0;
  page.forgetChats.parentElement!.hidden = all.length === 0;
}

function item({ id, title }: Conversation): HTMLLIElement {
  const isCurrent = id === currentId();
  const open = make("button", { type: "button", id: `chat-${id}`, class: "open", title, ...(isCurrent && { "aria-current": "true" }) }, title);
  open.addEventListener("click", () => {
    page.drawer.close();
    void openChat(id).then(() => page.prompt.focus());
  });
  const remove = make("button", { type: "button", class: "icon", title: "Delete", "aria-label": `Delete “${title}”` }, icon(DELETE));
  remove.addEventListener("click", async () => {
    await discard(id);
    page.status.textContent = `Deleted “${title}”`;
    if (id === currentId()) newChat();
    else await showList();
    page.newChat.focus();
  });
  return make("li", {}, open, remove);
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
  // Twice, for there is no way back.
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
    for (const { id } of await conversations()) await discard(id);
    newChat();
    page.newChat.focus();
  });
  void showList();
}
