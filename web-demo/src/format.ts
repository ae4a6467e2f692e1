// Numbers as people read them.
const decimal = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function bytes(n: number): string {
  if (n < 1e6) return `${whole.format(n / 1e3)} kB`;
  if (n < 1e9) return `${decimal.format(n / 1e6)} MB`;
  return `${decimal.format(n / 1e9)} GB`;
}

export function count(n: number): string {
  if (n < 1e3) return whole.format(n);
  if (n < 1e6) return `${whole.format(n / 1e3)} k`;
  if (n < 1e9) return `${decimal.format(n / 1e6)} M`;
  return `${decimal.format(n / 1e9)} B`;
}

/** A speed: no decimals where they would only flicker. */
export function rate(n: number): string {
  return n >= 20 ? whole.format(n) : decimal.format(n);
}

export function plural(n: number, noun: string): string {
  return `${whole.format(n)} ${noun}${n === 1 ? "" : "s"}`;
}
