// The conversation on the page: what was said, saying it, and going back on it.
import { ShohinError, type ChatFinish, type Engine, type Message } from "shohin";
import { advice, isGpuTrouble } from "./advice.js";
import { see, showUnsure, unsureOf, watch, type Unsure } from "./confidence.js";
import { copyButton } from "./copy.js";
import * as drafts from "./drafts.js";
import * as format from "./format.js";
import { conversation, discard, forget, isDeleted, keep, newId, snapshotOf, tidySnapshots, type Conversation, type Turn } from "./history.js";
import { loadedEngine, modelFacts, reload, showAlert, whenReady } from "./models.js";
import { icon, make, page } from "./page.js";
import { missingPart } from "./parts.js";
import * as preferences from "./preferences.js";
import { loadProse, showText } from "./reply-text.js";
import { avoidGpu, chatOptions, repliesInJson, systemPrompt } from "./settings.js";
import { answer, MOST_ROUNDS } from "./tools.js";

const AGAIN = "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4";
const EDIT = "M4 20h4L19 9l-4-4L4 16zM13 7l4 4";
const CONTINUE = "M8 5v14l11-7z";
const SHARE = "M12 4v11M7.500 8.500 12 4l4.500 4.500M5 13v6h14v-6";
const LAST = "shohin.conversation";
/** How often a reply is kept while it is being written, in milliseconds. */
const KEEP_EVERY = 1000;
/** A model's memory of a conversation is kept up to this size, in bytes. */
const MOST_REMEMBERED = 64 << 20;

/** Ends a reply; `started` once the model is at it. */
type Reply = AbortController & { started?: boolean };

/** What a reply takes the place of, once it begins: messages, and how they are shown. */
interface Replaced {
  turns: readonly Turn[];
  nodes: readonly Node[];
  /** Messages that another tab has added after those, and that are not shown here. */
  unseen?: readonly Turn[];
}

/** Called with what the engine reports of a reply. */
export const onFinish = new Set<(finish: ChatFinish) => void>();

/** Called when the list of conversations has to be shown anew. */
export const onList = { change: () => {} };

/** Called when a reply has ended; without `finish` it was broken off. */
export const onReply = { end: (_question: string, _finish?: ChatFinish) => {} };

let talk: Conversation = fresh();
let running: Reply | undefined;
/** What the engine below remembers, if it was asked. */
let recalled: { engine: Engine; id: string } | undefined;

function fresh(): Conversation {
  return { id: newId(), title: "", updated: 0, turns: [] };
}

/** Which conversation is shown. */
export function currentId(): string {
  return talk.id;
}

export function isEmpty(): boolean {
  return talk.turns.length === 0;
}

export function isBusy(): boolean {
  return running !== undefined;
}

/** Ends the reply that is being written; what is there stays. */
export function stop(): void {
  running?.abort();
}

/** Ends what the model before was writing, and says who goes on. */
export function changeModel(name: string): void {
  if (running?.started) stop();
  if (talk.turns.length > 0) page.conversation.append(make("li", { class: "note" }, `${name} goes on from here.`));
}

function show(next: Conversation): void {
  stop();
  running = undefined;
  talk = next;
  remember();
  drafts.forget(
    talk.id,
    talk.turns.map(({ id }) => id),
  );
  page.conversation.replaceChildren(...talk.turns.flatMap((turn, i) => showTurn(turn, i)));
  showGauge();
  showState();
}

/** Leaves the conversation for an empty one. */
export function newChat(): void {
  show(fresh());
  showAlert(undefined);
  page.status.textContent = "New chat";
  onList.change();
}

/** Shows a kept conversation. */
export async function openChat(id: string): Promise<void> {
  const [found] = await Promise.all([conversation(id), loadProse()]);
  if (!found) return;
  show(found);
  showAlert(undefined);
  page.status.textContent = `Conversation: ${found.title}`;
  toEnd();
  onList.change();
}

