// Limits of the driver, and truncation of text.

import { Buffer } from 'node:buffer';

export const NAME_CHARS = 256;
export const PATH_CHARS = 1024;
export const MESSAGE_BYTES = 4096;
export const CHANGED_NAMES = 100;
export const CUT_MARK = '…[truncated]';

const { byteLength, from } = Buffer;

/** Limits set by the worker on assignment. Values out of range are clamped. */
export class Limits {
  valueBytes = 10240;
  traceFrames = 20;
  traceBytes = 16384;

  update(wanted) {
    this.valueBytes = within(wanted?.['value-bytes'], this.valueBytes, 0, 1 << 20);
    this.traceFrames = within(wanted?.['trace-frames'], this.traceFrames, 2, 1000);
    this.traceBytes = within(wanted?.['trace-bytes'], this.traceBytes, 256, 1 << 20);
  }
}

function within(value, standard, low, high) {
  if (typeof value !== 'number' || value % 1 !== 0) return standard;
  return value < low ? low : value > high ? high : value;
}

/** Truncate to `limit` UTF-8 bytes, never inside a character; return it and the bytes left out. */
export function cut(text, limit) {
  if (text.length * 3 <= limit) return [text, 0];
  const size = byteLength(text);
  if (size <= limit) return [text, 0];
  // A character is at least one byte, so the result lies within the first `limit` + 1 units.
  const data = from(text.slice(0, limit + 1));
  let end = limit;
  while (end > 0 && (data[end] & 0xc0) === 0x80) end--;
  return [data.toString('utf8', 0, end), size - end];
}

/** Truncate to `limit` UTF-8 bytes and append a mark if there was more. */
export function cutMarked(text, limit) {
  const [kept, dropped] = cut(text, limit);
  return dropped ? kept + CUT_MARK : kept;
}

/** Truncate a name to NAME_CHARS and append a mark if there was more. */
export function cutName(name) {
  return name.length > NAME_CHARS ? name.slice(0, NAME_CHARS) + CUT_MARK : name;
}

/** Truncate in the middle to `limit` UTF-8 bytes, with a line that counts the rest. */
export function cutMiddle(text, limit) {
  const data = from(text);
  if (data.length <= limit) return text;
  const room = limit > 48 ? limit - 48 : 0; // 48: the line in the middle, with any number of digits
  let head = room >> 1;
  let tail = data.length - (room - head);
  while (head > 0 && (data[head] & 0xc0) === 0x80) head--;
  while (tail < data.length && (data[tail] & 0xc0) === 0x80) tail++;
  const gap = `\n  ... ${tail - head} bytes not shown\n`;
  return data.toString('utf8', 0, head) + gap + data.toString('utf8', tail);
}
