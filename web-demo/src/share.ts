// Sharing an answer: as a picture drawn in the page, or as a link.
import { encode } from "./answer.js";
import { download } from "./export.js";
import type { Turn } from "./history.js";
import { make, page } from "./page.js";
import { closes } from "./settings.js";

const FILE = "shohin-answer.png";
const [WIDTH, EDGE, SIZE, LEADING] = [1080, 64, 32, 48];
/** Lines of the question and of the answer that a picture shows. */
const [QUESTION_LINES, ANSWER_LINES] = [12, 48];

/** How the reply came about, as far as the page knows. */
export function facts({ model, figures, offline, imported }: Turn): string[] {
  const place = imported ? "Imported from a file" : `Ran entirely in a browser tab${offline ? ", offline" : ""}`;
  return [model, figures, place].filter((fact): fact is string => Boolean(fact));
}

/** The text of a reply that is shown, without its thoughts. */
function textOf(body: Element): string {
  const lines = [...body.children].flatMap((block) => {
    if (block.matches(".thoughts")) return [];
    if (block.matches("ul, ol")) return [...block.children].map((item, i) => `${block.matches("ol") ? `${(block as HTMLOListElement).start + i}.` : "•"} ${item.textContent}`).join("\n");
    if (block.matches(".code")) return block.querySelector("pre")?.textContent ?? "";
    const rows = [...block.querySelectorAll("tr")];
    if (rows.length > 0) return rows.map((row) => [...row.cells].map((cell) => cell.textContent).join("  ")).join("\n");
    return block.textContent ?? "";
  });
  return lines.join("\n\n").trim();
}

/** Breaks a text into lines of a width, and cuts it after so many. */
function wrap(context: CanvasRenderingContext2D, text: string, width: number, most: number): string[] {
  const fits = (line: string) => context.measureText(line).width <= width;
  const lines: string[] = [];
  for (const paragraph of text.split("\n")) {
    let line = "";
    for (const word of paragraph.split(/(?<=\s)/)) {
      if (fits((line + word).trimEnd())) {
        line += word;
        continue;
      }
      if (line !== "") lines.push(line.trimEnd());
      line = "";
      // Of a word that is longer than a line, as many characters as fit.
      for (const character of word) {
        if (line !== "" && !fits(line + character)) {
          lines.push(line);
          line = "";
        }
        line += character;
        if (lines.length > most) break;
      }
      if (lines.length > most) break;
    }
    lines.push(line.trimEnd());
    if (lines.length > most) break;
  }
  return lines.length > most ? [...lines.slice(0, most - 1), "… (shortened)"] : lines;
}

/** The colors of the page as they are now. */
function palette(): (name: string) => string {
  const probe = make("span", { hidden: "" });
  document.body.append(probe);
  const style = getComputedStyle(probe);
  const names = ["paper", "ink", "quiet", "line", "moss-soft", "leaf", "bark", "pot"];
  const colors = new Map(names.map((name) => ((probe.style.color = `var(--${name})`), [name, style.color])));
  probe.remove();
  return (name) => colors.get(name) ?? "";
}

