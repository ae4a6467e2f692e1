// Long work in several tasks, between which the browser paints and answers input.

type Yields = { scheduler?: { yield?: () => Promise<void> } };

/** Ends the current task; what follows is the next. */
export function nextTask(): Promise<void> {
  // Safari has no `scheduler.yield`.
  return (globalThis as Yields).scheduler?.yield?.() ?? new Promise((resolve) => setTimeout(resolve));
}
