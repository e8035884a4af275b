// Rewriting of an eval's text for V8.
//
// V8 determines all positions, without guessing: `import` in a script is a syntax error whose position V8's parser
// reports exactly. So a static import is found by its error, and import() - valid, but rejected by Node in code of
// the inspector - by an error inserted after the word: in a string, regex, template or comment it has no effect.

import { stringify } from './builtins.mjs';
import { LINE_END } from './engine.mjs';
import { IMPORT_NAMES } from './modules.mjs';

const OUTSIDE = 'Cannot use import statement outside a module';
const MOST_IMPORTS = 1000; // per eval; each costs V8 one parse of the text
const WORD = /(?<![\p{ID_Continue}$\u200c\u200d#])import(?![\p{ID_Continue}$\u200c\u200d])/gu;
const GAP = /(?:[\s\ufeff]|\/\/[^\n\r\u2028\u2029]*|\/\*[^]*?\*\/)*/y;
const NAME = /[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*/uy;
const TEXT = /"(?:[^"\\\n\r]|\\[^])*"|'(?:[^'\\\n\r]|\\[^])*'/y;
const SIGN = /[{},*;]/y;

/** Return the text to run. Errors in the user's text stay, and V8 reports them. */
export function prepare(code, engine, file) {
  if (code.startsWith('#!')) code = `//${code.slice(2)}`;
  if (code.includes('import')) code = withImports(code, engine);
  if (!file && isObject(code, engine)) return `(${code}\n)`;
  return code;
}

/** Treat text that can be an object literal as one, as in Node's own REPL. */
function isObject(code, engine) {
  if (!/^\s*\{/.test(code) || /;\s*$/.test(code)) return false;
  // Valid in both kinds of brackets: then it closes neither, and is one expression.
  return engine.whole(`(${code}\n)`) && engine.whole(`[${code}\n]`);
}

function withImports(code, engine) {
  const name = IMPORT_NAMES.find((each) => !code.includes(each));
  if (name === undefined) return code;
  let wrong = engine.wrong(code);
  for (let left = MOST_IMPORTS; wrong?.message === OUTSIDE && left > 0; left--) {
    const at = place(code, wrong);
    const found = code.startsWith('import', at) ? declaration(code, at, name) : null;
    // Only at top level: the text before it is complete.
    if (found === null || !engine.whole(code.slice(0, at))) return code;
    code = code.slice(0, at) + found.text + code.slice(found.end);
    wrong = engine.wrong(code);
  }
  if (wrong !== null) return code;
  const words = [...code.matchAll(WORD)].slice(0, MOST_IMPORTS);
  for (const { index } of words) {
    const end = index + 'import'.length;
    const error = engine.wrong(`${code.slice(0, end)} 0 ${code.slice(end)}`);
    if (error?.message !== OUTSIDE || place(code, error) !== index) continue;
    if (next(code, end, /\(/y) === null) continue;
    code = code.slice(0, index) + name + code.slice(end);
  }
  return code;
}

function place(code, { line, column }) {
  LINE_END.lastIndex = 0;
  for (; line > 0; line--) LINE_END.exec(code);
  return LINE_END.lastIndex + column;
}

/** Convert `import a, { b as c } from 'd' with { … };` to an equivalent declaration; return it and its end. */
function declaration(code, start, name) {
  const reader = new Reader(code, start + 'import'.length);
  const imports = [];
  let space = null;
  let what = reader.take(TEXT);
  if (what === null) {
    const whole = reader.take(NAME);
    if (whole !== null) imports.push(['default', whole]);
    if (whole === null || reader.sign(',')) {
      if (reader.sign('*')) {
        if (reader.take(NAME) !== 'as' || (space = reader.take(NAME)) === null) return null;
      } else if (!named(reader, imports)) return null;
    }
    if (reader.take(NAME) !== 'from' || (what = reader.take(TEXT)) === null) return null;
  }
  const options = attributes(reader);
  if (options === null || !reader.over()) return null;
  const names = stringify(imports.map(([from]) => from));
  const source = `await ${name}(${what}, ${options}, ${names})`;
  const pattern = `{ ${imports.map(([from, to]) => `${stringify(from)}: ${to}`).join(', ')} }`;
  let text = `const ${pattern} = ${source};`;
  if (space !== null) text = `const ${space} = ${source}${imports.length > 0 ? `, ${pattern} = ${space}` : ''};`;
  // Line numbers below stay the same.
  return { text: text + code.slice(start, reader.at).replace(/[^\n]/g, ''), end: reader.at };
}

function named(reader, imports) {
  if (!reader.sign('{')) return false;
  while (!reader.sign('}')) {
    const quoted = reader.take(TEXT);
    const from = quoted === null ? reader.take(NAME) : quoted.slice(1, -1);
    if (from === null) return false;
    const as = reader.ahead(NAME) === 'as';
    if (quoted !== null && !as) return false;
    if (as) reader.take(NAME);
    const to = as ? reader.take(NAME) : from;
    if (to === null) return false;
    imports.push([from, to]);
    if (!reader.sign(',') && reader.ahead(SIGN) !== '}') return false;
  }
  return true;
}

/** Return the second argument of import(): 'undefined' if missing, null if malformed. */
function attributes(reader) {
  const word = reader.ahead(NAME);
  if (word !== 'with' && word !== 'assert') return 'undefined';
  reader.take(NAME);
  if (!reader.sign('{')) return null;
  const pairs = [];
  while (!reader.sign('}')) {
    const key = reader.take(NAME) ?? reader.take(TEXT);
    if (key === null || !reader.colon()) return null;
    const value = reader.take(TEXT);
    if (value === null) return null;
    pairs.push(`${key}: ${value}`);
    if (!reader.sign(',') && reader.ahead(SIGN) !== '}') return null;
  }
  return `{ ${word}: { ${pairs.join(', ')} } }`;
}

/** Tokenizer that skips white space and comments. */
class Reader {
  #code;
  at;

  constructor(code, at) {
    this.#code = code;
    this.at = at;
  }

  ahead(pattern) {
    return next(this.#code, this.at, pattern);
  }

  take(pattern) {
    const found = this.ahead(pattern);
    if (found !== null) this.at = pattern.lastIndex;
    return found;
  }

  sign(wanted) {
    return this.ahead(SIGN) === wanted && this.take(SIGN) !== null;
  }

  colon() {
    return this.take(/:/y) !== null;
  }

  /** Return whether the statement ends here: with a semicolon, which is consumed, a new line, or the end. */
  over() {
    if (this.sign(';')) return true;
    GAP.lastIndex = this.at;
    const [gap] = GAP.exec(this.#code);
    return /[\n\r\u2028\u2029]/.test(gap) || this.at + gap.length === this.#code.length;
  }
}

function next(code, at, pattern) {
  GAP.lastIndex = at;
  GAP.exec(code);
  pattern.lastIndex = GAP.lastIndex;
  return pattern.exec(code)?.[0] ?? null;
}
