// Functions that a model may call, and the arithmetic of one of them.
import type { ToolCall } from "shohin";

/** A reply makes no more rounds of calls than this; after that the model answers with what it has. */
export const MOST_ROUNDS = 4;

interface Tool {
  description: string;
  parameters: object;
  /** Throws an `Error` that tells the model what was wrong. */
  run: (given: Record<string, unknown>) => unknown;
}

const TOOLS: Record<string, Tool> = {
  calculator: {
    description: "Computes an arithmetic expression: + - * / % ^, parentheses, pi, e, sqrt, abs, round, floor, ceil, exp, ln, log, sin, cos, tan, min, max.",
    parameters: {
      type: "object",
      properties: { expression: { type: "string", description: "such as (2 + 3) * 4" } },
      required: ["expression"],
      additionalProperties: false,
    },
    run: ({ expression }) => ({ result: calculate(String(expression)) }),
  },
  clock: {
    description: "Tells the current date and time.",
    parameters: {
      type: "object",
      properties: { timezone: { type: "string", description: "IANA name such as Asia/Tokyo; without it, the user's own" } },
      required: [],
      additionalProperties: false,
    },
    run: ({ timezone }) => clock(typeof timezone === "string" && timezone !== "" ? timezone : undefined),
  },
};

/** The functions in the form that `chat` takes. */
export const FUNCTIONS = Object.entries(TOOLS).map(([name, { description, parameters }]) => ({ type: "function" as const, function: { name, description, parameters } }));

/** The result of a call as the model is told it: a JSON text, with `error` if the call is wrong. */
export function answer({ name, arguments: given }: ToolCall): string {
  try {
    const tool = Object.hasOwn(TOOLS, name) ? TOOLS[name] : undefined;
    if (!tool) throw new Error(`there is no function ${name}`);
    return JSON.stringify(tool.run(JSON.parse(given) as Record<string, unknown>));
  } catch (error) {
    return JSON.stringify({ error: error instanceof Error ? error.message : String(error) });
  }
}

function clock(timeZone: string | undefined): object {
  try {
    const format = new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeStyle: "long", ...(timeZone && { timeZone }) });
    return { time: format.format(new Date()), timezone: format.resolvedOptions().timeZone };
  } catch {
    throw new Error(`there is no time zone ${timeZone}`);
  }
}

const CONSTANTS: Record<string, number> = { pi: Math.PI, e: Math.E };
const one = (f: (x: number) => number) => ({ f: f as (...x: number[]) => number, least: 1, most: 1 });
const any = (f: (...x: number[]) => number) => ({ f, least: 1, most: Infinity });
const CALLS: Record<string, { f: (...x: number[]) => number; least: number; most: number }> = {
  sqrt: one(Math.sqrt),
  abs: one(Math.abs),
  round: one(Math.round),
  floor: one(Math.floor),
  ceil: one(Math.ceil),
  exp: one(Math.exp),
  ln: one(Math.log),
  log: one(Math.log10),
  sin: one(Math.sin),
  cos: one(Math.cos),
  tan: one(Math.tan),
  min: any(Math.min),
  max: any(Math.max),
};

/** Deeper nesting is refused, before the stack ends. */
const DEEPEST = 100;

/**
 * The value of an arithmetic expression. `^` (or `**`) binds to the right and tighter than a sign before it: -2^2 is -4. Throws an
 * `Error` that names what was found and where.
 */
export function calculate(expression: string): number {
  const tokens = [...expression.matchAll(/\s+|(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|[a-z]+|\*\*|[-+*/%^(),×÷−]|.)/gis)].filter(([, token]) => token !== undefined);
  let at = 0;
  let depth = 0;
  const peek = () => tokens[at]?.[1]?.toLowerCase();
  const wrong = (expected: string) => {
    const found = tokens[at];
    return new Error(`expected ${expected}, found ${found ? `"${found[1]}" at character ${found.index + 1}` : "the end"}`);
  };
  const take = (...wanted: string[]) => {
    const token = peek();
    if (token === undefined || !wanted.includes(token)) return undefined;
    at += 1;
    return token;
  };
  const close = () => {
    if (!take(")")) throw wrong('")"');
  };
  const nested = (): number => {
    if (++depth > DEEPEST) throw new Error("the expression is nested too deeply");
    const value = sum();
    depth -= 1;
    return value;
  };
  const sum = (): number => {
    let value = product();
    for (let sign; (sign = take("+", "-", "−")); ) value += sign === "+" ? product() : -product();
    return value;
  };
  const product = (): number => {
    let value = signed();
    for (let operator; (operator = take("*", "×", "/", "÷", "%")); ) {
      const right = signed();
      if (operator === "*" || operator === "×") value *= right;
      else if (right === 0) throw new Error("division by zero");
      else value = operator === "%" ? value % right : value / right;
    }
    return value;
  };
  const signed = (): number => {
    let sign = 1;
    for (let found; (found = take("-", "−", "+")); ) if (found !== "+") sign = -sign;
    return sign * power();
  };
  const power = (): number => {
    const base = atom();
    if (!take("^", "**")) return base;
    if (++depth > DEEPEST) throw new Error("the expression is nested too deeply");
    const value = base ** signed();
    depth -= 1;
    return value;
  };
  const atom = (): number => {
    const token = peek();
    if (token !== undefined && /^[\d.]*\d/.test(token)) {
      at += 1;
      return Number(token);
    }
    if (take("(")) {
      const value = nested();
      close();
      return value;
    }
    if (token !== undefined && Object.hasOwn(CONSTANTS, token)) {
      at += 1;
      return CONSTANTS[token]!;
    }
    if (token === undefined || !Object.hasOwn(CALLS, token)) throw wrong("a number");
    at += 1;
    if (!take("(")) throw wrong('"("');
    const given = [nested()];
    while (take(",")) given.push(nested());
    close();
    const { f, least, most } = CALLS[token]!;
    if (given.length < least || given.length > most) throw new Error(`${token} takes one number, found ${given.length}`);
    return f(...given);
  };
  const value = sum();
  if (at < tokens.length) throw wrong("an operator");
  if (!Number.isFinite(value)) throw new Error("the result is not a finite number");
  // Without the digits that binary fractions add: 0.1 + 0.2 is 0.3.
  return Number(value.toPrecision(15));
}
