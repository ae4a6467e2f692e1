// GGUF files for tests of loading: enlarged, and split into parts.

/** Sizes of values by their type. */
const FIXED = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
/** Weights and bytes of a block by tensor type. */
const BLOCKS = { 0: [1, 4], 1: [1, 2], 8: [32, 34], 34: [256, 54], 35: [256, 66], 41: [128, 18], 42: [64, 18], 142: [128, 34] };

const u16 = (n) => Buffer.from(Uint16Array.of(n).buffer);
const u32 = (n) => Buffer.from(Uint32Array.of(n).buffer);
const u64 = (n) => Buffer.from(BigUint64Array.of(BigInt(n)).buffer);
const text = (s) => Buffer.concat([u64(Buffer.byteLength(s)), Buffer.from(s)]);
const padded = (bytes) => Buffer.concat([bytes, Buffer.alloc(-bytes.length & 31)]);

/** The file with `megabytes` more of metadata, all different. */
export function enlarged(file, megabytes) {
  const pad = Buffer.alloc(megabytes << 20);
  for (let at = 0, x = 1; at < pad.length; at += 4) pad.writeUInt32LE((x = (x * 1664525 + 1013904223) >>> 0), at);
  const entries = [];
  for (let at = 0; at < pad.length; at += 8 << 20) {
    const key = `test.${String(at >> 20).padStart(7, "0")}`;
    const piece = pad.subarray(at, at + (8 << 20));
    entries.push(text(key), u32(8), u64(piece.length), piece);
  }
  const more = Buffer.concat(entries);
  const count = file.readBigUInt64LE(16) + BigInt(entries.length / 4);
  const all = Buffer.concat([file.subarray(0, 16), u64(count), more, file.subarray(24)]);
  if (more.length % 32) throw new Error("the weights would move off their alignment");
  return all;
}

/** The file with more metadata, `[key, number or boolean]`. */
export function extended(file, values) {
  const entries = values.map(([key, value]) =>
    Buffer.concat(typeof value === "boolean" ? [text(key), u32(7), Buffer.of(Number(value))] : [text(key), u32(4), u32(value)]),
  );
  const filler = Buffer.concat([text("test.fill"), u32(8)]);
  const length = Buffer.concat([...entries, filler]).length + 8;
  // The weights keep their alignment.
  entries.push(filler, text(" ".repeat(-length & 31)));
  return Buffer.concat([file.subarray(0, 16), u64(file.readBigUInt64LE(16) + BigInt(values.length + 1)), ...entries, file.subarray(24)]);
}

/** The file with another value, of the same length, in the metadata: an unsigned byte, or the `i`-th number of an array of 32-bit ones. */
export function changed(file, key, value, i) {
  const copy = Buffer.from(file);
  const at = copy.indexOf(text(key)) + text(key).length;
  if (i === undefined) copy.writeUInt8(value, at + 4);
  else copy.writeUInt32LE(value, at + 4 + 4 + 8 + 4 * i);
  return copy;
}

/** Splits a file into `count` parts as llama.cpp's gguf-split does. */
export function split(file, count) {
  let at = 8;
  const number = () => Number(file.readBigUInt64LE((at += 8) - 8));
  const [tensors, entries] = [number(), number()];
  const pass = () => {
    const length = number();
    at += length;
  };
  const skip = (type) => {
    if (type === 8) pass();
    else if (type !== 9) at += FIXED[type];
    else {
      const [inner, n] = [file.readUInt32LE((at += 4) - 4), number()];
      for (let i = 0; i < n; i++) skip(inner);
    }
  };
  const start = at;
  for (let i = 0; i < entries; i++) {
    pass();
    skip(file.readUInt32LE((at += 4) - 4));
  }
  const metadata = file.subarray(start, at);
  const table = [];
  for (let i = 0; i < tensors; i++) {
    const from = at;
    pass();
    const dims = Array.from({ length: file.readUInt32LE((at += 4) - 4) }, number);
    const [block, bytes] = BLOCKS[file.readUInt32LE((at += 4) - 4)];
    const head = file.subarray(from, at);
    table.push({ head, offset: number(), length: (dims.reduce((a, b) => a * b) / block) * bytes });
  }
  const data = (at + 31) & ~31;
  const each = Math.ceil(tensors / count);
  return Array.from({ length: count }, (_, no) => {
    const own = table.slice(no * each, (no + 1) * each);
    const split = [text("split.no"), u32(2), u16(no), text("split.count"), u32(2), u16(count), text("split.tensors.count"), u32(5), u32(tensors)];
    const head = [file.subarray(0, 8), u64(own.length), u64(no === 0 ? entries + 3 : 3), ...(no === 0 ? [metadata] : []), ...split];
    const bodies = own.map(({ offset, length }) => padded(file.subarray(data + offset, data + offset + length)));
    let sum = 0;
    own.forEach(({ head: row }, i) => {
      head.push(row, u64(sum));
      sum += bodies[i].length;
    });
    return Buffer.concat([padded(Buffer.concat(head)), ...bodies]);
  });
}

