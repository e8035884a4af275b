// Lookup of dotted names. Only the name is evaluated, without side effects.

import { builtinModules, createRequire } from 'node:module';
import util from 'node:util';

import { NAME_CHARS, cut } from './bounds.mjs';
import { Array, Object, Set } from './builtins.mjs';
import { isClass, typeName } from './render.mjs';

const { isProxy } = util.types;
const { getOwnPropertyDescriptor, getOwnPropertyNames, getPrototypeOf } = Object;
const toText = Function.prototype.call.bind(Function.prototype.toString);
const builtin = createRequire(import.meta.url);

const DOTTED = /^[\p{ID_Start}$_][\p{ID_Continue}$]*(?:\.[\p{ID_Start}$_][\p{ID_Continue}$]*)*$/u;
const MOST_METHODS = 200;
const SIGNATURE_BYTES = 1024;

/** Return the fields of a FoundFrame. `module`: a Node module in whose exports the name is looked up. */
export function lookup({ symbol, module }, engine) {
  if (typeof symbol !== 'string' || symbol.length > NAME_CHARS || !DOTTED.test(symbol)) return { found: false };
  const box = typeof module === 'string' && module !== '' ? within(module, symbol) : engine.look(symbol);
  if (box === null) return { found: false };
  const { value } = box;
  const entry = { found: true, name: symbol, type: typeName(value), methods: methodsOf(value) };
  if (typeof value === 'function' && !isProxy(value)) entry.signature = signature(value, symbol);
  return entry;
}

function within(module, symbol) {
  if (!builtinModules.includes(module.replace(/^node:/, ''))) return null;
  let value = builtin(module);
  for (const name of symbol.split('.')) {
    if (value === null || value === undefined || isProxy(value)) return null;
    const found = memberOf(Object(value), name);
    if (found === undefined || !('value' in found)) return null;
    ({ value } = found);
  }
  return { value };
}

function memberOf(object, name) {
  for (let each = object; each !== null && !isProxy(each); each = getPrototypeOf(each)) {
    const found = getOwnPropertyDescriptor(each, name);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Return the source's first line up to its body; for native code, the name and number of arguments. */
function signature(fn, symbol) {
  const source = toText(fn);
  if (/\{\s*\[native code\]\s*\}$/.test(source)) {
    const count = getOwnPropertyDescriptor(fn, 'length')?.value;
    const args = Array.from({ length: count > 0 && count < 20 ? count : 0 }, (_, at) => `arg${at + 1}`);
    return `function ${symbol.slice(symbol.lastIndexOf('.') + 1)}(${args.join(', ')})`;
  }
  const [line] = source.split('\n', 1);
  return cut(head(line), SIGNATURE_BYTES)[0];
}

function head(line) {
  let depth = 0;
  for (let at = 0; at < line.length; at++) {
    const sign = line[at];
    if (sign === '(' || sign === '[') depth++;
    else if (sign === ')' || sign === ']') depth--;
    else if (depth === 0 && sign === '{') return line.slice(0, at).trim();
    else if (depth === 0 && sign === '=' && line[at + 1] === '>') return line.slice(0, at + 2);
  }
  return line.trim();
}

/** Return methods of a class's instances, or of the object itself, without those of every object. */
function methodsOf(value) {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null || isProxy(value)) return [];
  const names = new Set();
  let start = value;
  if (typeof value === 'function') start = isClass(value) ? getOwnPropertyDescriptor(value, 'prototype')?.value : null;
  for (let each = start; each && each !== Object.prototype && !isProxy(each); each = getPrototypeOf(each)) {
    for (const name of getOwnPropertyNames(each)) {
      if (names.size >= MOST_METHODS) break;
      if (name !== 'constructor' && typeof getOwnPropertyDescriptor(each, name).value === 'function') names.add(name);
    }
  }
  return [...names].sort();
}
