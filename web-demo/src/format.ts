// Numbers as people read them, never broken from their units.
const decimal = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function bytes(n: number): string {
  if (n < 1e6) return `${whole.format(n / 1e3)}\u00a0kB`;
  if (n < 1e9) return `${decimal.format(n / 1e6)}\u00a0MB`;
  return `${decimal.format(n / 1e9)}\u00a0GB`;
}

export function count(n: number): string {
  if (n < 1e3) return whole.format(n);
  if (n < 1e6) return `${whole.format(n / 1e3)}\u00a0k`;
  if (n < 1e9) return `${decimal.format(n / 1e6)}\u00a0M`;
  return `${decimal.format(n / 1e9)}\u00a0B`;
}

/** A speed: no decimals where they would only flicker. */
export function rate(n: number): string {
  return n >= 20 ? whole.format(n) : decimal.format(n);
}

export function plural(n: number, noun: string): string {
  return `${whole.format(n)} ${noun}${n === 1 ? "" : "s"}`;
}