/**
 * Serves a file as an ordinary server does, and has its weaknesses on demand: `state` may be changed at any time.
 * `ranges` is whether it knows them, `hates` whether it breaks off when asked for one, `breaks` the bytes after which every connection breaks, `most` the bytes
 * it gives for a range at most, `limit` those it gives before it falls silent, `each` the same of every single answer, `refuse(n)` a status for its n-th answer, `after` the seconds it then wants to be left alone,
 * `mute(n)` whether there is none, `resets(n)` whether the connection is reset instead, `wait(n)` what it waits for before, `hold()` the same after each piece, `piece` the bytes it sends at once, `pace` milliseconds between them, `unmeasured` whether it tells no length, `accepts` its Accept-Ranges. `asked` lists `[first byte, last byte]`.
 */
export function origin(file, state = {}) {
  Object.assign(state, { file, ranges: true, etag: '"one"', asked: [], open: 0, mostOpen: 0, sent: 0, ...state });
  const answer = async (request, response) => {
    const asked = state.ranges ? /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "") : null;
    const first = Number(asked?.[1] ?? 0);
    let last = Math.min(Number(asked?.[2] || state.file.length - 1), state.file.length - 1);
    state.asked.push([first, last]);
    state.mostOpen = Math.max(state.mostOpen, ++state.open);
    const closed = new Promise((resolve) => response.once("close", resolve));
    void closed.then(() => state.open--);
    if (state.hates && request.headers.range) return response.destroy();
    if (state.mute?.(state.asked.length)) return;
    if (state.resets?.(state.asked.length)) return response.destroy();
    await state.wait?.(state.asked.length);
    const refused = state.refuse?.(state.asked.length);
    const { file, etag, breaks, most, exposed } = state;
    if (refused) return response.writeHead(refused, { "Retry-After": `${state.after ?? 0}` }).end();
    if (asked && first >= file.length) return response.writeHead(416).end();
    if (asked && most) last = Math.min(last, first + most - 1);
    response.writeHead(asked ? 206 : 200, {
      "Access-Control-Allow-Origin": "*",
      ...(asked && exposed !== false && { "Content-Range": `bytes ${first}-${last}/${file.length}` }),
      ...(etag && { ETag: etag }),
      ...(state.accepts && { "Accept-Ranges": state.accepts }),
      ...(!state.unmeasured && { "Content-Length": last - first + 1 }),
    });
    for (let at = first; at <= last && !response.destroyed; ) {
      // Slow enough for a reader to see progress.
      const end = Math.min(at + (state.piece ?? 128 << 10), last + 1, breaks ? first + breaks : Infinity);
      if (end > at && !response.write(file.subarray(at, end))) {
        await Promise.race([closed, new Promise((resolve) => response.once("drain", resolve))]);
      }
      state.sent += end - at;
      at = end;
      if ((state.limit && state.sent >= state.limit) || (state.each && at - first >= state.each)) return;
      if (breaks && at >= first + breaks && at <= last) {
        if (state.hangs) return;
        await new Promise((resolve) => setTimeout(resolve, 20));
        return response.destroy();
      }
      await state.hold?.();
      if (state.pace) await new Promise((resolve) => setTimeout(resolve, state.pace));
    }
    response.end();
  };
  return { state, answer };
}
