// The fixed elements of index.html, by id.
function byId<T extends HTMLElement>(id: string, kind: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`index.html has no <${kind.name}> with id ${id}`);
  return found;
}

const button = (id: string) => byId(id, HTMLButtonElement);
const input = (id: string) => byId(id, HTMLInputElement);
const any = (id: string) => byId(id, HTMLElement);

export const page = {
  model: button("model"),
  modelName: any("model-name"),
  modelSize: any("model-size"),
  newChat: button("new-chat"),
  theme: button("theme"),
  openSettings: button("open-settings"),
  loading: any("loading"),
  loadingName: any("loading-name"),
  loadingSize: any("loading-size"),
  loadingBar: byId("loading-bar", HTMLProgressElement),
  loadingCancel: button("loading-cancel"),
  welcome: any("welcome"),
  about: any("about"),
  unkept: any("unkept"),
  suggestions: any("suggestions"),
  conversation: byId("conversation", HTMLOListElement),
  alert: any("alert"),
  alertText: any("alert-text"),
  alertRetry: button("alert-retry"),
  alertClose: button("alert-close"),
  foot: any("foot"),
  composer: byId("composer", HTMLFormElement),
  prompt: byId("prompt", HTMLTextAreaElement),
  send: button("send"),
  status: any("status"),
  drop: any("drop"),
  file: input("file"),
  settings: byId("settings", HTMLDialogElement),
  closeSettings: button("close-settings"),
  facts: any("facts"),
  openFile: button("open-file"),
  urlForm: byId("url-form", HTMLFormElement),
  url: input("url"),
  chats: any("chats"),
  openChats: button("open-chats"),
  chatList: any("chat-list"),
  noChats: any("no-chats"),
  chatsKept: any("chats-kept"),
  undo: any("undo"),
  undoText: any("undo-text"),
  undoButton: button("undo-button"),
  forgetChats: button("forget-chats"),
  drawer: byId("drawer", HTMLDialogElement),
  closeDrawer: button("close-drawer"),
  models: byId("models", HTMLDialogElement),
  closeModels: button("close-models"),
  offers: any("offers"),
  kept: any("kept"),
  keptNote: any("kept-note"),
  gauge: any("gauge"),
  gaugeSpeed: any("gauge-speed"),
  gaugeMeter: byId("gauge-meter", HTMLMeterElement),
  gaugeContext: any("gauge-context"),
  gaugeMemory: any("gauge-memory"),
  gaugeBackend: any("gauge-backend"),
  compute: byId("compute", HTMLFormElement),
  backend: byId("backend", HTMLSelectElement),
  backendNote: any("backend-note"),
  threads: byId("threads", HTMLSelectElement),
  context: input("context"),
  computeNote: any("compute-note"),
  thinking: input("thinking"),
  thinkingNote: any("thinking-note"),
  sampling: byId("sampling", HTMLFormElement),
  preset: byId("preset", HTMLSelectElement),
  temperature: input("temperature"),
  topK: input("top-k"),
  topP: input("top-p"),
  maxTokens: input("max-tokens"),
  seed: input("seed"),
  system: byId("system", HTMLTextAreaElement),
};

/** Makes an element; `null` and `false` children are left out. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string> = {},
  ...children: (Node | string | null | false)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  for (const child of children) if (child) element.append(child);
  return element;
}

/** An icon drawn by the given path, or a symbol of index.html (`#name`). */
export function icon(path: string, viewBox = "0 0 24 24"): SVGElement {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", viewBox);
  svg.setAttribute("aria-hidden", "true");
  const shape = document.createElementNS(ns, path.startsWith("#") ? "use" : "path");
  shape.setAttribute(path.startsWith("#") ? "href" : "d", path);
  svg.append(shape);
  return svg;
}