/** Shows what was shown before the page was loaded again. */
export async function resume(): Promise<void> {
  const id = preferences.read(LAST, "tab");
  const found = id ? await conversation(id) : undefined;
  if (found) await loadProse();
  // Somebody may have been quicker.
  if (!found || talk.turns.length > 0) return;
  show(found);
  toEnd();
}

/** Follows what another tab has done to a conversation; while a reply or an edit is being written here, later. */
export async function changedElsewhere(id: string): Promise<void> {
  await readTitle(id);
  const isAway = () => id !== talk.id || isEmpty() || isBusy() || document.activeElement?.closest(".editing");
  if (isAway()) return;
  const [found] = await Promise.all([conversation(id), loadProse()]);
  if (isAway() || JSON.stringify(found?.turns) === JSON.stringify(talk.turns)) return;
  const follows = isAtEnd();
  if (found) show(found);
  else if (isDeleted(id)) newChat();
  if (follows) toEnd();
}

/** Takes over the title that was given to the conversation on the page. */
export async function readTitle(id: string): Promise<void> {
  const found = id === talk.id ? await conversation(id) : undefined;
  if (found?.named && id === talk.id) Object.assign(talk, { title: found.title, named: true });
}

/** So that this tab comes back to the same conversation. */
function remember(): void {
  preferences.write(LAST, talk.id, "tab");
}

/** Writes these messages of the conversation, and removes others. */
async function keepTalk(put: readonly Turn[], removed: readonly Turn[] = []): Promise<void> {
  const first = talk.turns[0];
  if (first && !talk.named) talk.title = first.content.replace(/\s+/g, " ").slice(0, 80);
  talk.updated = Date.now();
  remember();
  await keep(talk, put, removed);
  onList.change();
}

/** Brings buttons and the welcome into agreement with what is going on. */
export function showState(): void {
  page.welcome.hidden = talk.turns.length > 0;
  page.send.toggleAttribute("data-busy", isBusy());
  page.send.title = isBusy() ? "Stop" : "Send";
  page.send.setAttribute("aria-label", page.send.title);
  page.send.disabled = !isBusy() && page.prompt.value.trim() === "";
  const replies = page.conversation.querySelectorAll(".turn.assistant");
  for (const reply of replies) {
    for (const button of reply.querySelectorAll<HTMLElement>(".again, .continue")) button.hidden = isBusy() || reply !== replies[replies.length - 1];
  }
  for (const edit of page.conversation.querySelectorAll<HTMLButtonElement>(".edit")) edit.disabled = isBusy();
}

export function initSuggestions(): void {
  page.suggestions.addEventListener("click", ({ target }) => {
    if (!(target instanceof HTMLButtonElement)) return;
    page.prompt.focus();
    void ask(target.textContent);
  });
}

/** Context and memory in use, and how fast the last reply came. */
export function showGauge(finish?: ChatFinish): void {
  const engine = loadedEngine();
  page.gauge.hidden = engine === undefined;
  if (!engine) return;
  const { context, memory, backend } = engine.info;
  page.gaugeBackend.textContent = backend === "webgpu" ? "on the GPU" : "on the CPU";
  const used = finish ? finish.usage.promptTokens + finish.usage.completionTokens : 0;
  page.gaugeMeter.max = context;
  page.gaugeMeter.value = used;
  page.gaugeContext.textContent = finish ? `${format.count(used)} of ${format.count(context)}` : format.count(context);
  page.gaugeMeter.hidden = !finish;
  page.gaugeSpeed.textContent = finish && finish.timings.tokensPerSecond > 0 ? speed(finish.timings.tokensPerSecond) : "";
  page.gaugeMemory.textContent = `${format.bytes(memory.weights + memory.kv + memory.scratch)} of memory`;
}

function showTurn(turn: Turn, index: number): HTMLElement[] {
  const notes = turn.dropped ? [make("li", { class: "note dropped" }, forgotten(turn.dropped))] : [];
  if (turn.role === "user") return [...notes, userTurn(turn, index)];
  const { element, body, calls, legend, tools } = assistantTurn();
  element.dataset["state"] = "done";
  showCalls(calls, turn.steps);
  showReply(body, turn.content, turn.reasoning, turn.json);
  showUnsure(body, legend, turn.content, turn.unsure);
  showTools(tools, turn);
  return [...notes, element];
}

