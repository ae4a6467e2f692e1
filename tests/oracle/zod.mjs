// JSON Schemas of zod's strings, and strings that zod takes and does not take. Writes tests/fixtures/zod.json.
//
//   npm ci && node tests/oracle/zod.mjs
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const { z } = createRequire(new URL("../../wasm/package.json", import.meta.url))("zod");
const IPV6 = "2001:db8:0:0:0:0:0:1";
const UUID = "123e4567-e89b-42d3-a456-426614174000";
// A name, the schema, and strings that are tried.
const TRIED = [
  ["email", z.email(), ["jane.doe@mail.example.org", "jane@", "a b@example.org", "@example.org"]],
  ["html5Email", z.email({ pattern: z.regexes.html5Email }), ["jane@example.org", "jane@", "@example.org"]],
  ["datetime", z.iso.datetime(), ["2024-02-29T23:59:00Z", "2024-02-29T23:59:00.125Z", "2023-02-29T23:59:00Z", "2024-01-01T00:00:00+01:00"]],
  ["datetime with offset", z.iso.datetime({ offset: true }), ["2024-01-01T00:00:00+01:00", "2024-01-01T00:00:00"]],
  ["local datetime", z.iso.datetime({ local: true }), ["2024-01-01T00:00", "2024-01-01"]],
  ["datetime with precision", z.iso.datetime({ precision: 3 }), ["2024-01-01T00:00:00.000Z", "2024-01-01T00:00:00Z"]],
  ["date", z.iso.date(), ["2024-02-29", "2023-02-29", "2023-2-1"]],
  ["time", z.iso.time(), ["23:59:00", "23:59", "24:00:00"]],
  ["duration", z.iso.duration(), ["P1Y2M3D", "PT1H", "P3W", "P", "PT", "P1W2D"]],
  ["guid", z.guid(), [UUID, UUID.slice(1)]],
  ["uuid", z.uuid(), [UUID, "00000000-0000-0000-0000-000000000000", "123e4567-e89b-92d3-a456-426614174000"]],
  ["uuidv4", z.uuidv4(), [UUID, "123e4567-e89b-12d3-a456-426614174000"]],
  ["uuidv6", z.uuidv6(), ["123e4567-e89b-62d3-a456-426614174000", UUID]],
  ["uuidv7", z.uuidv7(), ["123e4567-e89b-72d3-a456-426614174000", UUID]],
  ["url", z.url(), ["https://example.org/a?b=c", "example"]],
  ["nanoid", z.nanoid(), ["V1StGXR8_Z5jdHi6B-myT", "V1StGXR8"]],
  ["cuid", z.cuid(), ["cjld2cjxh0000qzrmn831i7rn", "djld2cjxh"]],
  ["cuid2", z.cuid2(), ["tz4a98xxat96iws9zmbrgj3a", "TZ4A"]],
  ["ulid", z.ulid(), ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "81ARZ3NDEKTSV4RRFFQ69G5FAV"]],
  ["xid", z.xid(), ["9m4e2mr0ui3e8a215n4g", "9m4e2mr0ui3e8a215n4z"]],
  ["ksuid", z.ksuid(), ["0ujtsYcgvSTl8PAuAdqWYSMnLOv", "0ujts"]],
  ["ipv4", z.ipv4(), ["192.168.0.255", "192.168.0.256"]],
  ["ipv6", z.ipv6(), [IPV6, "2001:db8"]],
  ["mac", z.mac(), ["00:1A:2B:3C:4D:5E", "00:1A:2B:3C:4D"]],
  ["cidrv4", z.cidrv4(), ["10.0.0.0/8", "10.0.0.0/33"]],
  ["cidrv6", z.cidrv6(), [`${IPV6}/64`, "::/0", `${IPV6}/129`]],
  ["base64", z.base64(), ["aGVsbG8=", "", "aGVsbG8"]],
  ["base64url", z.base64url(), ["aGVs", "aGVs+G8"]],
  ["e164", z.e164(), ["+14155552671", "14155552671"]],
  ["hostname", z.hostname(), ["www.example.org", "-a.org", "a b"]],
  ["hex", z.hex(), ["0aF", "0ag"]],
  ["sha256", z.hash("sha256"), ["a".repeat(64), "a".repeat(63)]],
  ["sha256 in base64", z.hash("sha256", { enc: "base64" }), [`${"a".repeat(43)}=`, "a".repeat(43)]],
  ["startsWith", z.string().startsWith("a.b"), ["a.b", "a.bc", "axb"]],
  ["endsWith", z.string().endsWith("/x"), ["a/x", "/x", "/xa"]],
  ["includes", z.string().includes("b"), ["abc", "ac"]],
  ["lowercase", z.string().lowercase(), ["a 1", "aB"]],
  ["uppercase", z.string().uppercase(), ["A 1", "Ab"]],
  ["regex", z.string().regex(/^[A-Z]{3}-\d+$/), ["ABC-1", "AB-1"]],
  ["email of some length", z.email().min(8).max(12), ["jane@aa.org", "j@a.org", "jane.doe@aa.org"]],
  ["email of a host", z.email().regex(/@example\.org$/), ["jane@example.org", "jane@example.com"]],
  ["startsWith and endsWith", z.string().startsWith("a").endsWith("b"), ["ab", "axb", "a", "b", "ba"]],
  ["templateLiteral", z.templateLiteral(["a", z.number(), z.enum(["x", "y"])]), ["a-1.5x", "a1z"]],
];
const cases = TRIED.flatMap(([name, type, strings]) =>
  // The second is what OpenAI's client asks zod for.
  ["draft-2020-12", "draft-7"].map((target) => {
    const { $schema: _, ...schema } = z.toJSONSchema(type, { target });
    const [yes, no] = [true, false].map((is) => strings.filter((string) => type.safeParse(string).success === is));
    if (yes.length === 0 || no.length === 0) throw new Error(`${name}: ${yes} ${no}`);
    return JSON.stringify({ name: `${name}, ${target}`, schema: JSON.stringify(schema), yes, no });
  }),
);
writeFileSync(new URL("../fixtures/zod.json", import.meta.url), `[\n${cases.join(",\n")}\n]\n`);
