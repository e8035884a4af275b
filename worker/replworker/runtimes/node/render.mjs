// Text of a value, from util.inspect, within its limit; and its type name, without running code.

import util from 'node:util';

import { CUT_MARK, NAME_CHARS, cut, cutName } from './bounds.mjs';
import { Array, Map, Object, Reflect, Set, Uint8Array } from './builtins.mjs';

const { inspect, types } = util;
const { isProxy } = types;
const { getOwnPropertyDescriptor, getPrototypeOf } = Object;
const { isArray } = Array;
const toText = Function.prototype.call.bind(Function.prototype.toString);
const mapSize = Function.prototype.call.bind(getOwnPropertyDescriptor(Map.prototype, 'size').get);
const setSize = Function.prototype.call.bind(getOwnPropertyDescriptor(Set.prototype, 'size').get);
const typedLength = Function.prototype.call.bind(
  getOwnPropertyDescriptor(getPrototypeOf(Uint8Array.prototype), 'length').get,
);

const PREVIEW_CHARS = 80;
const SMALL = 20; // maximum entries of a previewed array or object
const DEEPEST = 1000; // prototypes examined

/** Return a value's text and the bytes cut. Throws whatever the user's inspect throws. */
export function render(value, limit) {
  // Cut long strings before inspecting; quotes depend on the shown part.
  const long = typeof value === 'string' && value.length > limit;
  const text = inspect(long ? value.slice(0, limit + 1) : value, long ? { maxStringLength: null } : undefined);
  const [kept, dropped] = cut(text, limit);
  const more = long ? value.length - limit - 1 : 0;
  return dropped + more > 0 ? [kept + CUT_MARK, dropped + more] : [kept, 0];
}

/** Return `typeof` for a primitive, `class` or `function`, or the constructor's name. */
export function typeName(value) {
  if (value === null) return 'null';
  if (typeof value === 'function') return !isProxy(value) && isClass(value) ? 'class' : 'function';
  if (typeof value !== 'object') return typeof value;
  for (let each = value, depth = 0; each !== null && depth < DEEPEST; each = getPrototypeOf(each), depth++) {
    if (isProxy(each)) return 'Proxy';
    const maker = getOwnPropertyDescriptor(each, 'constructor')?.value;
    if (typeof maker !== 'function' || isProxy(maker)) continue;
    const name = getOwnPropertyDescriptor(maker, 'name')?.value;
    if (typeof name === 'string' && name !== '') return cutName(name);
  }
  return 'Object';
}

export function isClass(fn) {
  return toText(fn).startsWith('class');
}

/** Return a row of the list of variables. Runs no user code. */
export function row(name, value) {
  const entry = { name: name.slice(0, NAME_CHARS), type: typeName(value) };
  const size = sizeOf(value);
  if (size !== null) entry.size = size;
  if (isPlain(value) || (isSmall(value) && values(value).every(isPlain))) {
    const head = typeof value === 'string' ? value.slice(0, PREVIEW_CHARS) : value;
    const text = inspect(head, { customInspect: false, breakLength: Infinity, compact: true });
    entry.preview = text.length <= PREVIEW_CHARS ? text : `${text.slice(0, PREVIEW_CHARS - 1)}…`;
  }
  return entry;
}

function sizeOf(value) {
  if (typeof value === 'string') return value.length;
  if (typeof value !== 'object' || value === null || isProxy(value)) return null;
  if (isArray(value)) return value.length;
  if (types.isMap(value)) return mapSize(value);
  if (types.isSet(value)) return setSize(value);
  return types.isTypedArray(value) ? typedLength(value) : null;
}

function isPlain(value) {
  return value === null || (typeof value !== 'object' && typeof value !== 'function' && typeof value !== 'symbol');
}

/** Preview an array or object with few entries, none of them computed. */
function isSmall(value) {
  if (typeof value !== 'object' || value === null || isProxy(value)) return false;
  const above = getPrototypeOf(value);
  if (above !== Object.prototype && above !== Array.prototype) return false;
  if (isArray(value) && value.length > SMALL) return false;
  const keys = Reflect.ownKeys(value);
  if (keys.length > SMALL + 1) return false;
  return keys.every((key) => typeof key === 'string' && 'value' in getOwnPropertyDescriptor(value, key));
}

function values(value) {
  return Reflect.ownKeys(value).map((key) => value[key]);
}
