// The globals that the driver goes by, as they were before user code could put others in their place.

export const {
  Array, ArrayBuffer, Error, JSON, Map, MessageChannel, MessagePort, Number, Object, Promise, Reflect, Set, String,
  SyntaxError, Uint8Array, WeakSet, console, process, setImmediate,
} = globalThis; // prettier-ignore
export const { parse: parseJson, stringify } = JSON;
