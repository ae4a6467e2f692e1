// Parts of the page that are fetched after it: none of them is needed for the first frame or the first token.
import { showAlert } from "./models.js";

/** Says that a part of the page could not be fetched. */
export function missingPart(): void {
  showAlert("This part of the page could not be downloaded. Check the connection, then reload the page.");
}

/**
 * Returns a function that fetches a part and starts it, once. So does the first press of one of its buttons, which is pressed again when
 * the part is there.
 */
export function part(load: () => Promise<() => void>, ...buttons: readonly HTMLButtonElement[]): () => Promise<void> {
  let pressed: HTMLButtonElement | undefined;
  let started: Promise<void> | undefined;
  const press = ({ currentTarget }: Event) => {
    pressed = currentTarget as HTMLButtonElement;
    void start();
  };
  const fetched = async () => {
    try {
      const init = await load();
      for (const button of buttons) button.removeEventListener("click", press);
      init();
      pressed?.click();
    } catch {
      started = undefined;
      if (pressed) missingPart();
      pressed = undefined;
    }
  };
  const start = () => (started ??= fetched());
  for (const button of buttons) button.addEventListener("click", press);
  return start;
}
