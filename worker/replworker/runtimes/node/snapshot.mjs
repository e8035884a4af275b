// Snapshots of the user's variables for another session.
//
// Values are written together by v8.serialize, so shared objects stay shared. It would silently turn instances into
// plain objects, run getters and drop symbols; so each value is checked first, and those that would not
// be restored unchanged are skipped, with the reason. A function or class is copied as source, if V8 confirms
// that it refers only to globals and that its definition has no side effects.

import { Buffer } from 'node:buffer';
import util from 'node:util';
import v8 from 'node:v8';

import { NAME_CHARS } from './bounds.mjs';
import { Array, Error, Map, Object, Reflect, Set, String, parseJson, stringify } from './builtins.mjs';
import { isClass, typeName } from './render.mjs';

const { serialize, deserialize } = v8;
const { types } = util;
const { byteLength, from } = Buffer;
const { getOwnPropertyDescriptor, getPrototypeOf } = Object;
const { ownKeys } = Reflect;
const toText = Function.prototype.call.bind(Function.prototype.toString);

const MOST_LEFT_BEHIND = 200;
const FUNCTION_KEYS = new Set(['length', 'name', 'prototype', 'arguments', 'caller']);
const KINDS = [
  types.isBoxedPrimitive, types.isDate, types.isRegExp, types.isMap, types.isSet, types.isAnyArrayBuffer,
  types.isTypedArray, types.isDataView, types.isNativeError,
]; // prettier-ignore

/** Handle a DumpFrame: at most `max` bytes of data. */
export function dump({ max }, { engine, names }) {
  const left = [];
  const values = {};
  const sources = {};
  const leave = (name, why) => left.push({ name: name.slice(0, NAME_CHARS), why });
  const lexical = names.lexical();
  const all = [...names.all()].sort(([a], [b]) => (a < b ? -1 : 1));
  const globals = all.filter(([name]) => !lexical.has(name)).map(([name]) => name);
  for (const [name, value] of all) {
    const source = typeof value === 'function' && !types.isProxy(value);
    const why = source ? refuseFunction(value, engine) : refuse(value, new Set());
    if (why !== null) leave(name, why);
    else if (source) sources[name] = toText(value);
    else values[name] = value;
  }
  const packed = pack(values, leave);
  const text = stringify({ v: 1, sources, globals, values: packed.toString('base64') });
  const shown = left.slice(0, MOST_LEFT_BEHIND);
  const bytes = byteLength(text);
  if (bytes > max) return { error: `the values take ${bytes} bytes, more than ${max}`, skipped: shown };
  const count = Object.keys(values).length + Object.keys(sources).length;
  return { count, bytes, data: text, skipped: shown };
}

/** Handle a RestoreFrame. */
export function restore({ data }, { engine, names }) {
  let content;
  let values;
  try {
    content = parseJson(data);
    if (content.v !== 1) throw new Error('it was written by another version');
    values = new Map(Object.entries(deserialize(from(content.values, 'base64'))));
  } catch (error) {
    return { error: `cannot be read: ${error.message}` };
  }
  const lexical = names.lexical();
  const globals = new Set(content.globals.filter((name) => !lexical.has(name)));
  const left = [];
  let count = 0;
  const bind = (name, value) => {
    const one = new Map([[name, value]]);
    if (globals.has(name)) globalThis[name] = value;
    else if (!engine.declare('let', one) && !engine.declare('const', one)) {
      left.push({ name, why: 'the session has declared it with var or function' });
      return;
    }
    count++;
  };
  for (const [name, value] of values) bind(name, value);
  revive(new Map(Object.entries(content.sources)), bind, engine, left);
  return { count, bytes: byteLength(data), skipped: left };
}

/** Define functions and classes, in the order of their dependencies. */
function revive(sources, bind, engine, left) {
  for (let before = -1; sources.size !== before; ) {
    before = sources.size;
    for (const [name, source] of sources) {
      const made = engine.look(`(${source}\n)`);
      if (made === null || typeof made.value !== 'function') continue;
      bind(name, made.value);
      sources.delete(name);
    }
  }
  for (const name of sources.keys()) left.push({ name, why: 'what its definition needs is not there' });
}

/** Serialize all values together, without those that v8 rejects. */
function pack(values, leave) {
  try {
    return serialize(values);
  } catch {
    for (const [name, value] of Object.entries(values)) {
      try {
        serialize(value);
      } catch (error) {
        delete values[name];
        leave(name, String(error.message).slice(0, NAME_CHARS));
      }
    }
    return serialize(values);
  }
}

function refuseFunction(fn, engine) {
  const source = toText(fn);
  const what = isClass(fn) ? 'class' : 'function';
  if (/\{\s*\[native code\]\s*\}$/.test(source)) return `a ${what} that is not JavaScript`;
  if (!engine.global(fn, source)) return `a ${what} that uses variables of the code around it`;
  for (const key of ownKeys(fn)) {
    const { value } = getOwnPropertyDescriptor(fn, key);
    if (!FUNCTION_KEYS.has(key) && !(what === 'class' && typeof value === 'function')) {
      return `a ${what} with properties of its own`;
    }
  }
  const again = engine.look(`(${source}\n)`);
  if (again !== null && typeof again.value === 'function') return null;
  return `a ${what} whose definition cannot be run again alone`;
}

/** Return why a value cannot be copied, or null. */
function refuse(value, seen) {
  if (typeof value === 'symbol') return 'a symbol';
  if (typeof value === 'function') return 'holds a function';
  if (typeof value !== 'object' || value === null) return null;
  const todo = [value];
  while (todo.length > 0) {
    const each = todo.pop();
    if (typeof each === 'symbol') return 'holds a symbol';
    if (typeof each === 'function') return 'holds a function';
    if (typeof each !== 'object' || each === null || seen.has(each)) continue;
    seen.add(each);
    const why = refuseObject(each);
    if (why !== null) return each === value ? `is ${why}` : `holds ${why}`;
    if (types.isMap(each)) for (const [key, item] of Map.prototype.entries.call(each)) todo.push(key, item);
    if (types.isSet(each)) for (const item of Set.prototype.values.call(each)) todo.push(item);
    if (types.isTypedArray(each) || types.isAnyArrayBuffer(each)) continue;
    for (const key of ownKeys(each)) {
      const found = getOwnPropertyDescriptor(each, key);
      if (!('value' in found)) return 'holds a getter or setter';
      if (typeof key === 'symbol') return 'holds a property that is named by a symbol';
      todo.push(found.value);
    }
  }
  return null;
}

function refuseObject(object) {
  if (types.isProxy(object)) return 'a proxy';
  if (types.isPromise(object)) return 'a promise';
  const above = getPrototypeOf(object);
  if (above === null || above === Object.prototype) return types.isModuleNamespaceObject(object) ? 'a module' : null;
  if (Array.isArray(object) && above === Array.prototype) return null;
  const name = typeName(object);
  const native = typeof globalThis[name] === 'function' && globalThis[name].prototype === above;
  if (native && KINDS.some((is) => is(object)) && !types.isSharedArrayBuffer(object)) return null;
  return `an instance of ${name}`;
}
