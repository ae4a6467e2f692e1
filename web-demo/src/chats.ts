// The list of kept conversations: beside the page where there is room, in a drawer where there is not.
import { changedElsewhere, currentId, isEmpty, newChat, onList, openChat, readTitle } from "./chat.js";
import * as drafts from "./drafts.js";
import { download, fileName, foreign, ImportError, MOST, parse, toJson, toMarkdown } from "./export.js";
import * as format from "./format.js";
import { add, conversation, conversations, discard, forget, keepsConversations, onChange, rename, restore, search, wholeConversations, writeAgain, type Conversation, type Listed } from "./history.js";
import { initMenu, opensMenu } from "./menu.js";
import { onDeleted, showAlert } from "./models.js";
import { icon, make, page } from "./page.js";
import { closes } from "./settings.js";
import { showUnsaved } from "./unkept.js";

const DELETE = "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5";
const MORE = "M6 12h.01M12 12h.01M18 12h.01";
/** Characters of a title. */
const LONGEST_TITLE = 80;
const WIDE = matchMedia("(min-width: 64rem)");
/** Milliseconds for which a deletion can be undone, and longer while its button is in use. */
const UNDO_FOR = 10_000;

let shown = 0;
/** Whether a title is being edited; the list stays as it is until then. */
let renaming = false;
/** Whether it was said that a conversation cannot be saved; until all are. */
let warned = false;
/** What was deleted last, and whether it was on the page. */
let undoable: { deleted: Conversation[]; shown: string | undefined; timer: ReturnType<typeof setTimeout> } | undefined;

async function showList(): Promise<void> {
  const mine = ++shown;
  const all = await conversations();
  const query = page.search.value.trim();
  const found = query === "" ? all : await search(query, all);
  // A later list is on its way.
  if (mine !== shown || renaming) return;
  const focused = page.chatList.contains(document.activeElement) ? document.activeElement?.id : undefined;
  page.chatList.replaceChildren(...found.map(item));
  if (focused) document.getElementById(focused)?.focus();
  page.noChats.hidden = all.length > 0;
  page.noneFound.hidden = found.length > 0 || query === "";
  page.search.hidden = all.length === 0 && query === "";
  page.forgetChats.parentElement!.hidden = page.exportChats.hidden = all.length === 0;
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
  forgetUndoable();
  undoable = { deleted, shown, timer: setTimeout(expire, UNDO_FOR) };
  page.undo.hidden = false;
  // The button that was pressed is gone.
  page.undoButton.focus();
}

function expire(): void {
  if (undoable && page.undo.matches(":hover, :has(:focus-visible)")) undoable.timer = setTimeout(expire, UNDO_FOR);
  else {
    forgetUndoable();
    closeUndo();
  }
}

/** Makes the deletion final that could be undone. */
function forgetUndoable(): void {
  clearTimeout(undoable?.timer);
  forgetDeleted();
  undoable = undefined;
}

function forgetDeleted(): void {
  for (const { id } of undoable?.deleted ?? []) {
    drafts.forget(id);
    void forget(id);
  }
}

function closeUndo(): void {
  if (page.undo.contains(document.activeElement)) page.newChat.focus();
  page.undo.hidden = true;
}

async function undo(): Promise<void> {
  if (!undoable) return;
  const { deleted, shown, timer } = undoable;
  clearTimeout(timer);
  undoable = undefined;
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
  const more = make("button", { type: "button", id: `more-${id}`, class: "more", title: "More", "aria-label": `More for “${title}”` }, icon(MORE));
  opensMenu(more, title, [
    ["Rename", () => editTitle(id, title)],
    ["Save as Markdown", () => void saveOne(id, "md")],
    ["Save as JSON", () => void saveOne(id, "json")],
  ]);
  return make("li", {}, open, mark, more, bin);
}

