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
  growth: any("growth"),
  growthTitle: any("growth-title"),
  growthText: any("growth-text"),
  growthBar: byId("growth-bar", HTMLProgressElement),
  growthGo: button("growth-go"),
  growthNo: button("growth-no"),
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
  openInside: button("open-inside"),
  inside: byId("inside", HTMLDialogElement),
  closeInside: button("close-inside"),
  patch: byId("patch", HTMLCanvasElement),
  patchRead: button("patch-read"),
  patchLegend: any("patch-legend"),
  patchNote: any("patch-note"),
  candidates: any("candidates"),
  step: input("step"),
  stepField: any("step-field"),
  stepText: any("step-text"),
  candidatesNote: any("candidates-note"),
  askInside: button("inside-ask"),
  sizes: any("sizes"),
  sizeNote: any("size-note"),
  times: any("times"),
  timeNote: any("time-note"),
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
  search: input("search"),
  noneFound: any("none-found"),
  importChats: button("import-chats"),
  importFile: input("import-file"),
  exportChats: button("export-chats"),
  fileNote: any("file-note"),
  menu: any("menu"),
  install: button("install"),
  notice: any("notice"),
  noticeText: any("notice-text"),
  noticeClose: button("notice-close"),
  ask: byId("ask", HTMLDialogElement),
  askText: any("ask-text"),
  askDetail: any("ask-detail"),
  askYes: button("ask-yes"),
  askNo: button("ask-no"),
  shared: any("shared"),
  sharedTitle: any("shared-title"),
  sharedQuestion: any("shared-question"),
  sharedAnswer: any("shared-answer"),
  sharedSource: any("shared-source"),
  sharedAsk: button("shared-ask"),
  closeShared: button("close-shared"),
  share: byId("share", HTMLDialogElement),
  closeShare: button("close-share"),
  sharePicture: byId("share-picture", HTMLCanvasElement),
  shareNow: button("share-now"),
  copyPicture: button("copy-picture"),
  savePicture: button("save-picture"),
  copyLink: button("copy-link"),
  linkNote: any("link-note"),
  shareNote: any("share-note"),
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
  gaugeOffline: any("gauge-offline"),
  compute: byId("compute", HTMLFormElement),
  backend: byId("backend", HTMLSelectElement),
  backendNote: any("backend-note"),
  measured: any("measured"),
  measuredText: any("measured-text"),
  measure: button("measure"),
  threads: byId("threads", HTMLSelectElement),
  context: input("context"),
  computeNote: any("compute-note"),
  replies: byId("replies", HTMLFormElement),
  thinking: byId("thinking", HTMLSelectElement),
  thinkingNote: any("thinking-note"),
  budget: input("budget"),
  budgetField: any("budget-field"),
  format: byId("format", HTMLSelectElement),
  schema: byId("schema", HTMLTextAreaElement),
  schemaField: any("schema-field"),
  schemaFault: any("schema-fault"),
  tools: input("tools"),
  toolsNote: any("tools-note"),
  confidence: input("confidence"),
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
