// A chat with a model as a hook of React.
import { useCallback, useEffect, useRef, useState } from "react";
import { isFinal } from "./api/errors.js";
import type { ChatOptions, Engine, LoadOptions, Message, ModelSource, Progress, SessionOptions } from "./index.js";
import { isOfEngine } from "./prompt-api/exceptions.js";
import { SharedEngine, type Share } from "./prompt-api/shared-engine.js";

/** Settings of a chat: those of its replies, and those of loading the model. They are read when the model is loaded, or a message sent. */
export interface UseChatOptions extends Omit<SessionOptions, "messages"> {
  /** Messages to continue from, without those of role `system`. */
  initialMessages?: readonly Message[];
  /** Options of `Engine.load`. */
  load?: Omit<LoadOptions, "signal" | "onProgress">;
}

/** A chat and what a component can do with it. */
export interface UseChat {
  /** `failed`: the model could not be loaded, or a message found its engine lost, with code `crashed`, `gpu_lost`, `worker` or `disposed`. */
  status: "loading" | "ready" | "streaming" | "failed";
  /** Progress of loading. */
  progress: Progress | undefined;
  /** All messages but those of role `system`; the last one grows while the model writes it. */
  messages: readonly Message[];
  /** Why the model could not be loaded, or the last message not be answered. */
  error: unknown;
  /** The engine, once it is loaded and until it is lost. */
  engine: Engine | undefined;
  /** Sends a message. It does nothing unless the status is `ready`. A message that fails is taken back. */
  send(text: string, options?: Omit<ChatOptions, "signal" | "tools">): Promise<void>;
  /** Ends a reply; what there is of it stays. */
  stop(): void;
  /** Replaces the messages, for example to start over. It ends a reply. */
  setMessages(messages: readonly Message[]): void;
}

/** A reply in progress. */
interface Running {
  abort: AbortController;
  /** The messages if it ends now. */
  kept(): Message[];
}

const EMPTY: Message = { role: "assistant", content: "" };

/**
 * A chat with a model: it is loaded when the component is mounted, and disposed when it is unmounted. Another model goes on with the messages. An `Engine` as `model` remains the caller's. A model
 * other than a text must be the same object at every render.
 */
export function useChat(model: ModelSource | Engine, options: UseChatOptions = {}): UseChat {
  const [status, setStatus] = useState<UseChat["status"]>("loading");
  const [progress, setProgress] = useState<Progress>();
  const [messages, showMessages] = useState<readonly Message[]>(options.initialMessages ?? []);
  const [error, setError] = useState<unknown>();
  const [engine, setEngine] = useState<Engine>();
  const latest = useRef({ options, messages });
  const share = useRef<Share>(undefined);
  const running = useRef<Running>(undefined);
  useEffect(() => void (latest.current.options = options));

  const show = useCallback((messages: readonly Message[]) => showMessages((latest.current.messages = messages)), []);
  const abandon = useCallback(() => {
    running.current?.abort.abort();
    running.current = undefined;
  }, []);

  useEffect(() => {
    const abort = new AbortController();
    setStatus("loading");
    setProgress(undefined);
    setError(undefined);
    const loading = new SharedEngine(model, latest.current.options.load ?? {}).open(abort.signal, (progress) => abort.signal.aborted || setProgress(progress));
    const opened = (one: Share) => {
      if (abort.signal.aborted) return one.release();
      share.current = one;
      setEngine(one.engine);
      setStatus("ready");
    };
    const failed = (error: unknown) => {
      if (abort.signal.aborted) return;
      setError(error);
      setStatus("failed");
    };
    loading.then(opened, failed);
    return () => {
      abort.abort();
      // Before another model may continue from them.
      if (running.current) show(running.current.kept());
      abandon();
      share.current?.release();
      share.current = undefined;
      setEngine(undefined);
    };
  }, [model, show, abandon]);

  const send = useCallback<UseChat["send"]>(async (text, options = {}) => {
    if (!share.current || running.current) return;
    let isLost = false;
    const { options: { initialMessages: _initial, load: _load, ...session }, messages: before } = latest.current;
    let done: Message[] = [...before, { role: "user", content: text }];
    let reply = EMPTY;
    const abort = new AbortController();
    const kept = () => {
      // Calls without results cannot be continued from.
      const { toolCalls: _calls, ...rest } = reply;
      return rest.content ? [...done, rest] : done;
    };
    const run = (running.current = { abort, kept });
    const isCurrent = () => running.current === run;
    show([...done, reply]);
    setStatus("streaming");
    setError(undefined);
    try {
      const chunks = share.current.conversation.session({ ...session, messages: before }).send(text, { ...options, signal: abort.signal });
      for await (const { text, reasoning = "", toolCalls = [], toolResults, finish } of chunks) {
        const thoughts = (reply.reasoning ?? "") + reasoning;
        const calls = [...(reply.toolCalls ?? []), ...toolCalls];
        reply = finish?.message ?? { ...reply, content: reply.content + text, ...(thoughts && { reasoning: thoughts }), ...(calls.length > 0 && { toolCalls: calls }) };
        if (toolResults) {
          done = [...done, reply, ...toolResults.map(({ content }): Message => ({ role: "tool", content }))];
          reply = EMPTY;
        }
        if (isCurrent()) show([...done, reply]);
      }
    } catch (error) {
      if (!isCurrent()) return;
      show(abort.signal.aborted ? kept() : before);
      if (abort.signal.aborted) return;
      setError(error);
      isLost = isOfEngine(error) && (isFinal(error.code) || error.code === "disposed");
    } finally {
      if (isCurrent()) {
        running.current = undefined;
        setStatus(isLost ? "failed" : "ready");
        if (isLost) {
          share.current?.release();
          share.current = undefined;
          setEngine(undefined);
        }
      }
    }
  }, [show]);

  const stop = useCallback(() => running.current?.abort.abort(), []);
  const setMessages = useCallback<UseChat["setMessages"]>((messages) => {
    if (running.current) setStatus("ready");
    abandon();
    show(messages);
  }, [show, abandon]);

  return { status, progress, messages, error, engine, send, stop, setMessages };
}
