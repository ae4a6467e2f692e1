// Yielding to the event loop between pieces of computation.

const channel = typeof setImmediate === "undefined" ? new MessageChannel() : undefined;

const waiting: (() => void)[] = [];
if (channel) channel.port1.onmessage = () => waiting.shift()?.();

/** Lets messages and timers run; unlike `setTimeout(0)` it does not take milliseconds. @internal */
export function yieldToEventLoop(): Promise<void> {
  return new Promise((resolve) => {
    if (!channel) {
      setImmediate(resolve);
      return;
    }
    waiting.push(resolve);
    channel.port2.postMessage(undefined);
  });
}
