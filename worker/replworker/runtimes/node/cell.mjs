// From an eval's text to the text that V8 runs.
//
// V8 says where things stand, and nothing here guesses: `import` in a script is a syntax error whose place V8's parser
// tells exactly. So a static import is found by its error, and import() - which is none, but which node refuses in
// code of the inspector - by an error put behind the word: in a string, regex, template or comment it changes nothing.

import { stringify } from './builtins.mjs';
import { LINE_END } from './engine.mjs';
import { IMPORT_NAMES } from './modules.mjs';

const OUTSIDE = 'Cannot use import statement outside a module';
const MOST_IMPORTS = 1000; // of one eval; each costs V8 one look at the text
const WORD = /(?<![\p{ID_Continue}$\u200c\u200d#])import(?![\p{ID_Continue}$\u200c\u200d])/gu;
const GAP = /(?:[\s\ufeff]|\/\/[^\n\r\u2028\u2029]*|\/\*[^]*?\*\/)*/y;
const NAME = /[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*/uy;
const TEXT = /"(?:[^"\\\n\r]|\\[^])*"|'(?:[^'\\\n\r]|\\[^])*'/y;
const SIGN = /[{},*;]/y;

/** The text to run. Where the user's has an error, so has this one, and V8 tells it. */
export function prepare(code, engine, file) {
  if (code.startsWith('#!')) code = `//${code.slice(2)}`;
  if (code.includes('import')) code = withImports(code, engine);
  if (!file && isObject(code, engine)) return `(${code}\n)`;
  return code;
}

/** As in node's own REPL: what can be read as an object literal is one. */
function isObject(code, engine) {
  if (!/^\s*\{/.test(code) || /;\s*$/.test(code)) return false;
  // Fits into both kinds of brackets: then it closes none of them, and is an expression from end to end.
  return engine.whole(`(${code}\n)`) && engine.whole(`[${code}\n]`);
}

function withImports(code, engine) {
  const name = IMPORT_NAMES.find((each) => !code.includes(each));
  if (name === undefined) return code;
  let wrong = engine.wrong(code);
  for (let left = MOST_IMPORTS; wrong?.message === OUTSIDE && left > 0; left--) {
    const at = place(code, wrong);
    const found = code.startsWith('import', at) ? declaration(code, at, name) : null;
    // Only at top level: what comes before it is whole.
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

/** `import a, { b as c } from 'd' with { … };` at a place: the declaration that does the same, and where it ends. */
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
  // The lines below keep their numbers.
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

/** The second argument of import(): 'undefined' where there is none, null where it is not well-formed. */
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

/** Takes tokens, past white space and comments. */
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

  /** Whether the statement ends here, as it must: with a semicolon, which is taken, a new line, or the text. */
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