function userTurn(turn: Turn, index: number): HTMLElement {
  const text = make("div", { class: "text", "data-part": "text" }, turn.content);
  const edit = make("button", { type: "button", class: "edit", title: "Edit", "aria-label": "Edit the message" }, icon(EDIT));
  const tools = make("div", { class: "tools" }, copyButton(() => turn.content, "Copy the message"), edit);
  const element = make("li", { class: "turn user", "data-role": "user" }, make("span", { class: "unseen" }, "You: "), text, tools);
  edit.addEventListener("click", () => {
    if (isBusy()) return;
    const form = editor(element, turn, index);
    element.replaceWith(form);
    form.querySelector("textarea")?.focus();
  });
  // The edit goes on after a reload.
  return drafts.edit(talk.id, turn.id) === undefined ? element : editor(element, turn, index);
}

/** A field for a message's place. Sending it replaces everything that came after. */
function editor(element: HTMLElement, turn: Turn, index: number): HTMLElement {
  const { id } = talk;
  const text = drafts.edit(id, turn.id) ?? turn.content;
  const field = make("textarea", { "aria-label": "Edit the message", rows: String(Math.min(8, text.split("\n").length + 1)) });
  field.value = text;
  const send = make("button", { type: "submit", class: "button strong" }, "Send");
  const cancel = make("button", { type: "button", class: "button" }, "Cancel");
  const form = make("form", { class: "editing" }, field, make("div", { class: "buttons" }, cancel, send));
  const end = () => {
    drafts.keepEdit(id, turn.id);
    form.replaceWith(element);
    element.querySelector<HTMLElement>(".edit")?.focus();
    void changedElsewhere(id);
  };
  cancel.addEventListener("click", end);
  field.addEventListener("input", () => drafts.keepEdit(id, turn.id, field.value === turn.content ? undefined : field.value));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      end();
    }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (text !== "" && !isBusy()) void sendEdit(form, text, turn, index);
  });
  form.addEventListener("focusout", ({ relatedTarget }) => {
    if (!(relatedTarget instanceof Node && form.contains(relatedTarget))) void changedElsewhere(id);
  });
  return form;
}

async function sendEdit(form: HTMLElement, text: string, turn: Turn, index: number): Promise<void> {
  const { id } = talk;
  const kept = (await conversation(id))?.turns ?? [];
  if (isBusy() || id !== talk.id || !form.isConnected) return;
  const shown = new Set(talk.turns.map(({ id }) => id));
  const unseen = kept.filter(({ id, at }) => at >= turn.at && !shown.has(id));
  const nodes: ChildNode[] = [form];
  for (let next = form.nextSibling; next; next = next.nextSibling) nodes.push(next);
  page.prompt.focus();
  for (const node of nodes) node.remove();
  void say(text, { turns: talk.turns.splice(index), nodes, unseen });
}

/** Shows a reply; JSON is set out once it is whole. */
function showReply(body: HTMLElement, content: string, reasoning?: string, json = false, whole = true): void {
  showText(body, json && content !== "" ? `\`\`\`\`\`json\n${setOut(content)}\n\`\`\`\`\`` : content, reasoning, whole);
}

