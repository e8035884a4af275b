// Frames to the worker: four bytes of length, big-endian, then one JSON object in UTF-8. The watcher reads the others.

import { Buffer } from 'node:buffer';
import fs from 'node:fs';

import { Array, Object, stringify } from './builtins.mjs';

// Bound here, as in every module, because user code may replace these names.
const write = fs.writeSync;
const { from, allocUnsafe } = Buffer;
const { isArray } = Array;
const { keys } = Object;
const { wait } = Atomics;
const { min } = Math;

const PIECE_BYTES = 1 << 20;
const LONGEST_NAP_MS = 16;
const bed = new Int32Array(new SharedArrayBuffer(4));

/** Sleep without running the event loop; interrupts are still delivered. */
export function nap(ms) {
  wait(bed, 0, 0, ms);
}

/** Write everything to a descriptor that may be non-blocking. Throws whatever writeSync throws. */
export function writeAll(fd, data) {
  let at = 0;
  let ms = 1;
  const size = data.length;
  while (at < size) {
    try {
      at += write(fd, data, at, min(size - at, PIECE_BYTES));
      ms = 1;
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      nap(ms); // the reader does not keep up
      ms = min(ms * 2, LONGEST_NAP_MS);
    }
  }
}

export class Channel {
  #fd;
  #exit;

  /** `exit` is called when the worker is gone. */
  constructor(fd, exit) {
    this.#fd = fd;
    this.#exit = exit;
  }

  send(message) {
    const body = from(json(message));
    const frame = allocUnsafe(4 + body.length);
    frame.writeUInt32BE(body.length, 0);
    body.copy(frame, 4);
    try {
      writeAll(this.#fd, frame);
    } catch {
      this.#exit();
    }
  }
}

/** Encode JSON without toJSON, which user code could have defined on Object.prototype. */
function json(value) {
  if (typeof value === 'string') {
    const text = stringify(value);
    return text.includes('\\ud') ? stringify(from(value).toString()) : text; // lone surrogates are not valid UTF-8
  }
  if (value === null || typeof value !== 'object') return stringify(value);
  const parts = [];
  if (isArray(value)) {
    for (let i = 0; i < value.length; i++) parts[i] = json(value[i]);
    return `[${parts.join(',')}]`;
  }
  for (const key of keys(value)) {
    if (value[key] !== undefined) parts[parts.length] = `${stringify(key)}:${json(value[key])}`;
  }
  return `{${parts.join(',')}}`;
}