/** Puts a field in the place of a title. */
function editTitle(id: string, title: string): void {
  const open = document.getElementById(`chat-${id}`);
  if (!open) return;
  const field = make("input", { type: "text", "aria-label": "Title of the conversation", maxlength: String(LONGEST_TITLE), autocomplete: "off" });
  field.value = title;
  const line = open.parentElement!;
  const form = make("form", { class: "renaming" }, field);
  renaming = true;
  let ended = false;
  const end = async (keep: boolean) => {
    if (ended) return;
    ended = true;
    const words = field.value.replace(/\s+/g, " ").trim();
    const hadFocus = form.contains(document.activeElement);
    if (keep && words !== "" && words !== title) {
      await rename(id, words);
      await readTitle(id);
      page.status.textContent = `Renamed to “${words}”`;
    }
    renaming = false;
    await showList();
    if (hadFocus) document.getElementById(`chat-${id}`)?.focus();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void end(true);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    // The drawer stays open, and a reply goes on.
    event.preventDefault();
    event.stopPropagation();
    void end(false);
  });
  field.addEventListener("blur", () => void end(true));
  line.replaceChildren(form);
  field.select();
}

/** Saves conversations as a file. */
function save(all: readonly Conversation[], title: string, kind: "json" | "md"): void {
  const [text, type] = kind === "json" ? [toJson(all), "application/json"] : [toMarkdown(all), "text/markdown"];
  const name = fileName(title, kind);
  download(name, new Blob([text], { type }));
  page.status.textContent = `Saved ${name}`;
}

async function saveOne(id: string, kind: "json" | "md"): Promise<void> {
  const found = await conversation(id);
  if (found) save([found], found.title, kind);
}

/** Adds the conversations of a file to those that are here. */
async function importFile(file: File): Promise<void> {
  const refuse = (why: string) => {
    page.drawer.close();
    showAlert(`“${file.name}” was not imported: ${why.replace(/\.?$/, ".")}`);
  };
  if (file.size > MOST) return refuse(`expected at most ${format.bytes(MOST)}, found ${format.bytes(file.size)}`);
  try {
    const all = parse(await file.text());
    const added = await foreign(all);
    await add(added);
    const here = all.length - added.length;
    page.search.value = "";
    await showList();
    page.status.textContent = page.fileNote.textContent = `Imported ${format.plural(added.length, "conversation")}${here > 0 ? `; ${here} were here already` : ""}.`;
  } catch (error) {
    if (error instanceof ImportError) return refuse(error.message);
    const full = error instanceof DOMException && error.name === "QuotaExceededError";
    refuse(full ? "there is no storage left for this page" : `the browser could not read or store it (${String(error)})`);
  }
}

/** Puts the list where it belongs at this width. */
function place(): void {
  if (page.drawer.open) page.drawer.close();
  if (page.chats.parentElement !== document.body) document.querySelector(".skip")?.after(page.chats);
}

export function initChats(): void {
  initMenu();
  page.search.addEventListener("input", async () => {
    await showList();
    const count = page.chatList.childElementCount;
    page.status.textContent = page.search.value.trim() === "" ? "" : `${format.plural(count, "conversation")} found`;
  });
  page.search.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || page.search.value === "") return;
    // Neither the drawer nor a reply is meant.
    event.preventDefault();
    event.stopPropagation();
    page.search.value = "";
    void showList();
  });
  page.importChats.addEventListener("click", () => page.importFile.click());
  page.importFile.addEventListener("change", () => {
    const [file] = page.importFile.files ?? [];
    if (file) void importFile(file);
    page.importFile.value = "";
  });
  const everything = async (kind: "json" | "md") => save(await wholeConversations(), `conversations ${new Date().toISOString().slice(0, 10)}`, kind);
  opensMenu(page.exportChats, "Export all", [
    ["As JSON, for import", () => void everything("json")],
    ["As Markdown", () => void everything("md")],
  ]);
  onDeleted.add(() => void writeAgain().then(showList));
  onList.change = () => void showList();
  onChange((id) => {
    void changedElsewhere(id);
    void showList();
  }, drafts.forget);
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
  // Perhaps nobody is left to undo it. A page that comes back restores the messages only.
  addEventListener("pagehide", forgetDeleted);
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
