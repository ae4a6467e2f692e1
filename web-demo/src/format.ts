// Numbers as people read them, never broken from their units. Not by `Intl`: its first formatter takes as long as the rest of
// the page's start.

const grouped = (digits: string) => digits.replace(/\d(?=(\d{3})+$)/g, "$&,");

/** A number without decimals, and with its thousands apart. */
export function whole(n: number): string {
  return grouped(n.toFixed());
}

/** A number with one decimal, unless that is zero. */
function decimal(n: number): string {
  const [integer = "", digit] = n.toFixed(1).split(".");
  return digit === "0" ? grouped(integer) : `${grouped(integer)}.${digit}`;
}

export function bytes(n: number): string {
  if (n < 1e6) return `${whole(n / 1e3)}\u00a0kB`;
  if (n < 1e9) return `${decimal(n / 1e6)}\u00a0MB`;
  return `${decimal(n / 1e9)}\u00a0GB`;
}

export function count(n: number): string {
  if (n < 1e3) return whole(n);
  if (n < 1e6) return `${whole(n / 1e3)}\u00a0k`;
  if (n < 1e9) return `${decimal(n / 1e6)}\u00a0M`;
  return `${decimal(n / 1e9)}\u00a0B`;
}

/** A speed: no decimals where they would only flicker. */
export function rate(n: number): string {
  return n >= 20 ? whole(n) : decimal(n);
}

export function plural(n: number, noun: string): string {
  return `${whole(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/** A duration, as exact as an estimate deserves. */
export function time(seconds: number): string {
  if (seconds < 59.5) return `${whole(Math.max(1, seconds))}\u00a0s`;
  if (seconds < 3570) return `${whole(seconds / 60)}\u00a0min`;
  return `${decimal(seconds / 3600)}\u00a0h`;
}