/** Draws a question, its answer and the facts. */
function draw(canvas: HTMLCanvasElement, question: string, answer: string, facts: readonly string[]): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  const style = getComputedStyle(document.documentElement);
  const [sans, serif] = [getComputedStyle(document.body).fontFamily, style.getPropertyValue("--serif")];
  const color = palette();
  const font = (size: number, family = sans, weight = 400) => (context.font = `${weight} ${size}px ${family}`);
  const inner = WIDTH - 2 * EDGE;

  font(SIZE);
  const asked = wrap(context, question, inner - 64, QUESTION_LINES);
  const said = wrap(context, answer, inner, ANSWER_LINES);
  const bubble = asked.length * LEADING + 40;
  const height = EDGE + 64 + 40 + bubble + 40 + said.length * LEADING + 40 + 32 + facts.length * 40 + EDGE - 16;
  canvas.width = WIDTH;
  canvas.height = height;
  // Resizing resets the rest.
  context.textBaseline = "middle";
  context.fillStyle = color("paper");
  context.fillRect(0, 0, WIDTH, height);
  let y = EDGE;

  context.save();
  context.translate(EDGE, y);
  context.scale(2, 2);
  for (const [part, fill] of [["pot", "pot"], ["trunk", "bark"], ["leaf", "leaf"]] as const) {
    context.fillStyle = color(fill);
    context.fill(new Path2D(document.querySelector(`#mark .${part}`)?.getAttribute("d") ?? ""));
  }
  context.restore();
  context.fillStyle = color("ink");
  font(40, serif, 600);
  context.fillText("Shohin", EDGE + 80, y + 34);
  y += 64 + 40;

  font(SIZE);
  const widest = Math.max(...asked.map((line) => context.measureText(line).width)) + 64;
  context.fillStyle = color("moss-soft");
  context.beginPath();
  context.roundRect(WIDTH - EDGE - widest, y, widest, bubble, [34, 34, 10, 34]);
  context.fill();
  context.fillStyle = color("ink");
  asked.forEach((line, i) => context.fillText(line, WIDTH - EDGE - widest + 32, y + 20 + (i + 0.5) * LEADING));
  y += bubble + 40;
  said.forEach((line, i) => context.fillText(line, EDGE, y + (i + 0.5) * LEADING));
  y += said.length * LEADING + 40;

  context.fillStyle = color("line");
  context.fillRect(EDGE, y, inner, 2);
  y += 32;
  context.fillStyle = color("quiet");
  font(26);
  facts.forEach((fact, i) => context.fillText(wrap(context, fact, inner, 1)[0] ?? "", EDGE, y + (i + 0.5) * 40));
}

let picture: Promise<Blob | null> = Promise.resolve(null);
let file: File | undefined;
let link: string | undefined;

function tell(words: string): void {
  page.shareNote.textContent = words;
}

/** Opens the sheet for a reply; `body` is what shows it. */
export async function openShare(question: string, turn: Turn, body: Element): Promise<void> {
  initShare();
  const known = facts(turn);
  draw(page.sharePicture, question, textOf(body), known);
  page.sharePicture.setAttribute("aria-label", `Picture of the question, the answer and: ${known.join("; ")}`);
  file = link = undefined;
  tell("");
  page.shareNow.hidden = page.copyLink.disabled = true;
  page.linkNote.textContent = "";
  page.share.showModal();
  page.closeShare.focus();
  picture = new Promise((resolve) => page.sharePicture.toBlob(resolve, "image/png"));
  const source = known.join(" · ");
  const [drawn, fragment] = await Promise.all([picture, encode({ question, answer: turn.content, ...(source && { source }) })]);
  if (drawn) file = new File([drawn], FILE, { type: "image/png" });
  page.shareNow.hidden = !file || !(navigator.canShare?.({ files: [file] }) ?? false);
  link = fragment && `${location.href.split(/[?#]/)[0]}#answer=${fragment}`;
  page.copyLink.disabled = link === undefined;
  page.linkNote.textContent = link
    ? "The link holds the question and the answer after its # sign, which browsers send to no server. Everybody who has the link can read them."
    : "This answer is too long for a link.";
}

let isReady = false;

function initShare(): void {
  if (isReady) return;
  isReady = true;
  closes(page.share, page.closeShare);
  page.copyPicture.hidden = typeof ClipboardItem === "undefined" || navigator.clipboard?.write === undefined;
  page.shareNow.addEventListener("click", async () => {
    try {
      // At once: the browser allows it only right after the press.
      if (file) await navigator.share({ files: [file], title: "Shohin" });
    } catch (error) {
      // Closing the browser's sheet is no failure.
      if (!(error instanceof DOMException && error.name === "AbortError")) tell("The browser could not share the picture. Save or copy it instead.");
    }
  });
  page.copyPicture.addEventListener("click", async () => {
    try {
      const blob = picture.then((blob) => blob ?? Promise.reject(new Error("the picture is too large")));
      await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
      tell("The picture is copied.");
    } catch {
      tell("The browser does not allow copying pictures. Save it instead.");
    }
  });
  page.savePicture.addEventListener("click", () => {
    if (!file) return tell("The browser could not make the picture.");
    download(FILE, file);
    tell(`Saved ${FILE}.`);
  });
  page.copyLink.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(link ?? "");
      tell("The link is copied.");
    } catch {
      tell("The browser does not allow copying.");
    }
  });
}
