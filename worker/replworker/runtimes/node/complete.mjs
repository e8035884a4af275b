// Completion. Objects are resolved by V8's evaluation without side effects, so no getters, proxy traps or functions
// of the user with effects run.

import fs from 'node:fs';
import { builtinModules } from 'node:module';
import util from 'node:util';

import { NAME_CHARS } from './bounds.mjs';
import { Array, Map, Number, Object, Set, String } from './builtins.mjs';
import { isClass } from './render.mjs';

const { isProxy } = util.types;
const { getOwnPropertyDescriptor, getOwnPropertyNames, getPrototypeOf } = Object;
const { readdirSync } = fs;

const MOST = 1000;
const DEEPEST = 100; // prototypes examined
const MOST_NAMES = 20_000; // per object
const WORD = String.raw`[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*`;
const PART = String.raw`(?:\[\d+\]|\[(?:"[^"\\\n]*"|'[^'\\\n]*')\])`;
const CHAIN = `${WORD}(?:${PART}|\\??\\.${WORD})*`;
const MODULE = /(?:\b(?:require|import)\s*\(\s*|\b(?:from|import)\s*)(["'])([^"'\n]*)$/;
const KEY = new RegExp(`(${CHAIN})\\[(["'])([^"'\\n]*)$`, 'u');
const MEMBER = new RegExp(`(?<![\\p{ID_Continue}$)\\].])(${CHAIN})\\??\\.((?:${WORD})?)$`, 'u');
const NAME = new RegExp(`(?<![\\p{ID_Continue}$.#])((?:${WORD})?)$`, 'u');
const IDENTIFIER = new RegExp(`^${WORD}$`, 'u');
const KEYWORDS = (
  'async await break case catch class const continue debugger default delete do else export extends false finally ' +
  'for function if import in instanceof let new null of return static super switch this throw true try typeof ' +
  'undefined var void while with yield'
).split(' ');

/** Return {start, items} for a CompleteFrame; positions are in characters, as in the worker. */
export function complete({ code, pos, max }, { engine, names }) {
  const before = [...String(code)].slice(0, pos).join('');
  const { from, items } = found(before, engine, names);
  const most = Number.isInteger(max) ? Math.min(Math.max(max, 0), MOST) : MOST;
  const sorted = items.sort((a, b) => (a.text < b.text ? -1 : a.text > b.text ? 1 : 0));
  return { start: [...before.slice(0, from)].length, items: sorted.slice(0, most) };
}

function found(before, engine, names) {
  const module = MODULE.exec(before);
  if (module) return ending(before, module[2], modulesLike(module[2]));
  const key = KEY.exec(before);
  if (key) {
    const owner = engine.look(key[1]);
    return ending(before, key[3], owner ? members(owner.value, key[3], 'key') : []);
  }
  const member = MEMBER.exec(before);
  if (member) {
    const owner = engine.look(member[1].replaceAll('?.', '.'));
    const items = owner ? members(owner.value, member[2], null).filter(({ text }) => IDENTIFIER.test(text)) : [];
    return ending(before, member[2], items);
  }
  const name = NAME.exec(before);
  if (name && name[1]) return ending(before, name[1], globals(name[1], engine, names));
  return { from: before.length, items: [] };
}

function ending(before, word, items) {
  return { from: before.length - word.length, items };
}

function globals(prefix, engine, names) {
  const items = members(globalThis, prefix, null).filter(({ text }) => IDENTIFIER.test(text));
  const seen = new Set(items.map(({ text }) => text));
  for (const name of names.lexical()) {
    if (!name.startsWith(prefix) || seen.has(name)) continue;
    const known = engine.look(name);
    if (known) items.push({ text: name, type: typeOf(known.value) });
    seen.add(name);
  }
  for (const word of KEYWORDS) {
    if (word.startsWith(prefix) && !seen.has(word)) items.push({ text: word, type: 'keyword' });
  }
  return items;
}

/** Return names of an object and its prototypes, with one `kind` for all, or each one's own. */
function members(value, prefix, kind) {
  const items = new Map();
  let each = value === null || value === undefined ? null : Object(value);
  for (let depth = 0; each !== null && depth < DEEPEST && !isProxy(each); depth++) {
    if (items.size > MOST_NAMES) break;
    for (const name of ownNames(each)) {
      if (!name.startsWith(prefix) || items.has(name) || name.length > NAME_CHARS) continue;
      items.set(name, { text: name, type: kind ?? typeOfMember(each, name) });
    }
    if (kind === 'key') break;
    each = getPrototypeOf(each);
  }
  return [...items.values()];
}

function ownNames(object) {
  const indexed = Array.isArray(object) || util.types.isTypedArray(object) || object instanceof String;
  return indexed && object.length > MOST_NAMES ? [] : getOwnPropertyNames(object);
}

function typeOfMember(object, name) {
  const { value, get, set } = getOwnPropertyDescriptor(object, name);
  return get || set ? 'property' : typeOf(value);
}

function typeOf(value) {
  if (typeof value === 'function') return !isProxy(value) && isClass(value) ? 'class' : 'function';
  return 'instance';
}

function modulesLike(prefix) {
  if (/^\.{0,2}\//.test(prefix)) return pathsLike(prefix);
  const items = [];
  for (const name of builtinModules) {
    for (const text of [name, `node:${name}`]) {
      if (text.startsWith(prefix) && name[0] !== '_') items.push({ text, type: 'module' });
    }
  }
  return items;
}

function pathsLike(prefix) {
  const directory = prefix.slice(0, prefix.lastIndexOf('/') + 1);
  const start = prefix.slice(directory.length);
  try {
    return readdirSync(directory, { withFileTypes: true })
      .filter(({ name }) => name.startsWith(start) && (start !== '' || name[0] !== '.'))
      .map((entry) => ({ text: `${directory}${entry.name}${entry.isDirectory() ? '/' : ''}`, type: 'path' }));
  } catch {
    return [];
  }
}
