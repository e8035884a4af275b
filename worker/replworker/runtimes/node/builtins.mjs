// Globals used by the driver, saved before user code can replace them.

export const {
  Array, ArrayBuffer, Error, JSON, Map, MessageChannel, MessagePort, Number, Object, Promise, Reflect, Set, String,
  SyntaxError, Uint8Array, WeakSet, console, process, setImmediate,
} = globalThis; // prettier-ignore
export const { parse: parseJson, stringify } = JSON;
