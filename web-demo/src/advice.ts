// What an error means to the person in front of the page.
import { ShohinError } from "shohin";

export function advice(thrown: unknown, subject: string): string {
  if (!(thrown instanceof ShohinError)) return `Something went wrong: ${String(thrown)}`;
  const detail = thrown.message.replace(/\.?$/, ".");
  switch (thrown.code) {
    case "network":
      return `${subject} could not be downloaded. Check the connection; the server also has to allow other sites to read the file (CORS).`;
    case "http":
    case "read":
    case "argument":
      return `${subject} could not be loaded: ${detail}`;
    case "malformed":
      return `${subject} is not a GGUF model, or it is damaged: ${detail}`;
    case "truncated":
      return `${subject} is incomplete: ${detail}`;
    case "memory":
      return `${subject} does not fit into this tab's memory: ${detail}`;
    case "context_full":
      return "This message is longer than the model can hold. Shorten it, or start a new chat.";
    case "crashed":
      return `The engine stopped unexpectedly; the model is being loaded again. (${thrown.message})`;
    case "wasm":
    case "worker":
      return `The engine could not be started: ${detail}`;
    default:
      return `${subject} cannot be used: ${detail}`;
  }
}