function setOut(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** Shows which tools were called, and what they answered. */
function showCalls(list: HTMLElement, steps: readonly Message[] = []): void {
  list.hidden = steps.length === 0;
  const results = steps.filter(({ role }) => role === "tool");
  const calls = steps.flatMap(({ toolCalls }) => toolCalls ?? []);
  list.replaceChildren(
    ...calls.map(({ name, arguments: given }, i) =>
      make("li", {}, make("span", { class: "name" }, name), make("code", {}, given), make("span", { class: "unseen" }, " answered "), make("code", { class: "result" }, results[i]?.content ?? "")),
    ),
  );
}

function assistantTurn(): { element: HTMLElement; body: HTMLElement; calls: HTMLElement; legend: HTMLElement; tools: HTMLElement } {
  const calls = make("ul", { class: "calls", "aria-label": "Calls of tools", hidden: "" });
  const body = make("div", { class: "text", "data-part": "text" });
  const legend = make("details", { class: "unsure", hidden: "" });
  const tools = make("div", { class: "tools" });
  const element = make("li", { class: "turn assistant", "data-role": "assistant" });
  element.append(icon("#mark", "0 0 32 32"), make("div", {}, make("span", { class: "unseen" }, "Reply: "), calls, body, legend), tools);
  return { element, body, calls, legend, tools };
}

/** Sends a message of the visitor, in the place of others if they are given, and shows the reply as it comes. */
export async function say(text: string, replaced?: Replaced): Promise<void> {
  if (!isBusy()) await reply(add(text), replaced);
}

/** Sends a question that the page suggests. */
export async function ask(question: string): Promise<void> {
  if (!isBusy()) await reply(add(question), undefined, undefined, true);
}

/** Adds a message of the visitor to the conversation. */
function add(text: string): Turn {
  // Clocks may be set back.
  const at = Math.max(Date.now(), (talk.turns.at(-1)?.at ?? 0) + 1);
  const turn: Turn = { id: newId(), at, role: "user", content: text };
  talk.turns.push(turn);
  page.conversation.append(userTurn(turn, talk.turns.length - 1));
  return turn;
}

/** What the model is told: the conversation without what the page adds to it. */
function prompt(turns: readonly Turn[]): Message[] {
  const system = systemPrompt();
  const messages = turns.flatMap(({ role, content, reasoning, steps = [] }): Message[] => [...steps, { role, content, ...(reasoning !== undefined && { reasoning }) }]);
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

/**
 * Answers the last message, or continues the reply `from`, which is among those replaced. They are deleted once the reply begins: if
 * nothing comes of it, they are back, or the message in the field: one that was `suggested` only if the visitor has nothing there.
 */
async function reply(question: Turn, replaced?: Replaced, from?: Turn, suggested = false): Promise<void> {
  const abort: Reply = new AbortController();
  running = abort;
  const mine = talk;
  const { element, body, calls, legend, tools } = assistantTurn();
  const shownQuestion = page.conversation.lastElementChild;
  const json = repliesInJson();
  element.dataset["state"] = "busy";
  element.setAttribute("aria-busy", "true");
  page.conversation.append(element);
  showAlert(undefined);
  showState();
  toEnd();

  let text = from?.content ?? "";
  let thoughts = from?.reasoning ?? "";
  let steps: Message[] = [...(from?.steps ?? [])];
  const soFar = (): Message => ({ role: "assistant", content: text, ...(thoughts && { reasoning: thoughts }) });
  let prefix = from && soFar();
  let tokens = 0;
  let first = 0;
  let kept = performance.now();
  let finish: ChatFinish | undefined;
  let failure: unknown;
  let dirty = false;
  let ended = false;
  const asked = [...mine.turns];
  const paint = () => {
    dirty = false;
    if (ended || mine !== talk) return;
    const follows = isAtEnd();
    showCalls(calls, steps);
    showReply(body, text, thoughts, json, false);
    if (!finish && tokens > 1) {
      tools.replaceChildren(make("span", { class: "figures" }, speed((tokens - 1) / ((performance.now() - first) / 1000))));
    }
    if (follows) toEnd();
  };
  const before = { text: text.trim(), thoughts: thoughts.trim(), steps: steps.length };
  const begun = () => text.trim() !== before.text || thoughts.trim() !== before.thoughts || steps.length > before.steps;
  let replaces = [...(replaced?.turns ?? []), ...(replaced?.unseen ?? [])];
  /** What to delete now that the reply has begun; not twice, as another tab may have written it again. */
  const takeReplaced = () => {
    const turns = replaces;
    replaces = [];
    for (const { id } of turns) drafts.keepEdit(mine.id, id);
    return turns;
  };
  const place: Pick<Turn, "id" | "at" | "model" | "offline"> = { id: newId(), at: question.at + 0.5 };
  let online = navigator.onLine;
  const wasOnline = () => (online = true);
  addEventListener("online", wasOnline);
  const extras = () => ({ ...(steps.length > 0 && { steps }), ...(json && { json }) });
  const unfinished = (): Turn => ({ ...place, role: "assistant", content: text.trim(), ...(thoughts && { reasoning: thoughts }), ...extras(), unfinished: true, figures: "Stopped" });
  // Should the page be closed while the model writes, what is there is not lost. The message is written with its reply, as
  // another tab may have removed it meanwhile.
  const keepSoFar = () => {
    if (ended || mine !== talk || !begun()) return;
    kept = performance.now();
    if (replaces.length > 0) void keepTalk([question, unfinished()], takeReplaced());
    else void keep(mine, [question, unfinished()]);
  };
  addEventListener("pagehide", keepSoFar);
  if (!replaced) void keepTalk([question]);
  try {
    const stopped = new Promise<never>((_, reject) => {
      abort.signal.addEventListener("abort", () => reject(new ShohinError("aborted", "stopped")), { once: true });
    });
    const write = async () => {
      const engine = await Promise.race([whenReady(), stopped]);
      if (!engine) throw new ShohinError("argument", "no model is loaded");
      abort.started = true;
      const model = modelFacts();
      if (model) place.model = model;
      await recall(engine, mine.id);
      for (let round = 0; ; round++) {
        const { tools, ...options } = chatOptions();
        const more = round < MOST_ROUNDS && tools;
        const messages = [...prompt(asked), ...steps, ...(prefix ? [prefix] : [])];
        for await (const chunk of engine.chat(messages, { ...options, continueFinalMessage: prefix !== undefined, ...(more && { tools: more }), ...watch(), signal: abort.signal })) {
          see(chunk);
          if (tokens === 0) first = performance.now();
          text += chunk.text;
          thoughts += chunk.reasoning ?? "";
          tokens += chunk.tokens.length;
          finish = chunk.finish;
          // At most once a frame, however fast the model is.
          if (!dirty) requestAnimationFrame(paint);
          dirty = true;
          if (replaces.length > 0 || performance.now() - kept > KEEP_EVERY) keepSoFar();
        }
        const message = finish?.message;
        if (!message?.toolCalls?.length || !more) return;
        steps.push(message, ...message.toolCalls.map((call): Message => ({ role: "tool", content: answer(call) })));
        [text, thoughts, finish, prefix] = ["", "", undefined, undefined];
      }
    };
    try {
      await write();
    } catch (error) {
      if (!isGpuTrouble(error) || mine !== talk) throw error;
      avoidGpu(advice(error, "The reply"));
      await reload();
      if (text !== "" || thoughts !== "") prefix = soFar();
      [tokens, finish] = [0, undefined];
      showAlert(advice(error, "The reply"));
      await write();
    }
  } catch (error) {
    failure = error;
  }

  await loadProse();
  removeEventListener("pagehide", keepSoFar);
  removeEventListener("online", wasOnline);
  if (!online && !navigator.onLine) place.offline = true;
  const aborted = failure instanceof ShohinError && (failure.code === "aborted" || failure.code === "disposed");
  if (running === abort) running = undefined;
  if (mine !== talk) {
    // Another conversation is shown by now; what was said in this one stays said.
    if (begun()) {
      await keep(mine, [question, unfinished()], takeReplaced());
      onList.change();
    }
    onReply.end(question.content);
    return;
  }
  const follows = isAtEnd();
  element.removeAttribute("aria-busy");
  paint();
  ended = true;
  tools.replaceChildren();
  if (json && failure instanceof ShohinError && failure.code === "unsupported") showAlert(`The schema in the settings cannot be used: ${failure.message}`);
  else if (failure !== undefined && !aborted) showAlert(advice(failure, "The reply"));
  if (!begun() && failure !== undefined) {
    // Nothing came of it: all is as it was, and the message given back.
    if (replaced) giveBack(replaced, element, shownQuestion);
    else {
      element.remove();
      shownQuestion?.remove();
      talk.turns.pop();
      giveBackMessage(question.content, suggested);
      await keepTalk([], [question]);
    }
    if (isEmpty() && !(await conversation(mine.id))?.turns.length) {
      await discard(mine.id);
      await forget(mine.id);
      if (talk === mine && !isBusy()) talk = fresh();
      onList.change();
    }
  } else {
    const said: Turn = finish ? { ...finish.message, ...place, role: "assistant", ...extras(), figures: figures(finish, aborted) } : { ...unfinished(), figures: figures(finish, aborted) };
    if (finish) said.details = details(finish);
    if (finish?.reason === "length") said.unfinished = true;
    if (steps.filter(({ role }) => role === "assistant").length === MOST_ROUNDS) said.figures += " · no more calls of tools after these";
    const continued = from && said.content.startsWith(from.content) ? from : undefined;
    const length = continued?.content.length ?? 0;
    const unsure = unsureOf(said.content.slice(length))?.map(([at, ...rest]): Unsure => [at + length, ...rest]);
    if (unsure) said.unsure = [...(continued?.unsure ?? []), ...unsure];
    const dropped = finish?.usage.droppedMessages ?? 0;
    talk.turns.push(said);
    const first = finish && showDropped(dropped, said, element);
    showCalls(calls, said.steps);
    showReply(body, said.content, said.reasoning, said.json);
    showUnsure(body, legend, said.content, said.unsure);
    showTools(tools, said);
    showGauge(finish);
    if (finish) for (const listener of onFinish) listener(finish);
    element.dataset["state"] = "done";
    page.status.textContent = said.content;
    await keepTalk(first ? [question, said, first] : [question, said], takeReplaced());
    const engine = loadedEngine();
    if (engine && finish) void remind(engine, mine.id);
  }
  showState();
  onReply.end(question.content, finish);
  if (follows) toEnd();
  await changedElsewhere(mine.id);
  if (failure instanceof ShohinError && (failure.code === "crashed" || failure.code === "worker")) {
    const reason = page.alertText.textContent ?? undefined;
    await reload();
    if (loadedEngine()) showAlert(reason);
  }
}

/** Puts a message back into the field, before what was typed there since. */
function giveBackMessage(text: string, suggested: boolean): void {
  const typed = page.prompt.value.trim() === "" ? undefined : page.prompt.value;
  if (suggested && typed !== undefined) return;
  page.prompt.value = typed === undefined ? text : `${text}\n\n${typed}`;
  if (!suggested) drafts.keepDraft(page.prompt.value);
  page.prompt.dispatchEvent(new Event("input"));
}

/** Puts messages back in whose place nothing came: an edited one with the field and its text. */
function giveBack({ turns, nodes }: Replaced, element: HTMLElement, shownQuestion: Element | null): void {
  if (turns[0]?.role === "user") {
    talk.turns.pop();
    shownQuestion?.remove();
  }
  talk.turns.push(...turns);
  element.replaceWith(...nodes);
  const [first] = nodes;
  if (page.prompt.value === "" && first instanceof HTMLFormElement) first.querySelector("textarea")?.focus();
}

/**
 * Lets an engine take up what one before it remembered of this conversation, so that it need not be read again. What it
 * remembers of another conversation, or of other words, does no harm: an engine uses only what is the same.
 */
async function recall(engine: Engine, id: string): Promise<void> {
  if (recalled?.engine === engine && recalled.id === id) return;
  const before = recalled;
  recalled = { engine, id };
  // An engine that has computed something goes on with that.
  if (before?.engine !== engine) await engine.restore(snapshotOf(id)).catch(() => {});
}

/** Keeps what the engine remembers of this conversation, where that is not too much. */
async function remind(engine: Engine, id: string): Promise<void> {
  recalled = { engine, id };
  if (engine.info.memory.kv > MOST_REMEMBERED) return;
  try {
    await tidySnapshots();
    await engine.save(snapshotOf(id));
  } catch {
    // It is read again, then.
  }
}

function forgotten(messages: number): string {
  return `The model no longer sees the first ${format.plural(messages, "message")}: its memory is full.`;
}

/** Keeps one remark, where the model first saw less than all, and in it how much that is by now; returns where that is. */
function showDropped(dropped: number, turn: Turn, element: HTMLElement): Turn {
  const note = page.conversation.querySelector(".dropped");
  const first = talk.turns.find((turn) => turn.dropped !== undefined) ?? turn;
  // With more room it sees all again.
  if (dropped === 0) {
    delete first.dropped;
    note?.remove();
    return first;
  }
  first.dropped = dropped;
  if (note) note.textContent = forgotten(dropped);
  else element.before(make("li", { class: "note dropped" }, forgotten(dropped)));
  return first;
}

function showTools(tools: HTMLElement, turn: Turn): void {
  const again = make("button", { type: "button", class: "again", title: "Try again", "aria-label": "Try again" }, icon(AGAIN));
  const replace = (from?: Turn) => () => {
    const question = talk.turns.at(-2);
    if (isBusy() || !question || talk.turns.at(-1) !== turn) return;
    talk.turns.pop();
    const note = turn.dropped === undefined ? null : page.conversation.querySelector(".dropped");
    const nodes = [note, tools.parentElement].filter((node) => node !== null);
    for (const node of nodes) node.remove();
    page.prompt.focus();
    void reply(question, { turns: [turn], nodes }, from);
  };
  again.addEventListener("click", replace());
  const more = make("button", { type: "button", class: "continue", title: "Continue", "aria-label": "Continue the reply" }, icon(CONTINUE));
  more.addEventListener("click", replace(turn));
  const share = make("button", { type: "button", class: "share", title: "Share", "aria-label": "Share the reply" }, icon(SHARE));
  share.addEventListener("click", () => {
    const question = talk.turns[talk.turns.indexOf(turn) - 1];
    const body = tools.parentElement?.querySelector("[data-part=text]");
    if (question && body) void import("./share.js").then(({ openShare }) => openShare(question.content, turn, body), missingPart);
  });
  tools.replaceChildren(copyButton(() => turn.content, "Copy the reply"), ...(turn.unfinished ? [more] : []), again, share, make("span", { class: "figures", title: turn.details ?? "" }, turn.figures ?? ""));
}

/** What else there is to know of it. */
function details({ usage }: ChatFinish): string {
  const words = [`${format.plural(usage.promptTokens, "token")} of conversation, ${usage.cachedTokens} of them remembered`];
  if (usage.reasoningTokens > 0) words.push(`${format.plural(usage.reasoningTokens, "token")} of thoughts`);
  return words.join("; ");
}

/** What is said below a reply. */
function figures(finish: ChatFinish | undefined, aborted: boolean): string {
  if (!finish) return aborted ? "Stopped" : "Broken off";
  const parts = [format.plural(finish.usage.completionTokens, "token")];
  if (finish.timings.tokensPerSecond > 0) parts.push(speed(finish.timings.tokensPerSecond));
  if (finish.reason === "length") parts.push("cut at the token limit");
  if (finish.reason === "context_full") parts.push("cut: the model's memory is full");
  return parts.join(" · ");
}

function speed(tokensPerSecond: number): string {
  return `${format.rate(tokensPerSecond)} tokens/s`;
}

/** Shows the end of the conversation. */
export function toEnd(): void {
  scrollTo({ top: document.documentElement.scrollHeight });
}

/** Whether the reader is at the end of the page, or was before it grew by so much, and so wants to follow. */
export function isAtEnd(grown = 0): boolean {
  const { scrollHeight, clientHeight, scrollTop } = document.documentElement;
  return scrollHeight - clientHeight - scrollTop - grown < 80;
}

/** Keeps the end of the conversation in sight when what stands below it grows: an alert, the figures, a longer message. */
export function followFoot(): void {
  // The observer calls once at first, when the layout is known.
  let before = Number.POSITIVE_INFINITY;
  new ResizeObserver(() => {
    const grown = page.foot.offsetHeight - before;
    before = page.foot.offsetHeight;
    if (grown > 0 && talk.turns.length > 0 && isAtEnd(grown)) toEnd();
  }).observe(page.foot);
}
