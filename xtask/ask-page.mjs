// ask-page.mjs URL MESSAGE [PNG]: opens the chat page in a headless browser, sends the message, waits for the end of
// the streamed reply and prints it; writes a screenshot to PNG, and one of the dark face beside it (page.png, page-dark.png). CHROME is the path of the browser. Fails if there is no
// reply.
import { chromium } from "playwright-core";

const [url, message, picture] = process.argv.slice(2);
/** The model loads in about a second; slow machines get a hundred times that. */
const PATIENCE = 120_000;

const browser = await chromium.launch({
  executablePath: process.env.CHROME,
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
try {
  const page = await browser.newPage({ viewport: { width: 900, height: 520 } });
  page.setDefaultTimeout(PATIENCE);
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(url);
  await page.fill("#prompt", message);
  await page.click("#send:enabled");
  const reply = page.locator("#conversation [data-role=assistant]").last();
  await reply.locator("xpath=self::*[@data-state='done']").waitFor();
  const text = (await reply.locator("[data-part=text]").innerText()).trim();
  if (errors.length > 0) throw new Error(errors.join("\n"));
  if (text === "") throw new Error("the reply is empty");
  if (picture) {
    // The speed belongs to the machine that makes the picture, the outline to the field with the focus.
    await page.evaluate(() => {
      for (const speed of document.querySelectorAll(".figures, #gauge-speed")) speed.style.visibility = "hidden";
      document.activeElement?.blur();
    });
    for (const [colorScheme, path] of [["light", picture], ["dark", picture.replace(/(?=\.png$)/, "-dark")]]) {
      await page.emulateMedia({ colorScheme });
      await page.screenshot({ path, animations: "disabled" });
    }
  }
  console.log(`> ${message}\n${text}`);
} catch (error) {
  console.error(`the page gave no reply: ${error.message}`);
  process.exitCode = 1;
} finally {
  await browser.close();
}
