// Tracebacks of thrown values: bounded, without frames of the driver or of Node's internals.

import { fileURLToPath } from 'node:url';
import util from 'node:util';

import { MESSAGE_BYTES, NAME_CHARS, PATH_CHARS, cutMarked, cutMiddle, cutName } from './bounds.mjs';
import { Array, Error, Number, Reflect, Set, String, WeakSet } from './builtins.mjs';
import { DELAY, LINE_END } from './engine.mjs';
import { typeName } from './render.mjs';

const { inspect, types } = util;
const HERE = new URL('.', import.meta.url).href;
const ENTRY = ['node:inspector', `${HERE}runner.mjs`]; // frames below these led into user code
const INNER = [...ENTRY, HERE, fileURLToPath(HERE), 'node:internal/', 'node:async_hooks'];
const FIRST_LINE = /(<[^<>\s]+>:1:)(\d+)/;
const stripped = new WeakSet();
const FAMILY = 64; // errors examined per tree of causes and members
const AT = /^\s+at /;
const WITH_NAME = /^\s+at (?:async )?(.*?) \((.*):(\d+):\d+\)$/;
const WITHOUT = /^\s+at (?:async )?(.*):(\d+):\d+$/;

/** Return {ex, stacktrace, traceback} of a thrown value. Runs the user's getters and inspect; throws what they do. */
export function raised(error, limits) {
  const isError = error instanceof Error || types.isNativeError(error);
  if (isError) strip(error);
  const full = inspect(error);
  const text = isError ? full : `Uncaught ${full}`;
  const ex = {
    type: isError ? nameOf(error) : typeName(error),
    message: cutMarked(isError ? String(error.message) : full, MESSAGE_BYTES),
  };
  return describe(ex, isError ? String(error.stack) : '', text, limits);
}

/** Return the same if that failed. */
export function unsaid(error) {
  const type = typeName(error);
  return { ex: { type, message: '' }, stacktrace: [], traceback: `${type}\n` };
}

/** Return the same for code that could not be compiled, with its line and a marker below it. */
export function misread(wrong, code, name, limits) {
  const { type, message } = wrong;
  const lines = code.split(LINE_END);
  const line = wrong.line < lines.length ? wrong.line : lines.length - 1; // not the end of V8's text
  const source = lines[line];
  const column = line < wrong.line ? source.length : wrong.column > 0 ? wrong.column : 0;
  const start = column > 100 ? column - 60 : 0; // of a long line, the part around the marker
  const mark = source.slice(start, column).replace(/[^\t]/g, ' ');
  const text = `${name}:${line + 1}\n${source.slice(start, start + 160)}\n${mark}^\n${type}: ${message}\n`;
  const ex = { type, message: cutMarked(message, MESSAGE_BYTES) };
  const stacktrace = [{ func: '<eval>', file: name.slice(0, PATH_CHARS), line: line + 1 }];
  return { ex, stacktrace, traceback: cutMiddle(text, limits.traceBytes) };
}

/** Return inspect's text without the driver's frames. */
export function clean(text) {
  if (!has(text, INNER)) return text;
  let below = false;
  const lines = [];
  for (const line of text.split('\n')) {
    const isFrame = AT.test(line);
    below = isFrame && (below || has(line, ENTRY));
    if (!isFrame || !(below || has(line, INNER))) lines.push(line);
    else if (line.endsWith(' {') && lines.length > 0) lines[lines.length - 1] += ' {'; // properties follow
  }
  return lines.join('\n');
}

/** Remove the driver's frames from an error, its causes and members. */
export function strip(error) {
  const family = new Set([error]);
  for (const each of family) {
    if (!types.isNativeError(each)) continue;
    const { stack, cause, errors } = each;
    if (typeof stack === 'string' && !stripped.has(each)) Reflect.set(each, 'stack', shifted(clean(stack)));
    stripped.add(each);
    for (const other of [cause, ...(Array.isArray(errors) ? errors : [])]) {
      if (family.size < FAMILY) family.add(other);
    }
  }
}

/** Correct columns of first lines, since evals run with DELAY before them. */
function shifted(stack) {
  const lines = stack.split('\n').map((line) => {
    return AT.test(line) ? line.replace(FIRST_LINE, (_, place, column) => place + (column - DELAY.length)) : line;
  });
  return lines.join('\n');
}

function has(text, parts) {
  return parts.some((part) => text.includes(part));
}

function describe(ex, stack, text, limits) {
  const frames = [];
  for (const line of clean(stack).split('\n')) {
    const frame = AT.test(line) ? frameOf(line) : null;
    if (frame !== null) frames.unshift(frame);
  }
  const most = limits.traceFrames;
  if (frames.length > most) frames.splice(most >> 1, frames.length - most);
  return { ex, stacktrace: frames, traceback: cutMiddle(`${shortened(clean(text), most)}\n`, limits.traceBytes) };
}

function frameOf(line) {
  const named = WITH_NAME.exec(line);
  const [func, file, number] = named ? named.slice(1) : ['<eval>', ...(WITHOUT.exec(line)?.slice(1) ?? [])];
  if (number === undefined) return null; // native, or an index of Promise.all
  return { func: func.slice(0, NAME_CHARS), file: file.slice(0, PATH_CHARS), line: Number(number) };
}

/** Return at most `most` lines of frames: the first and last ones. */
function shortened(text, most) {
  const lines = text.split('\n');
  const at = lines.flatMap((line, index) => (AT.test(line) ? [index] : []));
  const extra = at.length - most;
  if (extra <= 0) return text;
  const hidden = new Set(at.slice(most >> 1, (most >> 1) + extra));
  const gap = `    ... ${extra} frame${extra === 1 ? '' : 's'} not shown`;
  const first = at[most >> 1];
  return lines.flatMap((line, index) => (index === first ? [gap] : hidden.has(index) ? [] : [line])).join('\n');
}

/** Return an error's name, or its class's name if the class sets none. */
function nameOf(error) {
  const name = error.name;
  if (typeof name === 'string' && name !== '' && name !== 'Error') return cutName(name);
  return typeName(error);
}
